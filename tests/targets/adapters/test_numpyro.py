import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import klover
from helpers import compilations, linear_regression

numpyro = pytest.importorskip("numpyro")
dist, handlers = numpyro.distributions, numpyro.handlers
constraints = dist.constraints

X = np.linspace(-1.0, 2.0, 12)
Y = np.exp(0.3 * X) + 0.1 * np.cos(7 * X)


def everything(x, y):
    """Sites of every kind: plates, a support that depends on a site, a simplex, an order, a factor, a transform."""
    lower = numpyro.sample("lower", dist.HalfNormal(1.0))
    between = numpyro.sample("between", dist.Uniform(lower, lower + 2.0))
    with numpyro.plate("group", 3):
        level = numpyro.sample("level", dist.Normal(0.0, between))
        share = numpyro.sample("share", dist.Dirichlet(jnp.ones(4)), infer={"event_dims": ["part"]})
        numpyro.deterministic("double", 2 * level)
    ordered = numpyro.sample("ordered", dist.ImproperUniform(constraints.ordered_vector, (), (2,)))
    numpyro.factor("pull", -jnp.sum(ordered**2))
    numpyro.deterministic("total", jnp.sum(x))
    with numpyro.plate("row", len(y)):
        numpyro.sample("y", dist.LogNormal(level.sum() * x, 0.1 + share[0, 0]), obs=y)


def random_walk(y):
    from numpyro.contrib.control_flow import scan

    scale = numpyro.sample("scale", dist.HalfNormal(1.0))

    def step(state, value):
        state = numpyro.sample("state", dist.LogNormal(jnp.log(state), scale))
        numpyro.sample("y", dist.Normal(state, 1.0), obs=value)
        return state, None

    scan(step, 1.0, y)


@pytest.mark.parametrize(("model", "data"), [(everything, (X, Y)), (random_walk, (jnp.asarray(Y),))])
def test_density_is_minus_numpyros_potential(getkey, model, data):
    target = klover.from_numpyro(model, *data)
    point = jax.random.normal(getkey(), (target.dim,))
    position, read = target.unravel(point), target.position(point)
    potential = jax.jit(lambda position: numpyro.infer.util.potential_energy(model, data, {}, position))
    np.testing.assert_allclose(jax.jit(target.log_prob)(point), -potential(position), rtol=1e-12)
    assert target.model_info is not None
    assert target.model_info.unconstrain is not None
    back = jax.jit(target.model_info.unconstrain)(read)
    assert set(back) == set(position)
    for name, value in position.items():
        np.testing.assert_allclose(back[name], value, rtol=1e-8, atol=1e-10)


def test_people_read_constrained_and_deterministic_sites():
    target = klover.from_numpyro(everything, X, Y)
    read = target.position(np.linspace(-1.0, 1.0, target.dim))
    assert {name: value.shape for name, value in read.items()} == {
        "lower": (),
        "between": (),
        "level": (3,),
        "share": (3, 4),
        "double": (3,),
        "ordered": (2,),
        "total": (),
    }
    assert read["lower"] < read["between"] < read["lower"] + 2
    np.testing.assert_allclose(read["share"].sum(axis=1), np.ones(3), rtol=1e-12)
    np.testing.assert_allclose(read["double"], 2 * read["level"], rtol=1e-15)
    np.testing.assert_allclose(read["total"], X.sum(), rtol=1e-12)
    assert read["ordered"][0] < read["ordered"][1]
    assert target.names[:3] == ("between", "double[0]", "double[1]")


def test_density_has_the_jacobian_of_a_support_that_depends_on_a_site():
    def model():
        lower = numpyro.sample("lower", dist.Exponential(2.0))
        numpyro.sample("between", dist.Uniform(lower, 3 * lower))

    target = klover.from_numpyro(model)
    position = target.unravel(np.array([0.4, -0.7]))
    log_lower, share = float(position["lower"]), 1 / (1 + np.exp(-float(position["between"])))
    # Uniform on the interval, times its length, times the derivative of the logistic function.
    expected = stats.expon(scale=0.5).logpdf(np.exp(log_lower)) + log_lower + np.log(share * (1 - share))
    np.testing.assert_allclose(target.log_prob(np.array([0.4, -0.7])), expected, rtol=1e-12)


