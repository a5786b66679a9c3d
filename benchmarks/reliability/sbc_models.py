"""Random NumPyro models with proper priors, for simulation-based calibration: regressions, groups, mixtures, series.

A maker draws sizes, inputs and the scales of the priors, and returns a model: called without data it draws them, called
with data it conditions on them. The site ``prediction`` is a quantity that a user would compute from the parameters.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import deterministic, plate, sample


def design(generator, most_rows: int = 60, most_columns: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Draw inputs with a column of ones, and the units of their columns: mostly 1, one time in five awkward."""
    num, width = int(generator.integers(5, most_rows)), int(generator.integers(1, most_columns + 1))
    units = np.ones(width)
    if generator.random() < 0.2:
        units = 10 ** generator.choice([-2.0, 0.0, 1.0, 3.0], size=width)
    inputs = np.column_stack([np.ones(num), generator.normal(size=(num, width - 1))])
    return inputs * units, units


def _coefficients(inputs, units, scale):
    beta = sample("beta", dist.Normal(np.zeros(len(units)), scale / units).to_event(1))
    return deterministic("predictor", inputs @ beta)


def linear(generator):
    inputs, units = design(generator)
    scale, noise = generator.uniform(0.5, 3), 10 ** generator.uniform(-0.5, 0.5)

    def model(y=None):
        predictor = _coefficients(inputs, units, scale)
        sigma = sample("sigma", dist.HalfNormal(noise))
        deterministic("prediction", predictor[0])
        sample("y", dist.Normal(predictor, sigma).to_event(1), obs=y)

    return model


def robust(generator):
    inputs, units = design(generator, 40, 4)

    def model(y=None):
        predictor = _coefficients(inputs, units, 2.0)
        sigma, df = sample("sigma", dist.Exponential(1.0)), sample("df", dist.Gamma(2.0, 0.2))
        deterministic("prediction", predictor[0])
        sample("y", dist.StudentT(1.0 + df, predictor, sigma).to_event(1), obs=y)

    return model


def logistic(generator):
    inputs, units = design(generator)
    scale = generator.uniform(0.5, 2.5)

    def model(y=None):
        predictor = _coefficients(inputs, units, scale)
        deterministic("prediction", jax.nn.sigmoid(predictor[0]))
        sample("y", dist.Bernoulli(logits=predictor).to_event(1), obs=y)

    return model


def dose(generator):
    """Binomial counts of five to nine doses."""
    doses = np.sort(generator.normal(size=int(generator.integers(5, 10))))
    sizes = generator.integers(3, 20, size=len(doses))

    def model(y=None):
        level, slope = sample("level", dist.Normal(0, 2)), sample("slope", dist.Normal(0, 2))
        deterministic("prediction", jax.nn.sigmoid(level + slope * 0.5))
        sample("y", dist.Binomial(sizes, logits=level + slope * doses).to_event(1), obs=y)

    return model


def poisson(generator):
    inputs, units = design(generator, 60, 5)

    def model(y=None):
        predictor = _coefficients(inputs, units, 0.7)
        deterministic("prediction", jnp.exp(predictor[0]))
        sample("y", dist.Poisson(jnp.exp(predictor)).to_event(1), obs=y)

    return model


def negative_binomial(generator):
    inputs, units = design(generator, 60, 4)

    def model(y=None):
        predictor = _coefficients(inputs, units, 0.7)
        concentration = sample("concentration", dist.Gamma(2.0, 0.5))
        deterministic("prediction", jnp.exp(predictor[0]))
        sample("y", dist.NegativeBinomial2(jnp.exp(predictor), concentration).to_event(1), obs=y)

    return model


