import concurrent.futures
import pickle
import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import klover
from klover.targets.adapters.callback import from_callback
from klover.targets.adapters.host import SAFE_BYTES
from klover.targets.evaluator import Evaluator
from klover.verdict.status import Status
from klover.workers.errors import PoolGone
from klover.workers.plain import Alone
from pool_functions import RAISING, bell, bell_gradient, fragile, raising

INFINITY, NAN = np.inf, np.nan
BOUNDS = (np.array([-INFINITY, 0.0, -2.0, 1.0]), np.array([INFINITY, INFINITY, 3.0, 4.0]))
KINDS = {
    "free": (-INFINITY, INFINITY),
    "lower": (-1.5, INFINITY),
    "upper": (-INFINITY, 2.5),
    "both": (-1.5, 2.5),
    "unit": (0.0, 1.0),
}


class Counter:
    def __init__(self, function):
        self.function, self.shapes = function, []

    def __call__(self, x):
        self.shapes.append(x.shape)
        return self.function(x)


def points(num, dim=4, seed=0):
    return np.random.default_rng(seed).normal(size=(num, dim))


@pytest.mark.parametrize("vectorized", [False, True])
@pytest.mark.parametrize("gradient", [None, bell_gradient])
def test_values_are_those_of_the_function(vectorized, gradient):
    target, x = from_callback(bell, 4, grad=gradient, vectorized=vectorized), points(7)
    np.testing.assert_allclose(target.log_prob(x), bell(x), rtol=1e-14)
    np.testing.assert_allclose(target.log_prob(x[0]), bell(x[0]), rtol=1e-14)
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.vmap(target.log_prob)))(x.reshape(7, 1, 4))[:, 0], bell(x))
    assert target.log_prob(np.zeros((0, 4))).shape == (0,)
    assert Evaluator(target).has_gradient == (gradient is not None)


def test_a_block_is_one_call_and_its_filling_is_not_evaluated():
    counter = Counter(bell)
    evaluator = Evaluator(from_callback(counter, 4, vectorized=True))
    counter.shapes.clear()
    np.testing.assert_allclose(evaluator.values(points(1030)), bell(points(1030)), rtol=1e-14)
    assert counter.shapes == [(1024, 4), (6, 4)]


def test_large_blocks_are_several_calls_of_safe_size():
    """On one core JAX never ends to copy a larger argument of a callback."""
    sizes = []

    def counted(x):
        sizes.append(x.nbytes)
        return -0.5 * (x**2).sum(1)

    target = klover.from_callback(counted, 100, vectorized=True)
    x = points(300, 100)
    np.testing.assert_allclose(jax.jit(jax.vmap(target.log_prob))(x), -0.5 * (x**2).sum(1))
    nested = jax.vmap(jax.vmap(target.log_prob))(x.reshape(3, 100, 100))
    np.testing.assert_allclose(nested, -0.5 * (x**2).sum(1).reshape(3, 100))
    assert max(sizes) < SAFE_BYTES


def test_a_value_with_its_gradient_calls_each_function_once():
    value, gradient = Counter(bell), Counter(bell_gradient)
    target, x = from_callback(value, 4, grad=gradient), points(3)
    value.shapes.clear()
    gradient.shapes.clear()
    found = jax.jit(jax.vmap(jax.value_and_grad(target.log_prob)))(x)
    np.testing.assert_allclose(found[0], bell(x), rtol=1e-14)
    np.testing.assert_allclose(found[1], bell_gradient(x), rtol=1e-14)
    assert (value.shapes, gradient.shapes) == ([(4,)] * 3, [(4,)] * 3)


def test_no_gradient_is_asked_for_where_there_is_no_value():
    def slope(x):
        assert x[0] > 0
        return 1 / x

    target = from_callback(lambda x: np.log(x[0]) if x[0] > 0 else -INFINITY, 1, grad=slope, start=[1.0])
    value, gradient = Evaluator(target).values_and_gradients(np.array([[2.0], [-1.0]]))
    np.testing.assert_allclose(value, [np.log(2), -INFINITY])
    np.testing.assert_allclose(gradient, [[0.5], [0.0]])