def test_jacobians_are_neither_scaled_nor_masked():
    def model():
        with handlers.scale(scale=2.0):
            numpyro.sample("scaled", dist.Exponential(1.0))
        with handlers.mask(mask=False):
            numpyro.sample("masked", dist.Exponential(1.0))

    target = klover.from_numpyro(model)
    point = np.array([0.3, -0.4])
    position = target.unravel(point)
    expected = position["masked"] + position["scaled"] - 2 * np.exp(position["scaled"])
    np.testing.assert_allclose(target.log_prob(point), expected, rtol=1e-12)


def test_a_model_that_jax_cannot_trace_gets_advice():
    def model():
        numpyro.sample("x", dist.Normal(0.0, float(numpyro.sample("scale", dist.HalfNormal()))))

    with pytest.raises(jax.errors.JAXTypeError) as caught:
        klover.from_numpyro(model)
    assert any("write it with jax.numpy" in note for note in caught.value.__notes__)


def test_model_info_knows_the_model():
    model_info = klover.from_numpyro(everything, X, Y).model_info
    assert model_info is not None
    assert model_info.name == "numpyro"
    assert model_info.dims == {
        "level": ("group",),
        "share": ("group", "part"),
        "double": ("group",),
        "y": ("row",),
    }
    assert {name: len(values) for name, values in model_info.coords.items()} == {"group": 3, "part": 4, "row": 12}
    assert model_info.improper == ("ordered",)
    assert set(model_info.observed) == {"y"}
    np.testing.assert_array_equal(model_info.observed["y"], Y)


def test_observations_that_the_model_computes_are_known_unless_they_depend_on_parameters():
    def model(y):
        shift = numpyro.sample("shift", dist.Normal())
        numpyro.sample("log_y", dist.Normal(shift, 1.0), obs=jnp.log(y))
        numpyro.sample("shifted", dist.Normal(0.0, 1.0), obs=jnp.log(y) - shift)

    model_info = klover.from_numpyro(model, Y).model_info
    assert model_info is not None
    assert set(model_info.observed) == {"log_y"}
    np.testing.assert_allclose(model_info.observed["log_y"], np.log(Y), rtol=1e-15)


def line(x, y):
    slope = numpyro.sample("slope", dist.Normal(0.0, 3.0))
    numpyro.deterministic("ten_times", 10 * slope)
    numpyro.factor("nothing", 0.0)
    numpyro.sample("y", dist.Normal(slope * x, 0.5), obs=y)


def test_prior_and_likelihood_are_the_joint_density(getkey):
    target = klover.from_numpyro(everything, X, Y)
    position = target.position(jax.random.normal(getkey(), (target.dim,)))
    model_info = target.model_info
    parts = [*model_info.log_prior(position).values(), *model_info.log_likelihood(position).values()]
    latent = {name: position[name] for name in model_info.log_prior(position)}
    joint, _ = numpyro.infer.util.log_density(everything, (X, Y), {}, latent)
    # A factor belongs to neither.
    rest = joint + jnp.sum(position["ordered"] ** 2)
    np.testing.assert_allclose(sum(jnp.sum(each) for each in parts), rest, rtol=1e-10)


def test_likelihood_and_predictions_replay_the_model(getkey):
    target = klover.from_numpyro(line, X, y=Y)
    model_info, position = target.model_info, target.position(np.array([1.3]))
    assert model_info is not None
    assert model_info.log_likelihood is not None
    assert model_info.predict is not None
    likelihood = model_info.log_likelihood(position)
    assert set(likelihood) == {"y"}
    np.testing.assert_allclose(likelihood["y"], stats.norm(1.3 * X, 0.5).logpdf(Y), rtol=1e-12)
    predict = jax.jit(jax.vmap(model_info.predict, (0, None)))
    predicted = predict(jax.random.split(getkey(), 4000), position)["y"]
    score = (np.asarray(predicted) - 1.3 * X) / 0.5
    assert np.abs(score.mean(axis=0)).max() < 5 / np.sqrt(4000)
    assert np.abs(score.var(axis=0) - 1).max() < 5 * np.sqrt(2 / 4000)


def test_other_data_of_one_shape_compile_nothing():
    first, second = klover.from_numpyro(line, X, Y), klover.from_numpyro(line, X + 1, Y**2)
    assert jax.tree.structure(first) == jax.tree.structure(second)
    assert first.log_prob(np.zeros(1)) != second.log_prob(np.zeros(1))
    assert first.model_info is not None
    assert second.model_info is not None
    key = jax.random.key(0)
    drawn = first.model_info.prior(key, 7)
    with compilations() as compiled:
        np.testing.assert_array_equal(second.model_info.prior(key, 7)["slope"], drawn["slope"])
    assert compiled == []


