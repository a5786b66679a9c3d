"""Every family's evidence and moments, by an integral or an estimate that knows nothing of how they were made."""

import jax
import numpy as np
import pytest
from benchmarks.reliability import case, truth
from scipy.special import gammaln, logsumexp

from helpers import needs

# One or two dimensions: the integral is a sum over a grid, equidistant on the scale of asinh.
GRID = [
    "gaussian/5",
    "mixture/1",
    "product/6",
    "halo/3",
    "halo/7",
    "student/3",
    "warped_mixture/1",
    "warped_mixture/5",
    "rotated_product/7",
    "banana/0",
    "funnel/7",
    "sinh_arcsinh/1",
    "sinh_arcsinh/2",
    "tiny_product/1",
    "tiny_product/2",
    "lattice/6",
    "shell/6",
    "flat_body/3",
    "staircase/2",
    "trigonometric/1",
    "gaussian_process/0",
    "rounded/0",
    "conjugate_regression/5",
    "callback_bounds/2",
    "transformed_bounds/0",
    "simplex/2",
    "ordered/1",
    "values_only/1",
    "values_only/6",
    "float32/0",
]
# More dimensions, with exact draws: bridge sampling against a Student-t.
BRIDGE = [
    "gaussian/6",
    "mixture/6",
    "product/0",
    "rotated_product/3",
    "funnel/4",
    "warped_product/7",
    "warped_student/1",
]
BRIDGE += ["shell/2", "flat_body/0", "staircase/0", "values_only/0", "sinh_arcsinh/5", "student/4"]
HIERARCHIES = ["hierarchy/2", "hierarchy/3"]
# Other members of families that are here already; they follow in `make test-all`.
REPEATED = ["halo/7", "warped_mixture/5", "sinh_arcsinh/1", "tiny_product/2", "values_only/6", "values_only/0"]
REPEATED += ["sinh_arcsinh/5", "hierarchy/3"]
NUM_NODES, REACH = {1: 200_001, 2: 601}, {1: 20.0, 2: 8.0}
STEP = {1: 0.05, 2: 0.25}


def each_of(names):
    """Return the names as parameters, those marked slow that repeat a family."""
    return [pytest.param(name, marks=pytest.mark.slow if name in REPEATED else ()) for name in names]


def evaluate(made, x):
    """Return the target's log density at points, block by block, with -inf where it is not a number."""
    with made.precision():
        program = jax.jit(jax.vmap(made.target.log_prob))
        size = 2**15
        padded = np.concatenate([x, np.broadcast_to(x[-1], (-len(x) % size, x.shape[1]))])
        values = [np.asarray(program(padded[at : at + size]), float) for at in range(0, len(padded), size)]
    values = np.concatenate(values)[: len(x)]
    return np.where(np.isnan(values), -np.inf, values)


def on_grid(made):
    """Return log Z, means and standard deviations by a sum over a grid x = m + w sinh(s)."""
    dim, known = made.target.dim, made.truth
    # Of a bounded parameter the moments are on another scale than the grid.
    is_flat = made.density is not None and known.mean is not None and made.family not in BOUNDED
    centre, sd = (known.mean, known.sd) if is_flat else (np.zeros(dim), np.ones(dim))
    s = np.linspace(-REACH[dim], REACH[dim], NUM_NODES[dim])
    nodes = np.stack(np.meshgrid(*dim * [s], indexing="ij"), axis=-1).reshape(-1, dim)
    width = STEP[dim] * sd
    x = centre + width * np.sinh(nodes)
    log = evaluate(made, x) + np.log(width * np.cosh(nodes)).sum(1)
    total = logsumexp(log)
    weight = np.exp(log - total)
    kept = weight > 1e-15
    values, weight = np.asarray(made.target.flat_position(x[kept]), float), weight[kept]
    mean = weight @ values
    return total + dim * np.log(s[1] - s[0]), mean, np.sqrt(weight @ (values - mean) ** 2)


BOUNDED = ("callback_bounds", "transformed_bounds", "ordered", "simplex")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a grid reaches to where a callback's numbers overflow
@pytest.mark.parametrize("name", each_of(GRID))
def test_answers_are_those_of_a_grid(name):
    made = case.build(f"known/dev/{name}")
    log_evidence, mean, sd = on_grid(made)
    # Edges are resolved to a node, and float32 has seven digits.
    assert log_evidence == pytest.approx(made.truth.log_evidence, abs=2e-3)
    if made.truth.mean is not None:
        tolerance = 5 * made.truth.mean_se + 2e-3 * made.truth.sd
        assert (np.abs(mean - made.truth.mean) < tolerance).all()
        error = np.abs(sd - made.truth.sd) < 5 * made.truth.sd_se + 2e-3 * made.truth.sd
        assert error[np.broadcast_to(made.truth.has_sd, error.shape)].all()