def _groups(generator, is_centred: bool):
    num, each = int(generator.integers(3, 10)), int(generator.integers(1, 6))
    group = np.repeat(np.arange(num), each)
    spread = generator.uniform(0.5, 2)

    def model(y=None):
        mu, tau = sample("mu", dist.Normal(0, 3)), sample("tau", dist.HalfNormal(spread))
        sigma = sample("sigma", dist.LogNormal(0, 0.5))
        with plate("group", num):
            if is_centred:
                theta = sample("theta", dist.Normal(mu, tau))
            else:
                theta = deterministic("theta", mu + tau * sample("eta", dist.Normal(0, 1)))
        deterministic("prediction", theta[0] - theta[1])
        sample("y", dist.Normal(theta[group], sigma).to_event(1), obs=y)

    return model


def centred(generator):
    return _groups(generator, True)


def noncentred(generator):
    return _groups(generator, False)


def count_groups(generator):
    """Poisson counts with a random effect for each group."""
    num, each = int(generator.integers(3, 10)), int(generator.integers(1, 5))
    group = np.repeat(np.arange(num), each)

    def model(y=None):
        mu, tau = sample("mu", dist.Normal(1, 1)), sample("tau", dist.HalfNormal(0.7))
        eta = sample("eta", dist.Normal(np.zeros(num), 1).to_event(1))
        log_rate = mu + tau * eta
        deterministic("prediction", jnp.exp(log_rate[0]))
        sample("y", dist.Poisson(jnp.exp(log_rate[group])).to_event(1), obs=y)

    return model


def varying_slopes(generator):
    """Groups with correlated levels and slopes, non-centred, with an LKJ prior."""
    num, each = int(generator.integers(3, 7)), int(generator.integers(3, 7))
    group, inputs = np.repeat(np.arange(num), each), generator.normal(size=num * each)

    def model(y=None):
        mean = sample("mean", dist.Normal(np.zeros(2), 2).to_event(1))
        spread = sample("spread", dist.HalfNormal(np.ones(2)).to_event(1))
        factor = sample("factor", dist.LKJCholesky(2, 2.0))
        eta = sample("eta", dist.Normal(np.zeros((num, 2)), 1).to_event(2))
        sigma = sample("sigma", dist.LogNormal(-0.5, 0.4))
        effects = mean + jnp.einsum("gi,ji->gj", eta, factor) * spread
        deterministic("prediction", effects[0, 0] + effects[0, 1])
        sample("y", dist.Normal(effects[group, 0] + effects[group, 1] * inputs, sigma).to_event(1), obs=y)

    return model


def ordered_mixture(generator):
    num, parts = int(generator.integers(10, 60)), int(generator.integers(2, 4))

    def model(y=None):
        base = dist.Normal(np.zeros(parts), 2.0).to_event(1)
        locations = sample("locations", dist.TransformedDistribution(base, dist.transforms.OrderedTransform()))
        _mixture(locations, parts, num, y)

    return model


def labelled_mixture(generator):
    """Two or three exchangeable parts: every permutation of the labels is a mode."""
    num, parts = int(generator.integers(10, 60)), int(generator.integers(2, 4))

    def model(y=None):
        _mixture(sample("locations", dist.Normal(np.zeros(parts), 3.0).to_event(1)), parts, num, y)

    return model


def _mixture(locations, parts: int, num: int, y):
    weights, sigma = sample("weights", dist.Dirichlet(np.full(parts, 3.0))), sample("sigma", dist.LogNormal(-0.5, 0.3))
    deterministic("prediction", weights @ locations)
    law = dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(locations, sigma))
    sample("y", law.expand([num]).to_event(1), obs=y)


def autoregression(generator):
    """A stationary series of order one, by its covariance."""
    num = int(generator.integers(6, 30))
    lag = np.abs(np.subtract.outer(np.arange(num), np.arange(num)))

    def model(y=None):
        mu, phi = sample("mu", dist.Normal(0, 2)), sample("phi", dist.Uniform(-0.95, 0.95))
        sigma = sample("sigma", dist.HalfNormal(1.0))
        powers = jnp.cumprod(jnp.append(1.0, jnp.full(num - 1, phi)))
        deterministic("prediction", mu)
        covariance = sigma**2 / (1 - phi**2) * powers[lag]
        sample("y", dist.MultivariateNormal(jnp.full(num, mu), covariance), obs=y)

    return model