@pytest.mark.parametrize(
    ("bounds", "support"),
    [
        ((-jnp.inf, jnp.inf), constraints.real),
        ((2.0, jnp.inf), constraints.greater_than(2.0)),
        ((-jnp.inf, 2.0), constraints.less_than(2.0)),
    ],
)
def test_uniform_priors_without_end_are_flat(bounds, support):
    def model(prior):
        with numpyro.plate("group", 2):
            x = numpyro.sample("x", prior)
        numpyro.sample("y", dist.Normal(x.sum(), 1.0), obs=1.0)

    flat = klover.from_numpyro(model, dist.Uniform(*bounds).expand([2, 3]).to_event(1))
    known = klover.from_numpyro(model, dist.ImproperUniform(support, (2,), (3,)))
    point = np.linspace(-1.0, 1.0, 6)
    assert np.isfinite(known.log_prob(point))
    np.testing.assert_allclose(flat.log_prob(point), known.log_prob(point), rtol=1e-14)
    np.testing.assert_allclose(flat.position(point)["x"], known.position(point)["x"], rtol=1e-14)
    assert flat.model_info is not None
    assert flat.model_info.improper == ("x",)


def test_refine_answers_a_regression_with_its_evidence(getkey):
    known = linear_regression()
    generator = np.random.default_rng(0)
    design, coefficient = generator.normal(size=(20, 2)), generator.normal(size=3)
    response = coefficient[0] + design @ coefficient[1:] + 0.5 * generator.normal(size=20)

    def model(design, response):
        intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
        slope = numpyro.sample("slope", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(intercept + design @ slope, 0.5), obs=response)

    fit = klover.refine(getkey(), klover.from_numpyro(model, design, response))
    assert fit.verdict.trusted
    assert abs(fit.log_evidence - known.log_evidence) < 5 * fit.log_evidence_se + 1e-6
    table = fit.summary()
    assert (np.abs(table.columns["mean"] - known.mean) < 5 * table.columns["mcse"]).all()


def subsampled(y):
    mu = numpyro.sample("mu", dist.Normal())
    with numpyro.plate("row", len(y), subsample_size=5) as index:
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y[index])


def tossed(y=None):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Poisson(rate), obs=y)


def counted():
    numpyro.sample("count", dist.Poisson(3.0))


def parametric():
    numpyro.sample("x", dist.Normal(numpyro.param("mu", 0.0), 1.0))


def constant():
    numpyro.sample("x", dist.Delta(1.0))


def observed():
    numpyro.sample("x", dist.Normal(), obs=1.0)


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (subsampled, (Y,), "subsamples 5 of 12 in the plate 'row'"),
        (counted, (), "'count' with infinitely many values"),
        (tossed, (), "'y' with infinitely many values, which cannot be summed out. If it is data, pass y="),
        (parametric, (), "'mu', which has no prior"),
        (constant, (), "'x' from a Delta"),
        (observed, (), "no continuous latent site"),
    ],
)
def test_a_model_without_a_density_is_refused(model, data, message):
    with pytest.raises(ValueError, match=message):
        klover.from_numpyro(model, *data)


def test_forgotten_data_are_named():
    def model(scale=None, y=None):
        mu = numpyro.sample("mu", dist.Normal())
        sd = numpyro.sample("scale", dist.HalfNormal()) if scale is None else scale
        with numpyro.plate("row", 12):
            numpyro.sample("y", dist.Normal(mu, sd), obs=y)

    with pytest.warns(UserWarning, match=r"observes nothing: y \(12 numbers\) was not given"):
        target = klover.from_numpyro(model, 1.0)
    assert target.model_info.not_given == ("y",)
    # An argument may be left out for the model to sample it: said where it counts, not warned of.
    assert klover.from_numpyro(model, y=Y).model_info.not_given == ("scale",)
    assert klover.from_numpyro(model, 1.0, Y).model_info.not_given == ()


def test_something_else_than_a_model_is_refused():
    with pytest.raises(TypeError, match="got a str"):
        klover.from_numpyro("model")  # pyright: ignore[reportArgumentType]


def mixture(y):
    weight = numpyro.sample("weight", dist.Beta(2.0, 2.0))
    with numpyro.plate("row", len(y)):
        which = numpyro.sample("which", dist.Bernoulli(weight))
        numpyro.sample("y", dist.Normal(2.0 * which, 0.5), obs=y)