@pytest.mark.parametrize("vectorized", [False, True])
def test_gradients_are_those_of_finite_differences(vectorized):
    target = from_callback(bell, 4, grad=bell_gradient, bounds=BOUNDS, vectorized=vectorized)
    x, steps = points(5), 1e-6 * np.concatenate([np.eye(4), -np.eye(4)])
    beside = jax.jit(target.log_prob)((x[:, None] + steps).reshape(-1, 4)).reshape(5, 2, 4)
    numeric = (beside[:, 0] - beside[:, 1]) / 2e-6
    gradient = jax.jit(jax.vmap(jax.grad(target.log_prob)))(x)
    np.testing.assert_allclose(gradient, numeric, rtol=1e-7, atol=1e-8)
    _, tangent = jax.jit(lambda x: jax.jvp(target.log_prob, (x,), (jnp.ones(4),)))(x[0])
    np.testing.assert_allclose(tangent, gradient[0].sum(), rtol=1e-12)


@pytest.mark.parametrize("bounds", KINDS.values(), ids=KINDS)
def test_the_density_has_the_jacobian_of_the_bounds(bounds):
    target = from_callback(bell, 1, bounds=bounds)
    u = np.linspace(-6.0, 6.0, 13)[:, None]
    x, slope = jax.jit(jax.vmap(lambda each: (target.position(each), jax.jacfwd(target.position)(each)[0, 0])))(u)
    assert ((bounds[0] < x) & (x < bounds[1])).all()
    expected = bell(np.asarray(x)) + np.log(np.abs(slope))
    np.testing.assert_allclose(jax.jit(target.log_prob)(u), expected, rtol=1e-12)
    back = jax.jit(jax.vmap(target.model_info.unconstrain))({"x": x})
    np.testing.assert_allclose(back, u, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("is_double", [True, False])
@pytest.mark.parametrize("bounds", KINDS.values(), ids=KINDS)
def test_far_out_points_stay_inside_the_bounds_and_values_finite(bounds, is_double):
    with jax.enable_x64(is_double):
        target = from_callback(
            lambda x: -np.log1p(np.abs(x[0])), 1, grad=lambda x: -np.sign(x) / (1 + np.abs(x)), bounds=bounds
        )
        u = np.array([[-1e30], [-1e6], [-800.0], [-90.0], [90.0], [800.0], [1e6], [1e30]])
        u = u.astype(target.start.dtype)
        x = np.asarray(jax.jit(jax.vmap(target.position))(u))
        value, gradient = jax.jit(jax.vmap(jax.value_and_grad(target.log_prob)))(u)
    assert x.dtype == (np.float64 if is_double else np.float32)
    assert ((bounds[0] < x) & (x < bounds[1]) & np.isfinite(x)).all()
    assert np.isfinite(value).all()
    assert np.isfinite(gradient).all()


KNOWN = {
    "gamma": (stats.gamma(2.5, scale=0.5), (0.0, INFINITY)),
    "exponential": (stats.expon(), (0.0, INFINITY)),
    "beta": (stats.beta(0.5, 3.0), (0.0, 1.0)),
    "scaled beta": (stats.beta(4.0, 2.0, loc=-3.0, scale=7.0), (-3.0, 4.0)),
    "truncated normal": (stats.truncnorm(-INFINITY, 0.7), (-INFINITY, 0.7)),
    "doubly truncated normal": (stats.truncnorm(-1.0, 0.5), (-1.0, 0.5)),
}


@pytest.mark.parametrize(("density", "bounds"), KNOWN.values(), ids=KNOWN)
def test_bounded_densities_integrate_to_one(density, bounds):
    target = from_callback(lambda x: density.logpdf(x[:, 0]), 1, bounds=bounds, vectorized=True)
    # The trapezium rule converges exponentially for smooth functions that vanish at both ends.
    grid = np.linspace(-60.0, 60.0, 6001)
    value = np.exp(target.log_prob(grid[:, None]))
    assert abs(value.sum() * (grid[1] - grid[0]) - 1.0) < 1e-10


def assert_right(fit, log_evidence):
    assert fit.verdict.trusted, fit.verdict
    assert abs(fit.log_evidence - log_evidence) < 5 * fit.log_evidence_se


def beta(first, second, lower=0.0, upper=1.0):
    """Return the log density of independent Beta variables between bounds, and its gradient."""
    constant = -special.betaln(first, second) - (first + second - 1) * np.log(upper - lower)

    def logdensity(x):
        return ((first - 1) * np.log(x - lower) + (second - 1) * np.log(upper - x) + constant).sum(-1)

    return logdensity, lambda x: (first - 1) / (x - lower) - (second - 1) / (upper - x)


CROWDED = {
    "both bounds, single precision": (0.1, 0.1, False, {}),
    "both bounds, double precision": (0.01, 0.01, True, {}),
    "upper bound": (3.0, 0.1, True, {}),
    "lower bound that is not 0": (0.1, 3.0, True, {"lower": 1.0, "upper": 2.0}),
}


@pytest.mark.parametrize(("first", "second", "is_double", "bounds"), CROWDED.values(), ids=CROWDED)
def test_a_posterior_that_crowds_at_a_bound_is_refused(getkey, first, second, is_double, bounds):
    logdensity, gradient = beta(first, second, **bounds)
    with jax.enable_x64(is_double):
        given = bounds.get("lower", 0.0), bounds.get("upper", 1.0)
        fit = klover.refine(getkey(), from_callback(logdensity, 2, grad=gradient, vectorized=True, bounds=given))
    assert fit.verdict.status is Status.COARSE_NUMBERS, fit.verdict
    assert "rounds to its bound" in fit.verdict.reason


@pytest.mark.parametrize(("first", "second", "is_double"), [(0.1, 3.0, True), (0.5, 0.5, False), (0.25, 0.25, True)])
def test_a_posterior_that_numbers_resolve_is_right_at_its_bounds(getkey, first, second, is_double):
    logdensity, gradient = beta(first, second)
    with jax.enable_x64(is_double):
        fit = klover.refine(getkey(), from_callback(logdensity, 2, grad=gradient, vectorized=True, bounds=(0.0, 1.0)))
    assert_right(fit, 0.0)


def test_refine_without_a_gradient(getkey):
    target = from_callback(bell, 2, vectorized=True)
    assert_right(klover.refine(getkey(), target), 0.0)
    assert target.model_info.failures.num_raised == 0


def test_refine_with_a_gradient_and_bounds(getkey):
    gamma, beta = stats.gamma(2.5, scale=0.5), stats.beta(2.0, 3.0)

    def logdensity(x):
        return gamma.logpdf(x[:, 0]) + beta.logpdf(x[:, 1]) + 1.3

    def gradient(x):
        return np.stack([1.5 / x[:, 0] - 2.0, 1.0 / x[:, 1] - 2.0 / (1.0 - x[:, 1])], axis=1)

    target = from_callback(
        logdensity, 2, grad=gradient, vectorized=True, bounds=([0, 0], [INFINITY, 1]), names=["rate", "share"]
    )
    fit = klover.refine(getkey(), target)
    assert_right(fit, 1.3)
    table = fit.summary()
    assert table.names == ("rate", "share")
    assert (np.abs(table.columns["mean"] - [1.25, 0.4]) < 5 * table.columns["mcse"]).all()
    position = {"rate": np.asarray(1.25), "share": np.asarray(0.4)}
    np.testing.assert_allclose(target.model_info.unconstrain(position), [np.log(1.25), np.log(0.4 / 0.6)], rtol=1e-12)


@pytest.mark.parametrize("vectorized", [False, True])
def test_points_that_raise_are_not_a_number_and_the_first_is_named(vectorized):
    def half(x):
        if np.any(x[..., 0] < 0.0):
            raise ArithmeticError("below the table")
        return bell(x)

    target, x = from_callback(half, 4, vectorized=vectorized), points(30)
    with pytest.warns(UserWarning, match=r"ArithmeticError: below the table, at np.array.* outside the support"):
        value = np.asarray(target.log_prob(x))
    np.testing.assert_array_equal(target.log_prob(x), value)  # without a second warning
    is_bad = x[:, 0] < 0.0
    np.testing.assert_allclose(value, np.where(is_bad, np.nan, bell(x)), rtol=1e-14)
    failures = target.model_info.failures
    assert failures.num_raised == 2 * is_bad.sum()
    np.testing.assert_array_equal(failures.point, x[is_bad][0])
    assert isinstance(failures.error, ArithmeticError)


def test_half_of_the_space_that_raises_may_hide_half_of_the_posterior(getkey):
    def half(x):
        if x[0] < 1.0:
            raise ArithmeticError("below the table")
        return bell(x)

    with pytest.warns(UserWarning, match="ArithmeticError: below the table"):
        fit = klover.refine(getkey(), from_callback(half, 1, start=[2.0]))
    assert fit.verdict.status is klover.Status.NOT_A_NUMBER
    assert "return -inf outside its support" in fit.verdict.remedy


@pytest.mark.parametrize(("value", "is_trusted"), [(np.nan, False), (-np.inf, True)])
def test_a_density_that_is_no_number_is_refused_and_one_that_is_zero_is_not(getkey, value, is_trusted):
    target = from_callback(lambda x: np.where(x[:, 0] < 3.0, bell(x), value), 2, vectorized=True)
    fit = klover.refine(getkey(), target)
    assert target.model_info.failures.num_raised == 0
    assert fit.verdict.trusted is is_trusted
    assert abs(fit.log_evidence - stats.norm.logcdf(2.0)) < 5 * fit.log_evidence_se
    if not is_trusted:
        assert fit.verdict.status is klover.Status.NOT_A_NUMBER


def raise_beyond(x):
    if x[0] > 1.0:
        raise LookupError("beyond the table")
    return bell(x)


def test_errors_are_thrown_if_asked_for(caplog):
    target = from_callback(raise_beyond, 2, throw=True)
    message = "the log density raised LookupError: beyond the table, at np.array([2., 3.])"
    with pytest.raises(jax.errors.JaxRuntimeError, match=re.escape(message)):
        target.log_prob(np.array([[0.0, 1.0], [2.0, 3.0]])).block_until_ready()
    assert str(target.model_info.failures) == message
    assert isinstance(target.model_info.failures.error, LookupError)


def test_a_gradient_may_raise():
    target = from_callback(bell, 2, grad=lambda x: raise_beyond(x) * 0 + bell_gradient(x))
    with pytest.warns(UserWarning, match="beyond the table"):
        value, gradient = Evaluator(target).values_and_gradients(np.array([[0.0, 1.0], [2.0, 3.0]]))
    np.testing.assert_allclose(value, bell(np.array([[0.0, 1.0], [2.0, 3.0]])))
    np.testing.assert_allclose(gradient, [[1.0, 0.0], [0.0, 0.0]])


class Serial:
    """A pool that has nothing but ``map``, and remembers how many chunks it was given."""

    num_chunks = 0

    def map(self, function, chunks):
        self.num_chunks += len(chunks)
        return map(function, chunks)


@pytest.mark.parametrize("kind", ["executor", "map"])
def test_a_pool_finds_what_this_process_finds(kind):
    x = points(9)
    x[4, 0] = RAISING
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        pool = executor if kind == "executor" else Serial()
        target = from_callback(raising, 4, pool=pool)
        with pytest.warns(UserWarning, match="Awkward: beyond the table, at np.array"):
            value = np.asarray(target.log_prob(x))
        np.testing.assert_array_equal(value, from_callback(bell, 4).log_prob(x) + np.where(x[:, 0] == RAISING, NAN, 0))
        assert target.model_info.failures.num_raised == 1
        both = from_callback(bell, 4, grad=bell_gradient, pool=pool, vectorized=True)
        np.testing.assert_allclose(jax.vmap(jax.grad(both.log_prob))(x), bell_gradient(x), rtol=1e-14)
        assert executor.submit(abs, -1).result() == 1  # the user's pool stays open
    assert kind == "executor" or pool.num_chunks > 2


def test_a_fit_names_the_points_that_ended_their_processes(getkey):
    target = from_callback(fragile, 2, pool=2)
    with pytest.warns(UserWarning, match="was given up at np.array.*the process that evaluated it has died"):
        fit = klover.refine(getkey(), target, min_ess=100)
    num = len(target.model_info.failures.quarantined)
    assert num > 0
    assert "The evaluation was given up at np.array([" in fit.verdict.reason
    assert target.model_info.crew._workers.engine._processes == []  # they ended with the fit


def test_a_pool_that_is_gone_ends_the_fit_and_says_so(getkey):
    executor = concurrent.futures.ThreadPoolExecutor(1)
    target = from_callback(bell, 2, pool=executor)
    executor.shutdown()
    with pytest.raises(PoolGone, match="pool=ThreadPoolExecutor is gone: cannot schedule new futures after shutdown"):
        klover.refine(getkey(), target)
    fit = klover.refine(getkey(), target, pool=Serial(), min_ess=100)
    assert fit.verdict.trusted


def test_a_pool_of_processes_travels_with_a_target_and_others_do_not():
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        targets = [from_callback(bell, 2, pool=pool, timeout=9.0) for pool in (2, executor)]
    engines = [pickle.loads(pickle.dumps(target)).model_info.crew._workers for target in targets]
    assert engines[0].engine.num_workers == 2
    assert engines[0].timeout == 9.0
    assert isinstance(engines[1], Alone)


def test_a_function_that_cannot_travel_is_refused_at_the_door():
    lock = threading.Lock()
    with pytest.raises(TypeError, match="logdensity cannot be sent to other processes.*Define it at the top level"):
        from_callback(lambda x: bell(x) + 0 * lock.locked(), 2, pool=2)


def test_a_density_of_jax_takes_no_pool(getkey):
    with pytest.raises(ValueError, match="uses all cores and devices already"):
        klover.refine(getkey(), klover.Target(lambda x: -0.5 * x**2, 0.0), pool=2)


def test_start_is_on_the_natural_scale():
    target = from_callback(bell, 4, bounds=BOUNDS, start=[1.0, 0.5, 2.0, 1.5])
    np.testing.assert_allclose(target.position(target.start), [1.0, 0.5, 2.0, 1.5], rtol=1e-14)
    np.testing.assert_allclose(from_callback(bell, 4, bounds=BOUNDS).position(np.zeros(4)), [0.0, 1.0, 0.5, 2.5])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 0}, "dim must be a whole number of at least 1"),
        ({"pool": 0}, "pool must be a whole number of at least 1"),
        ({"timeout": 1.0}, "timeout= needs workers that can be done without"),
        ({"pool": 2, "timeout": 0}, "timeout must be one finite number above 0"),
        ({"bounds": (1.0, 1.0)}, "lower below upper"),
        ({"bounds": (np.nan, 1.0)}, "lower below upper"),
        ({"bounds": (np.zeros(3), 1.0)}, r"bounds must be \(lower, upper\), each one number or 2 of them"),
        ({"bounds": (0.0, 1.0, 2.0)}, r"bounds must be \(lower, upper\), each one number or 2 of them"),
        ({"bounds": (0.0, 1.0), "start": [0.5, 1.0]}, "start must be a point of 2 numbers strictly inside"),
        ({"start": [0.5]}, "start must be a point of 2 numbers"),
        ({"names": ["a"]}, "names must hold 2 names"),
        ({"logdensity": lambda x: x}, r"logdensity must return real numbers of shape \(\).*vectorized=True"),
        ({"logdensity": lambda x: "high"}, "logdensity must return real numbers"),
        ({"vectorized": True, "logdensity": np.sum}, r"logdensity must return real numbers of shape \(2,\)"),
        ({"grad": bell}, r"grad must return real numbers of shape \(2,\)"),
    ],
)
def test_bad_arguments(arguments, message):
    given = {"logdensity": bell, "dim": 2} | arguments
    with pytest.raises(ValueError, match=message):
        getattr(from_callback, "__wrapped__", from_callback)(**given)


