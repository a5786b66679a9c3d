"""What users bring becomes weighted draws; each kind of approximation with the real library."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover.targets.approximations import CONVERTERS, NUM_DRAWS, weighted_draws
from klover.targets.model_info import ModelInfo

arviz, blackjax = pytest.importorskip("arviz"), pytest.importorskip("blackjax")

MEAN, SD = np.array([1.0, -2.0, 0.5]), np.array([1.0, 0.5, 2.0])


def log_density(x):
    return -0.5 * jnp.sum(((x - MEAN) / SD) ** 2)


@pytest.fixture(scope="module")
def flat_target():
    return klover.Target(log_density, jnp.zeros(3))


@pytest.fixture(scope="module")
def model_target():
    """A model with a location, and a scale that is known by its logarithm."""
    return klover.Target(
        lambda position: -0.5 * (position["mu"] ** 2 + position["log_tau"] ** 2),
        {"log_tau": 0.0, "mu": 0.0},
        constrain=lambda position: {"mu": position["mu"], "tau": jnp.exp(position["log_tau"])},
        model_info=ModelInfo(
            "test", unconstrain=lambda values: {"mu": values["mu"], "log_tau": jnp.log(values["tau"])}
        ),
    )


def posterior_of(draws):
    return arviz.from_dict(draws if arviz.__version__.startswith("0.") else {"posterior": draws})


def take(target, start):
    return weighted_draws(target, start, np.random.default_rng(0))


def test_arrays_and_pairs_with_weights(flat_target):
    draws = np.random.default_rng(1).normal(size=(10, 3))
    x, weight = take(flat_target, draws)
    np.testing.assert_array_equal(x, draws)
    np.testing.assert_allclose(weight, 0.1)
    x, weight = take(flat_target, (draws, np.arange(10.0)))
    np.testing.assert_allclose(weight, np.arange(10) / 45)


def test_a_pair_of_arrays_may_be_the_position_itself():
    target = klover.Target(lambda position: -(position[0] ** 2) - position[1] ** 2, (0.0, 0.0))
    x, weight = take(target, (np.arange(4.0), np.ones(4)))
    np.testing.assert_array_equal(x, np.column_stack([np.arange(4.0), np.ones(4)]))
    np.testing.assert_allclose(weight, 0.25)


@pytest.mark.parametrize("weight", [np.ones(9), -np.ones(10), np.zeros(10), np.full(10, np.nan)])
def test_weights_that_are_none_are_refused(flat_target, weight):
    with pytest.raises(ValueError, match="weights of start must be 10 numbers"):
        take(flat_target, (np.zeros((10, 3)), weight))


def test_weighted_draws_of_a_fit(flat_target):
    fit = klover.refine(jax.random.key(0), flat_target)
    x, weight = take(flat_target, fit.draws)
    np.testing.assert_allclose(weight @ x, fit.draws.mean_and_error(fit.draws.x)[0], atol=1e-12)


def test_a_posterior_by_the_models_names_is_unconstrained(model_target):
    generator = np.random.default_rng(0)
    tau, mu = np.exp(generator.normal(size=(2, 50))), generator.normal(size=(2, 50))
    x, _ = take(model_target, posterior_of({"tau": tau, "mu": mu, "other": mu}))
    np.testing.assert_allclose(x, np.column_stack([np.log(tau).ravel(), mu.ravel()]), atol=1e-12)
    with pytest.raises(ValueError, match="no variable 'tau'; it has mu"):
        take(model_target, posterior_of({"mu": mu}))


def test_draws_at_a_boundary_are_left_out(model_target):
    tau = np.array([[0.0, 1.0, 2.0]])
    x, weight = take(model_target, posterior_of({"tau": tau, "mu": np.zeros((1, 3))}))
    np.testing.assert_allclose(x[:, 0], np.log([1.0, 2.0]), atol=1e-12)
    assert len(weight) == 2


def test_a_pathfinder_state(flat_target):
    state, _ = blackjax.vi.pathfinder.approximate(jax.random.key(0), log_density, jnp.zeros(3))
    x, _ = take(flat_target, state)
    assert x.shape == (NUM_DRAWS, 3)
    # Pathfinder estimates scales along its path, so that they are near the truth and not more.
    assert np.all(np.abs(x.mean(0) - MEAN) < 0.3 * SD)
    assert np.all(np.abs(x.std(0) / SD - 1) < 0.3)


def test_all_paths_of_multi_path_pathfinder_count_alike(flat_target):
    samples = np.random.default_rng(0).normal(size=(4, 25, 3))
    state = blackjax.vi.multipathfinder.MultipathfinderState(None, samples, None, None)
    np.testing.assert_array_equal(take(flat_target, state)[0], samples.reshape(100, 3))


def test_a_guide_of_numpyro_with_its_result():
    import numpyro
    from numpyro import distributions
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal
    from numpyro.optim import Adam

    def model():
        numpyro.sample("x", distributions.Normal(MEAN, SD).to_event(1))
        numpyro.sample("tau", distributions.LogNormal(0.0, 0.3))

    guide = AutoNormal(model)
    result = SVI(model, guide, Adam(0.05), Trace_ELBO()).run(jax.random.key(0), 1500, progress_bar=False)
    target = klover.from_numpyro(model)
    for start in ((guide, result), (guide, result.params)):
        x, _ = take(target, start)
        assert x.shape == (NUM_DRAWS, 4)
        # The optimiser's last steps are noisy.
        np.testing.assert_allclose(x[:, 1:].mean(0), MEAN, atol=0.3)
        np.testing.assert_allclose(x[:, 0].std(), 0.3, rtol=0.2)


@pytest.mark.slow
def test_an_approximation_of_pymc():
    import pymc

    with pymc.Model() as model:
        pymc.Normal("x", MEAN, SD)
        pymc.LogNormal("tau", 0.0, 0.3)
        approximation = pymc.fit(3000, method="advi", random_seed=1, progressbar=False)
    x, _ = take(klover.from_pymc(model), approximation)
    assert x.shape == (NUM_DRAWS, 4)
    np.testing.assert_allclose(np.sort(x.mean(0)), np.sort([0.0, *MEAN]), atol=0.3)


@pytest.mark.parametrize("start", ["draws", types.SimpleNamespace(), 3.0, [np.zeros((5, 3))] * 3, (None, np.ones(2))])
def test_anything_else_is_refused_with_a_list_of_what_is_not(flat_target, start):
    with pytest.raises(ValueError, match="start must be one of: a Mixture, a Fit, klover's weighted draws, ") as caught:
        take(flat_target, start)
    assert all(name in str(caught.value) for name in CONVERTERS)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (np.zeros(3), r"two or more finite draws of 3 numbers, got shape \(3, 1\)"),
        (np.zeros((1, 3)), r"two or more finite draws of 3 numbers, got shape \(1, 3\)"),
        (np.zeros((5, 2)), r"two or more finite draws of 3 numbers, got shape \(5, 2\)"),
        (np.full((5, 3), np.inf), "with numbers that are not finite"),
        (np.full((5, 3), "a"), r"arrays of numbers with one leading axis of draws, got <U1 of shape \(5, 3\)"),
    ],
)
def test_draws_that_are_not_of_the_target_are_refused(flat_target, start, message):
    with pytest.raises(ValueError, match=message):
        take(flat_target, start)


def test_pytrees_need_one_number_of_draws(model_target):
    x, _ = take(model_target, {"mu": np.arange(3.0), "log_tau": np.ones(3)})
    np.testing.assert_array_equal(x, np.column_stack([np.ones(3), np.arange(3.0)]))
    with pytest.raises(ValueError, match="with one leading axis of draws"):
        take(model_target, {"mu": np.zeros(3), "log_tau": np.zeros(4)})