def test_discrete_sites_need_funsor(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="discrete latent sites, which, .* pip install 'klover.numpyro.'"):
        klover.from_numpyro(mixture, Y)


def test_discrete_sites_are_summed_out():
    pytest.importorskip("funsor")
    target = klover.from_numpyro(mixture, Y)
    share = 1 / (1 + np.exp(-0.4))
    likelihood = share * stats.norm(2.0, 0.5).pdf(Y) + (1 - share) * stats.norm(0.0, 0.5).pdf(Y)
    prior = stats.beta(2, 2).logpdf(share) + np.log(share * (1 - share))
    np.testing.assert_allclose(target.log_prob(np.array([0.4])), prior + np.log(likelihood).sum(), rtol=1e-6)


def crowded(shape):
    with numpyro.plate("side", 2):
        numpyro.sample("share", dist.Beta(shape, shape))


def test_a_posterior_that_crowds_at_a_bound_is_refused(getkey):
    with jax.enable_x64(False):
        fit = klover.refine(getkey(), klover.from_numpyro(crowded, 0.1))
    assert fit.verdict.status is klover.Status.COARSE_NUMBERS, fit.verdict
    assert "rounds to its bound" in fit.verdict.reason
    fit = klover.refine(getkey(), klover.from_numpyro(crowded, 0.5))
    assert fit.verdict.trusted
    assert abs(fit.log_evidence) < 5 * fit.log_evidence_se


def ends(target):
    assert target.model_info.reach is not None
    return target.model_info.reach


def test_bounds_are_known_where_they_are_the_same_always():
    target = klover.from_numpyro(everything, X, Y)
    left, right = ends(target)
    names = [target.coordinate_name(index) for index in range(target.dim)]
    # What lies between bounds that depend on another site, a simplex and an order have no bounds of their own.
    assert [name for name, end in zip(names, left, strict=True) if np.isfinite(end)] == ["lower"]
    assert left[names.index("lower")] == pytest.approx(np.log(np.finfo(float).tiny))
    assert np.isinf(right).all()


@pytest.mark.parametrize(
    ("distribution", "lower", "upper"),
    [
        (lambda: dist.Uniform(2.0, 5.0), 2.0, 5.0),
        (lambda: dist.Beta(1.0, 1.0).expand([2]).to_event(1), 0.0, 1.0),
        (lambda: dist.TruncatedNormal(low=3.0), 3.0, np.inf),
        (lambda: dist.TruncatedNormal(high=3.0), -np.inf, 3.0),
    ],
)
def test_values_come_to_their_bounds_where_the_model_says(distribution, lower, upper):
    target = klover.from_numpyro(lambda: numpyro.sample("a", distribution()))
    left, right = ends(target)
    for end, sign in ((left, -1.0), (right, 1.0)):
        if np.isfinite(end).all():
            value = target.position(np.asarray(end) + 0.5 * sign)["a"]
            bound = lower if np.abs(value - lower).max() < np.abs(value - upper).max() else upper
            assert (np.abs(value - bound) <= 2 * max(np.spacing(bound), np.finfo(float).tiny)).all()
            assert (np.abs(target.position(np.asarray(end) - 3.0 * sign)["a"] - value) > 0).all()


class Counted(dist.Normal):
    """A distribution whose sampler takes no keys but JAX's own."""

    def sample(self, key, sample_shape=()):
        return super().sample(key, sample_shape) + jax.random.poisson(key, 3.0, sample_shape + self.batch_shape)


def test_a_sampler_may_need_keys_of_jax():
    model_info = klover.from_numpyro(lambda: numpyro.sample("x", Counted(0.0, 1.0))).model_info
    assert model_info is not None
    assert np.asarray(model_info.prior(jax.random.key(0), 500)["x"]).mean() > 2


def test_prior_draws_follow_the_prior(getkey):
    def model():
        scale = numpyro.sample("scale", dist.Gamma(3.0, 2.0))
        numpyro.sample("x", dist.Normal(scale, 0.5).expand([2]).to_event(1))

    model_info = klover.from_numpyro(model).model_info
    assert model_info is not None
    drawn = model_info.prior(getkey(), 4000)
    scale, x = np.exp(drawn["scale"]), np.asarray(drawn["x"])
    assert stats.kstest(scale, stats.gamma(3, scale=0.5).cdf).pvalue > 1e-4
    assert stats.kstest((x - scale[:, None]).ravel(), stats.norm(scale=0.5).cdf).pvalue > 1e-4