def test_what_is_no_function_is_refused():
    refused = getattr(from_callback, "__wrapped__", from_callback)
    with pytest.raises(TypeError, match="pool must be a whole number of processes, a concurrent.futures.Executor"):
        refused(bell, 2, pool="four")
    for arguments in ({"logdensity": 1.0}, {"grad": 1.0}):
        with pytest.raises(TypeError, match="must be a function of NumPy arrays, got a float"):
            refused(**({"logdensity": bell, "dim": 2} | arguments))


def test_an_error_at_the_start_comes_at_once():
    with pytest.raises(NameError) as caught:
        from_callback(lambda x: undefined(x), 2)  # noqa: F821 # pyright: ignore[reportUndefinedVariable]
    assert "logdensity failed at the start, np.array([0., 0.])" in caught.value.__notes__[0]


def test_position_in_single_precision():
    with jax.enable_x64(False):
        target = from_callback(bell, 2, grad=bell_gradient)
        value, gradient = jax.value_and_grad(target.log_prob)(jnp.zeros(2))
    assert (value.dtype, gradient.dtype) == (np.float32, np.float32)
    np.testing.assert_allclose(value, bell(np.zeros(2)), rtol=1e-6)


def test_refine_throws_what_the_user_wants_thrown(getkey):
    def half(x):
        if x[0] < 0:
            raise ZeroDivisionError("no root")
        return -0.5 * float(x @ x)

    target = from_callback(half, 1, start=[2.0], throw=True)
    with pytest.raises(RuntimeError, match="raised ZeroDivisionError: no root, at np.array"):
        klover.refine(getkey(), target)
