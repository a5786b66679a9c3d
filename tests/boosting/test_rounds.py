"""The rounds of boosting: pure, batched, invariant, and as fast as the theory says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from helpers import two_gaussians
from klover.boosting import rounds
from klover.boosting.settings import Settings
from klover.importance.draws import weigh
from klover.paper import simulations

EM = {"fitter": "em", "newcomer": "gain", "weights": "newton", "draws": "current", "num_steps": 10}
QUICK_ADAM = {"num_steps": 60, "num_round_draws": 300, "num_draws_per_step": 40}


CONFIGURATIONS = {
    "paper": {},
    "paper-current": {"draws": "current"},
    "paper-remainder": {"approach": "remainder"},
    "paper-smoothed": {"log_epsilon": -10.0},
    "reverse": {"divergence": "reverse"},
    "reverse-remainder": {"divergence": "reverse", "approach": "remainder", "weights": "none"},
    "em-student-all": EM | {"family": klover.Family("student"), "update": "all", "num_round_draws": 300},
    "em-low-rank-previous": EM
    | {"family": klover.Family("normal", "low-rank"), "draws": "previous", "weights": "em", "num_round_draws": 300},
    "em-remainder-newcomer": EM
    | {"approach": "remainder", "draws": "newcomer", "newcomer": "lbfgs", "num_round_draws": 300},
}


# Each compiles a program of its own: these have every choice once, the others follow in `make test-all`.
FEW = (
    "paper",
    "paper-smoothed",
    "reverse-remainder",
    "em-student-all",
    "em-low-rank-previous",
    "em-remainder-newcomer",
)


# The first component, too, is fitted once in each way; the others begin with a given one, which is less to compile.
FITTED = ("paper", "reverse", "reverse-remainder", "em-low-rank-previous")


def settings_of(name: str) -> Settings:
    choices = CONFIGURATIONS[name]
    return Settings(max_components=2, **(choices if "fitter" in choices else QUICK_ADAM | choices))


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "float64") for name in CONFIGURATIONS), ("paper", "float32"), ("reverse", "float32")]
)
def test_no_number_changes_its_type_unasked(name, dtype):
    settings = settings_of(name)

    def run(key):
        target = klover.Target(two_gaussians(), jnp.zeros(2))
        state, info = rounds.init(key, target, settings, settings.divergence)
        state, info = rounds.grow(key, state, info, target, settings, 1, 2)
        draws = weigh(target, state.draws.x, state.draws.log_source, state.mixture)
        return jax.tree.leaves((state, info, draws))

    with jax.enable_x64(dtype == "float64"), jax.numpy_dtype_promotion("strict"):
        found = jax.eval_shape(run, jax.random.key(0))
    assert {leaf.dtype for leaf in found if leaf.dtype.kind == "f"} == {np.dtype(dtype)}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in CONFIGURATIONS]
)
def test_a_constant_in_log_p_moves_the_evidence_and_nothing_else(name, getkey):
    settings, logdensity, key = settings_of(name), two_gaussians(), getkey()
    given = klover.diffuse([-4.0, -4.0], [4.0, 4.0], settings.family)
    start = settings.divergence if name in FITTED else given

    @jax.jit
    def run(shift):
        target = klover.Target(lambda x: logdensity(x) + shift, jnp.zeros(2))
        state, first_info = rounds.init(jax.random.fold_in(key, 0), target, settings, start)
        state, info = rounds.step(jax.random.fold_in(key, 1), state, target, settings)
        draws = weigh(target, state.draws.x, state.draws.log_source)
        return state.mixture, first_info, info, draws

    reference = run(0.0)
    for shift in (1e4, -1e4):
        mixture, first_info, info, draws = run(shift)
        np.testing.assert_allclose(mixture.weights, reference[0].weights, atol=1e-6)
        # A component of no weight is nowhere in particular.
        used = np.asarray(mixture.weights) > 1e-6
        moved, kept = (
            (tree.components.location, tree.components.spread.covariance()) for tree in (mixture, reference[0])
        )
        for leaf, expected in zip(moved, kept, strict=True):
            np.testing.assert_allclose(leaf[used], expected[used], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(draws.x, reference[3].x, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(draws.log_weight, reference[3].log_weight, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(draws.pareto_k, reference[3].pareto_k, atol=1e-3)
        for shifted, plain in ((first_info, reference[1]), (info, reference[2])):
            assert shifted.log_evidence - plain.log_evidence == pytest.approx(shift, rel=1e-6)
            for field in ("forward_kl", "ess_share", "pareto_k", "gamma", "kkt_gap"):
                assert getattr(shifted, field) == pytest.approx(float(getattr(plain, field)), rel=1e-4, abs=1e-5)


@pytest.mark.slow
def test_a_traced_end_gives_what_round_after_round_gives(getkey):
    settings = Settings(max_components=3, **QUICK_ADAM)
    target = klover.Target(two_gaussians(), jnp.zeros(2))
    key_start, key_rounds = getkey(), getkey()
    state, info = jax.jit(lambda key: rounds.init(key, target, settings))(key_start)
    grow = jax.jit(lambda state, info, last: rounds.grow(key_rounds, state, info, target, settings, 1, last))
    seen = []
    rounds.run(key_start, key_rounds, target, settings, "reverse", lambda state, info: seen.append((state, info)))
    for last, expected in zip((1, 2, 3), seen, strict=True):
        for leaf, other in zip(jax.tree.leaves(grow(state, info, last)), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(leaf, other, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_batched_equals_looped_over_keys_and_data():
    settings = Settings(max_components=2, family=klover.Family("normal"), num_round_draws=200, **EM)
    offsets = jnp.array([1.5, 2.5])
    keys = jax.random.split(jax.random.key(3), 2)

    def run(key, offset):
        target = klover.Target(two_gaussians(offset), jnp.zeros(2))
        state, info = rounds.init(key, target, settings, "forward")
        return rounds.grow(key, state, info, target, settings, 1, 2)

    batched, alone = jax.jit(jax.vmap(run))(keys, offsets), jax.jit(run)
    looped = [alone(key, offset) for key, offset in zip(keys, offsets, strict=True)]
    for index, single in enumerate(looped):
        for leaf, expected in zip(jax.tree.leaves(batched), jax.tree.leaves(single), strict=True):
            np.testing.assert_allclose(leaf[index], expected, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
def test_kl_falls_at_least_as_fast_as_one_over_k(getkey):
    # Six unequal Gaussians on the line: a target in the convex hull of the family, by greedy newcomers alone.
    locations = jnp.array([-6.0, -3.0, -1.0, 1.0, 4.0, 7.0])[:, None]
    scales = jnp.array([0.5, 1.0, 0.3, 0.8, 0.4, 1.2])

    def logdensity(x):
        distance = jnp.sum((x - locations) ** 2, axis=1) / scales**2
        return jax.nn.logsumexp(-0.5 * distance - jnp.log(scales)) - jnp.log(6) - 0.5 * jnp.log(2 * jnp.pi)

    target = klover.Target(logdensity, jnp.zeros(1))
    settings = Settings(max_components=20, family=klover.Family("normal"), num_round_draws=20_000, **EM)
    start = klover.diffuse([-10.0], [10.0], "normal")
    values = []

    def report(state, info):
        values.append(simulations.forward_kl_by_quadrature(target, state.mixture, -15.0, 15.0))

    rounds.run(getkey(), getkey(), target, settings, start, report)
    numbers = np.arange(1, 21)
    # The constant C of the bound C/K shows in the first rounds, and no later round may exceed it.
    products = np.array(values) * numbers
    assert products[5:].max() <= products[:5].max()
    assert np.polyfit(np.log(numbers), np.log(values), 1)[0] <= -1