def random_walk(generator):
    """A latent random walk of four to fourteen steps, non-centred, seen with noise."""
    num = int(generator.integers(4, 15))

    def model(y=None):
        tau, sigma = sample("tau", dist.HalfNormal(1.0)), sample("sigma", dist.LogNormal(-0.7, 0.5))
        level = jnp.cumsum(tau * sample("eta", dist.Normal(np.zeros(num), 1).to_event(1)))
        deterministic("prediction", level[-1])
        sample("y", dist.Normal(level, sigma).to_event(1), obs=y)

    return model


def local_level(generator):
    """The random walk with its level integrated out."""
    num = int(generator.integers(6, 30))
    shared = np.minimum.outer(np.arange(1.0, num + 1), np.arange(1.0, num + 1))

    def model(y=None):
        mu, tau = sample("mu", dist.Normal(0, 2)), sample("tau", dist.HalfNormal(1.0))
        sigma = sample("sigma", dist.LogNormal(-0.7, 0.5))
        deterministic("prediction", tau / (tau + sigma))
        covariance = tau**2 * shared + sigma**2 * np.eye(num)
        sample("y", dist.MultivariateNormal(jnp.full(num, mu), covariance), obs=y)

    return model


def gaussian_process(generator):
    inputs = np.sort(generator.uniform(0, 10, size=int(generator.integers(5, 15))))
    squares = np.subtract.outer(inputs, inputs) ** 2

    def model(y=None):
        length, height = sample("length", dist.LogNormal(0.5, 0.7)), sample("height", dist.HalfNormal(2.0))
        sigma = sample("sigma", dist.LogNormal(-1.0, 0.4))
        kernel = height**2 * jnp.exp(-0.5 * squares / length**2) + sigma**2 * np.eye(len(inputs))
        deterministic("prediction", height / sigma)
        sample("y", dist.MultivariateNormal(np.zeros(len(inputs)), kernel), obs=y)

    return model


def survival(generator):
    """Weibull times with two covariates, cut off at a fixed time: the likelihood is that of events and survivors."""
    num, end = int(generator.integers(8, 50)), generator.uniform(1, 4)
    inputs = generator.normal(size=(num, 2))

    def model(y=None):
        level, shape = sample("level", dist.Normal(0.5, 0.7)), sample("shape", dist.LogNormal(0.2, 0.4))
        beta = sample("beta", dist.Normal(np.zeros(2), 0.7).to_event(1))
        scale = jnp.exp(level + inputs @ beta)
        deterministic("prediction", scale[0] * np.log(2) ** (1 / shape))
        times = dist.Weibull(scale, shape)
        if y is None:
            deterministic("y", jnp.minimum(sample("time", times.to_event(1)), end))
        else:
            log_survival = -((end / scale) ** shape)
            numpyro.factor("survival", jnp.sum(jnp.where(y < end, times.log_prob(jnp.minimum(y, end)), log_survival)))

    return model


def gamma_regression(generator):
    inputs, units = design(generator, 50, 4)

    def model(y=None):
        predictor = _coefficients(inputs, units, 0.7)
        shape = sample("shape", dist.LogNormal(0.5, 0.6))
        deterministic("prediction", jnp.exp(predictor[0]))
        sample("y", dist.Gamma(shape, shape * jnp.exp(-predictor)).to_event(1), obs=y)

    return model


def item_response(generator):
    persons, items = int(generator.integers(4, 9)), int(generator.integers(3, 7))

    def model(y=None):
        ability = sample("ability", dist.Normal(np.zeros(persons), 1).to_event(1))
        difficulty = sample("difficulty", dist.Normal(np.zeros(items), 1.5).to_event(1))
        deterministic("prediction", ability[0] - difficulty[0])
        sample("y", dist.Bernoulli(logits=ability[:, None] - difficulty).to_event(2), obs=y)

    return model
