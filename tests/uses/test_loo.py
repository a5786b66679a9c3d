import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from helpers import compilations, needs
from klover import Target
from klover.uses.left_out import Refits, pointwise, without

NUM, DIM, PRIOR = 30, 3, 1 / 9
GROUPS = np.arange(NUM) % 5


def make_data():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(NUM, DIM))
    inputs[:3] *= 6
    outcomes = inputs @ np.array([1.0, -1.0, 0.5]) + rng.normal(size=NUM)
    outcomes[:3] += [6, -7, 6]
    return inputs, outcomes


INPUTS, OUTCOMES = make_data()


def rows(x):
    return -0.5 * (OUTCOMES - INPUTS @ x) ** 2 - 0.5 * jnp.log(2 * jnp.pi)


def predictive(left, row=None):
    """Log predictive density of rows, given the others, in closed form; of one of them alone if asked."""
    kept = np.setdiff1d(np.arange(NUM), left)
    covariance = np.linalg.inv(INPUTS[kept].T @ INPUTS[kept] + PRIOR * np.eye(DIM))
    asked = left if row is None else [row]
    spread = INPUTS[asked] @ covariance @ INPUTS[asked].T + np.eye(len(asked))
    error = OUTCOMES[asked] - INPUTS[asked] @ covariance @ INPUTS[kept].T @ OUTCOMES[kept]
    return -0.5 * (error @ np.linalg.solve(spread, error) + np.linalg.slogdet(2 * np.pi * spread)[1])


def check_against(found, truth):
    assert np.all(np.abs(found.elpd_i - truth) < 4 * found.elpd_i_error + 1e-3)
    assert abs(found.elpd - truth.sum()) < 4 * found.elpd_error


@pytest.fixture(scope="module")
def fit():
    return klover.refine(0, Target(lambda x: jnp.sum(rows(x)) - 0.5 * PRIOR * jnp.sum(x**2), np.zeros(DIM)))


@pytest.fixture(scope="module")
def loo(fit):
    return fit.loo(rows)


def test_every_row_has_the_density_of_closed_form_within_its_error(loo):
    check_against(loo, np.array([predictive([row]) for row in range(NUM)]))
    assert set(np.flatnonzero(loo.pareto_k > loo.good_k)) <= set(loo.refits)
    assert len(loo.refits) >= 2
    assert loo.trusted
    # p_loo by its definition, with the posterior of all data in closed form.
    covariance = np.linalg.inv(INPUTS.T @ INPUTS + PRIOR * np.eye(DIM))
    spread = 1 + np.einsum("ij,jk,ik->i", INPUTS, covariance, INPUTS)
    error = OUTCOMES - INPUTS @ covariance @ INPUTS.T @ OUTCOMES
    lppd = -0.5 * (error**2 / spread + np.log(2 * np.pi * spread))
    assert abs(loo.p_loo - (lppd.sum() - loo.elpd)) < 0.1


def test_groups_are_left_out_together_and_rows_of_folds_are_predicted_one_by_one(fit):
    found = fit.loo(rows, groups=GROUPS)
    check_against(found, np.array([predictive(np.flatnonzero(GROUPS == group)) for group in range(5)]))
    found = fit.kfold(5, rows, key=3)
    order = np.random.default_rng(np.asarray(jax.random.key_data(jax.random.key(3)))).permutation(NUM)
    folds = np.array_split(order, 5)
    truth = [predictive(next(fold for fold in folds if row in fold), row) for row in range(NUM)]
    check_against(found, np.array(truth))
    assert any(len(fits) == 2 for fits in found.refits.values())


def test_refits_on_a_pool_are_those_of_this_process(fit):
    sets = {0: np.array([0]), 4: np.arange(9)}
    here, there = (Refits(fit, pointwise(fit.target, rows), NUM, 1, 400, pool)(sets) for pool in (None, 1))
    for number, left in sets.items():
        np.testing.assert_array_equal(there[number].draws.log_ratio, here[number].draws.log_ratio)
        draws = there[number].draws
        expected = fit.target.log_prob(draws.x[:9]) - jax.vmap(rows)(draws.x[:9])[:, left].sum(axis=1)
        np.testing.assert_allclose(there[number].target.log_prob(draws.x[:9]), expected)
    with pytest.raises(TypeError, match="pool must be"):
        fit.loo(rows, pool="two")
    with pytest.raises(TypeError, match="pool must be"):
        fit.kfold(2, rows, pool="two")


def test_one_program_serves_all_rows(fit):
    function = pointwise(fit.target, rows)
    one, other = (without(fit.target, function, np.array([row]), NUM, -80.0) for row in (0, 1))
    assert one.names == fit.target.names
    x = np.ones(DIM)
    np.testing.assert_allclose(one.log_prob(x), fit.target.log_prob(x) - rows(x)[0])
    run = jax.jit(Target.log_prob)
    run(one, x)
    with compilations() as programs:
        value = run(other, x)
    assert programs == []
    np.testing.assert_allclose(value, fit.target.log_prob(x) - rows(x)[1])