def student(generator, x, df=4.0):
    """Fit a Student-t to points by quantiles and correlations; return draws of it and its log density."""
    middle, low, high = np.percentile(x, [50, 16, 84], axis=0)
    scale, dim = (high - low) / 2, x.shape[1]
    white = (x - middle) / scale
    factor = np.linalg.cholesky(np.cov(white[(np.abs(white) < 10).all(1)].T))
    step = generator.normal(size=x.shape) / np.sqrt(generator.chisquare(df, size=(len(x), 1)) / df)

    def log_prob(points):
        distance = np.sum(np.linalg.solve(factor, ((points - middle) / scale).T) ** 2, axis=0)
        log = gammaln((df + dim) / 2) - gammaln(df / 2) - 0.5 * dim * np.log(df * np.pi)
        return log - np.log(scale * np.diagonal(factor)).sum() - 0.5 * (df + dim) * np.log1p(distance / df)

    return middle + scale * (step @ factor.T), log_prob


@pytest.mark.parametrize("name", each_of(BRIDGE))
def test_evidence_is_that_of_bridge_sampling(name):
    """With draws of p and of q, log Z is where the optimal bridge's two means agree (Meng & Wong 1996)."""
    made, generator, num = case.build(f"known/dev/{name}"), np.random.default_rng(0), 2**14
    x = made.density.sample(generator, 2 * num)
    y, log_q = student(generator, x[num:])
    x = x[:num]
    at_x, at_y = evaluate(made, x) - log_q(x), evaluate(made, y) - log_q(y)
    log_z = np.median(at_x)
    for _ in range(100):
        log_z = logsumexp(at_y - np.logaddexp(at_y, log_z)) - logsumexp(-np.logaddexp(at_x, log_z))
    means = np.exp(at_y - np.logaddexp(at_y, log_z)), np.exp(log_z - np.logaddexp(at_x, log_z))
    error = np.sqrt(sum(each.var() / each.mean() ** 2 for each in means) / num)
    assert error < 0.05
    assert abs(log_z - made.truth.log_evidence) < 5 * error


@pytest.mark.parametrize("name", each_of(HIERARCHIES))
def test_a_hierarchy_has_the_answers_of_importance_sampling(name):
    made, generator, num = case.build(f"known/dev/{name}"), np.random.default_rng(0), 2**18
    mean, sd = made.truth.mean, made.truth.sd
    step = generator.standard_t(4, size=(num, len(mean)))
    log_q = gammaln(2.5) - gammaln(2) - 0.5 * np.log(4 * np.pi) - 2.5 * np.log1p(step**2 / 4) - np.log(1.3 * sd)
    x = mean + 1.3 * sd * step
    log_ratio = evaluate(made, x) - log_q.sum(1)
    weight = np.exp(log_ratio - logsumexp(log_ratio))
    error = np.sqrt(np.sum(weight**2))
    assert error < 0.02
    assert abs(logsumexp(log_ratio) - np.log(num) - made.truth.log_evidence) < 5 * error
    found = weight @ x
    assert (np.abs(found - mean) < 5 * np.sqrt(weight**2 @ (x - found) ** 2)).all()
    assert (np.abs(np.sqrt(weight @ (x - found) ** 2) / sd - 1) < 0.05).all()


@pytest.mark.parametrize("family", case.families_of("known"))
def test_moments_are_those_of_exact_draws(family):
    made = case.build(f"known/dev/{family}/0")
    density = made.density
    if density.sample is None or made.truth.mean is None:
        assert density.moments is not None or density.tail <= 2  # by quadrature, or there are none
        return
    sampled = truth.sampled_moments(density, np.random.default_rng(1), 2**16)
    errors = np.hypot(sampled.mean_se, made.truth.mean_se)
    assert (np.abs(sampled.mean - made.truth.mean) < 5 * errors).all()
    close = np.abs(sampled.sd - made.truth.sd) < 5 * np.hypot(sampled.sd_se, made.truth.sd_se)
    assert close[np.broadcast_to(made.truth.has_sd, close.shape)].all()


@needs("numpyro")
@pytest.mark.parametrize("name", ["normal_mean/0", "beta_binomial/0", "gamma_poisson/0"])
def test_conjugate_models_have_the_evidence_of_a_grid(name):
    made = case.build(f"sbc/dev/{name}")
    assert on_grid(made)[0] == pytest.approx(made.truth.log_evidence, abs=1e-6)


@pytest.mark.parametrize("family", ["jump", "needle", "log_uniform", "far_narrow"])
def test_adversarial_answers_are_those_of_a_grid(family):
    number = next(at for at in range(40) if case.build(f"adversarial/dev/{family}/{at}").target.dim == 1)
    made = case.build(f"adversarial/dev/{family}/{number}")
    log_evidence, mean, sd = on_grid(made)
    assert log_evidence == pytest.approx(made.truth.log_evidence, abs=2e-3)
    assert (np.abs(mean - made.truth.mean) < 2e-3 * made.truth.sd).all()
    assert (np.abs(sd - made.truth.sd) < 2e-3 * made.truth.sd).all()