def test_where_a_difference_has_no_digits_there_is_no_support():
    target = Target(lambda x: jnp.where(x > 0, -x - jnp.exp(x), -jnp.inf), 1.0)
    left = without(target, lambda x: jnp.stack([-x, -jnp.exp(x)]), np.array([1]), 2, -2.0)
    np.testing.assert_allclose(left.log_prob(np.array([[-1.0], [3.0], [50.0]])), [-np.inf, -3.0, -np.inf])


def test_light_weights_of_few_effective_draws_do_not_do():
    data = np.array([-1.0, -0.5, 0.0, 0.2, 0.4, 1.0, 1.3, 9.0])
    each = lambda x: -0.5 * (data - x) ** 2  # noqa: E731
    found = klover.refine(0, Target(lambda x: jnp.sum(each(x)) - x**2 / 18, 0.0)).loo(each)
    assert found.pareto_k[7] < 0
    variance = 1 / (7 + 1 / 9)
    truth = -0.5 * (9 - variance * data[:7].sum()) ** 2 / (1 + variance) - 0.5 * np.log1p(variance)
    assert list(found.refits) == [7]
    assert abs(found.elpd_i[7] - truth) < 4 * found.elpd_i_error[7]


def test_what_is_refused_is_named(loo):
    label, (refit,) = next(iter(loo.refits.items()))
    refused = dataclasses.replace(refit, verdict=dataclasses.replace(refit.verdict, trusted=False, reason="So it is."))
    found = dataclasses.replace(loo, refits=loo.refits | {label: (refused,)})
    assert found.refused == (label,)
    assert not found.trusted
    assert str(found).endswith(f"REFUSED: the refits of 1 rows, {label}. The first: So it is.")
    found = dataclasses.replace(loo, whole=refused.verdict)
    assert found.verdict.startswith("REFUSED: the fit of all data is refused. So it is.")


@needs("arviz")
@pytest.mark.filterwarnings("ignore:The inplace keyword")  # arviz 0.23 with pandas 3.1
def test_arviz_prints_and_compares_what_it_is_given(fit, loo):
    arviz = pytest.importorskip("arviz")
    assert f"{loo.elpd:.2f}" in str(loo.to_arviz())
    worse = fit.loo(lambda x: rows(x) - 0.1 * jnp.arange(NUM) / NUM)
    table = arviz.compare({"better": loo.to_arviz(), "worse": worse.to_arviz()})
    assert list(table.index) == ["better", "worse"]
    assert loo.to_arviz()["n_data_points"] == NUM
    grouped = fit.loo(rows, groups=np.array(["a", "b"])[GROUPS % 2]).to_arviz()
    assert list(np.asarray(grouped["pareto_k"].group)) == ["a", "b"]


@needs("arviz", "numpyro")
def test_a_models_own_log_likelihood_gives_what_arviz_computes_of_posterior_draws():
    arviz, numpyro = pytest.importorskip("arviz"), pytest.importorskip("numpyro")

    def model(y):
        mean = numpyro.sample("mean", numpyro.distributions.Normal(0, 3))
        scale = numpyro.sample("scale", numpyro.distributions.HalfNormal(2))
        numpyro.sample("y", numpyro.distributions.StudentT(4, mean, scale), obs=y)

    fit = klover.refine(0, klover.from_numpyro(model, np.array([-1.0, -0.5, 0.0, 0.2, 0.4, 1.0, 1.3, 5.0])))
    found, theirs = fit.loo(), arviz.loo(fit.to_arviz(), pointwise=True)
    pointwise = np.asarray(theirs["loo_i" if "loo_i" in dir(theirs) else "elpd_i"])
    assert np.abs(found.elpd_i - pointwise).max() < 0.05
    assert abs(found.se - theirs["se"]) < 0.05


def test_what_cannot_be_left_out_is_said(fit):
    with pytest.raises(ValueError, match="log_likelihood is needed"):
        fit.loo()
    with pytest.raises(ValueError, match="one number for each row"):
        fit.loo(lambda x: jnp.sum(rows(x)))
    with pytest.raises(ValueError, match="NaN or \\+inf in row 2"):
        fit.loo(lambda x: rows(x).at[2].set(jnp.nan))
    with pytest.raises(ValueError, match="groups must be 30 labels"):
        fit.loo(rows, groups=[1, 2])
    with pytest.raises(ValueError, match="num_folds"):
        fit.kfold(1, rows)
    refused = dataclasses.replace(fit, verdict=dataclasses.replace(fit.verdict, trusted=False))
    with pytest.warns(UserWarning, match="the fit is refused"):
        assert not refused.loo(lambda x: 0 * rows(x)).trusted
