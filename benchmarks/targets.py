r"""The targets of the suite, each with what is known about it.

Simulated targets are normalised (log Z = 0) and their moments are exact. Log densities of models keep every constant of
prior and likelihood, so that log Z is the log evidence; their references come from ``references.json``, which
``references.py`` wrote. Moments are those of the flat, unconstrained point x.

A target has a box only where its user would know one. Scripts that use this module switch float64 on themselves.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from scipy.special import gammaln, ndtr

import klover
from klover.paper import datasets, models, simulations

SHARED_DATA = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"
REFERENCES = pathlib.Path(__file__).with_name("references.json")


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """A target and the right answer.

    Attributes
    ----------
    name
        Its key in ``PROBLEMS``.
    target
        What an engine gets; it knows nothing of the answer.
    log_evidence, log_evidence_se
        log Z and its standard error, zero where it is exact.
    mean, sd
        Mean and standard deviation of each coordinate of the flat unconstrained point, of shape (dim,); None where they
        do not exist.
    modes, mode_weights
        Locations, of shape (mode, dim), and weights of a mixture's components; None for targets with one mode.
    sample
        Exact draws, ``sample(generator, num_draws)`` of shape (draw, dim); None for models.
    """

    name: str
    target: klover.Target
    log_evidence: float | None
    mean: np.ndarray | None
    sd: np.ndarray | None
    modes: np.ndarray | None = None
    mode_weights: np.ndarray | None = None
    log_evidence_se: float = 0.0
    sample: Callable[[np.random.Generator, int], np.ndarray] | None = None


def funnel10() -> Problem:
    r"""Neal's funnel: :math:`v\sim\mathrm N(0,3^2)`, :math:`x_i\mid v\sim\mathrm N(0,e^v)` for i = 1…9.

    The variance of :math:`x_i` is :math:`\mathrm E\,e^v=e^{9/2}`. Its fourth moment is :math:`3e^{18}`, so that the
    variance of n exact draws has relative error :math:`\sqrt{3e^9/n}`, 1.7 from 8192.
    """
    scale, num = 3.0, 9

    def logdensity(x):
        return norm.logpdf(x[0], 0.0, scale) + _log_normal(x[1:], 0.0, x[0] / 2).sum()

    def sample(generator, num_draws):
        x = generator.normal(size=(num_draws, 1 + num))
        x[:, 0] *= scale
        x[:, 1:] *= np.exp(x[:, :1] / 2)
        return x

    sd = np.array([scale] + num * [np.exp(scale**2 / 4)])
    return Problem("funnel10", klover.Target(logdensity, jnp.zeros(1 + num)), 0.0, np.zeros(1 + num), sd, sample=sample)


def banana10() -> Problem:
    r"""Twisted Gaussian of Haario et al. (1999): :math:`x_1\sim\mathrm N(0,10^2)`,
    :math:`x_2\mid x_1\sim\mathrm N(b(x_1^2-10^2),1)` with b = 0.03, and eight coordinates N(0, 1).

    The variance of :math:`x_2` is :math:`1+2b^2\,10^4=19`.
    """
    dim, scale, bend = 10, 10.0, 0.03

    def logdensity(x):
        ridge = bend * (x[0] ** 2 - scale**2)
        return norm.logpdf(x[0], 0.0, scale) + norm.logpdf(x[1], ridge, 1.0) + norm.logpdf(x[2:]).sum()

    def sample(generator, num_draws):
        x = generator.normal(size=(num_draws, dim))
        x[:, 0] *= scale
        x[:, 1] += bend * (x[:, 0] ** 2 - scale**2)
        return x

    sd = np.ones(dim)
    sd[:2] = scale, np.sqrt(1 + 2 * bend**2 * scale**4)
    return Problem("banana10", klover.Target(logdensity, jnp.zeros(dim)), 0.0, np.zeros(dim), sd, sample=sample)


def ring2() -> Problem:
    r"""Ring of radius R = 5 and width σ = 0.25: :math:`p(x)\propto\exp(-(|x|-R)^2/2\sigma^2)`.

    The constant is :math:`2\pi(\sigma^2e^{-R^2/2\sigma^2}+R\sigma\sqrt{2\pi}\,\Phi(R/\sigma))`. The radius has density
    :math:`\propto r\exp(-(r-R)^2/2\sigma^2)`, so that a coordinate has variance :math:`(R^2+3\sigma^2)/2`, up to
    :math:`e^{-R^2/2\sigma^2}=e^{-200}`.
    """
    radius, width = 5.0, 0.25
    ratio = radius / width
    constant = np.log(
        2 * np.pi * (width**2 * np.exp(-(ratio**2) / 2) + radius * width * np.sqrt(2 * np.pi) * ndtr(ratio))
    )

    def logdensity(x):
        return -0.5 * ((jnp.sqrt(jnp.sum(x**2)) - radius) / width) ** 2 - constant

    def sample(generator, num_draws):
        # Radii by rejection from N(R, σ²), accepted with probability r / 2R; r never nears 0 or 2R = R + 20σ.
        candidate = generator.normal(radius, width, size=3 * num_draws + 100)
        accepted = candidate[generator.uniform(size=candidate.size) < candidate / (2 * radius)][:num_draws]
        angle = generator.uniform(0, 2 * np.pi, size=num_draws)
        return accepted[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])

    sd = np.full(2, np.sqrt((radius**2 + 3 * width**2) / 2))
    # The gradient does not exist at the origin, so the example lies beside it.
    return Problem("ring2", klover.Target(logdensity, jnp.ones(2)), 0.0, np.zeros(2), sd, sample=sample)


def rosenbrock4() -> Problem:
    r"""Hybrid Rosenbrock of Pagani et al. (2022): :math:`x_1\sim\mathrm N(1,1/2a)`,
    :math:`x_j\mid x_1\sim\mathrm N(x_1^2,1/2b)` for j = 2, 3, 4, with a = 1/20 and b = 100/20.

    The means are 1 and :math:`1+v` with v = 1/2a = 10; the variance of :math:`x_j` is :math:`2v^2+4v+1/2b`.
    """
    first_variance, variance = 10.0, 0.1

    def logdensity(x):
        return norm.logpdf(x[0], 1.0, np.sqrt(first_variance)) + norm.logpdf(x[1:], x[0] ** 2, np.sqrt(variance)).sum()

    def sample(generator, num_draws):
        x = generator.normal(size=(num_draws, 4))
        x[:, 0] = 1 + np.sqrt(first_variance) * x[:, 0]
        x[:, 1:] = x[:, :1] ** 2 + np.sqrt(variance) * x[:, 1:]
        return x

    mean = np.array([1.0] + 3 * [1 + first_variance])
    sd = np.sqrt([first_variance] + 3 * [2 * first_variance**2 + 4 * first_variance + variance])
    return Problem("rosenbrock4", klover.Target(logdensity, jnp.zeros(4)), 0.0, mean, sd, sample=sample)


def modes20() -> Problem:
    """Twenty Gaussians of σ = 0.1 in [0, 10]², equal weights (Liang & Wong 2001; Simulation 2 of the paper)."""
    locations = np.asarray(simulations.TWENTY_MODE_LOCATIONS)
    return mixture("modes20", locations, simulations.TWENTY_MODE_SCALE**2 * np.eye(2), box=(0.0, 10.0))


def gaussians20() -> Problem:
    r"""Ten Gaussians in d = 20, equal weights, means U(-50, 50), covariances :math:`A^\top A+I` with entries of A from
    N(0, 2²): the recipe of Arenz et al. (2020, GMM20) with a seed of ours.
    """
    generator = np.random.default_rng(20)
    locations = generator.uniform(-50, 50, size=(10, 20))
    factors = 2 * generator.normal(size=(10, 20, 20))
    return mixture("gaussians20", locations, factors.mT @ factors + np.eye(20), box=(-50.0, 50.0))


def modes40() -> Problem:
    """Forty Gaussians in two dimensions, equal weights, means U(-40, 40), σ = softplus(1) (Midgley et al. 2023).

    Some overlap: the closest two means are 2.0 σ apart. By nearest mean, masses are between 0.0243 and 0.0257.
    """
    locations = np.random.default_rng(40).uniform(-40, 40, size=(40, 2))
    return mixture("modes40", locations, np.log1p(np.e) ** 2 * np.eye(2), box=(-40.0, 40.0))


def two_modes20() -> Problem:
    """Two unit Gaussians in d = 20, 20 standard deviations apart along the diagonal, weights 0.9 and 0.1."""
    corner = np.full(20, 10 / np.sqrt(20))
    return mixture("two_modes20", np.stack([corner, -corner]), np.eye(20), weights=(0.9, 0.1), box=(-30.0, 30.0))


def stm20() -> Problem:
    r"""Ten Student-t of two degrees of freedom in d = 20, equal weights, means U(-20, 20), scale matrices
    :math:`(A^\top A+I)^{-1}` with entries of A from N(0, 2²): the recipe of Lin et al. (2020) with a seed of ours.

    The variance is infinite.
    """
    generator = np.random.default_rng(2)
    locations = generator.uniform(-20, 20, size=(10, 20))
    factors = 2 * generator.normal(size=(10, 20, 20))
    return mixture("stm20", locations, np.linalg.inv(factors.mT @ factors + np.eye(20)), df=2.0, box=(-30.0, 30.0))


def cauchy10() -> Problem:
    """Standard Cauchy in d = 10 (Student-t of one degree of freedom): no moments."""
    return mixture("cauchy10", np.zeros((1, 10)), np.eye(10), df=1.0)


def student30() -> Problem:
    """Student-t of three degrees of freedom in d = 30: locations from -2 to 2, scales 1, correlations 0.8^|i-j|."""
    index = np.arange(30)
    return mixture("student30", np.linspace(-2, 2, 30)[None], 0.8 ** np.abs(index[:, None] - index), df=3.0)


def gaussian100() -> Problem:
    """Gaussian in d = 100: variances from 0.01 to 100 along the axes of a random rotation, means from N(0, 1)."""
    generator = np.random.default_rng(100)
    rotation = np.linalg.qr(generator.normal(size=(100, 100)))[0]
    covariance = rotation * np.geomspace(0.01, 100, 100) @ rotation.T
    return mixture("gaussian100", generator.normal(size=(1, 100)), covariance)


def german_credit() -> Problem:
    """Logistic regression on German credit (numeric version, n = 1000, d = 25); the event is a bad risk."""
    table = np.loadtxt(_shared("uci/german_credit.csv"), delimiter=",", skiprows=1)
    return _logistic_regression("german_credit", table[:, :-1], table[:, -1] == 2)


def breast_cancer() -> Problem:
    """Logistic regression on Wisconsin breast cancer (scikit-learn's copy, n = 569, d = 31); the event is benign."""
    from sklearn.datasets import load_breast_cancer

    return _logistic_regression("breast_cancer", *load_breast_cancer(return_X_y=True))


EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
EFFECT_SDS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def eight_schools_centred() -> Problem:
    r"""Eight schools (Rubin 1981): :math:`\mu\sim\mathrm N(0,5^2)`, :math:`\tau\sim\mathrm{HalfCauchy}(5)`,
    :math:`\theta_j\sim\mathrm N(\mu,\tau^2)`, :math:`y_j\sim\mathrm N(\theta_j,\sigma_j^2)`; x holds log τ, μ, θ.
    """

    def logdensity(position):
        mu, log_tau, theta = position["mu"], position["log_tau"], position["theta"]
        log_prior = _log_hyperprior(mu, log_tau) + _log_normal(theta, mu, log_tau).sum()
        return log_prior + norm.logpdf(EFFECTS, theta, EFFECT_SDS).sum()

    def constrain(position):
        return {"mu": position["mu"], "tau": jnp.exp(position["log_tau"]), "theta": position["theta"]}

    example = {"mu": 0.0, "log_tau": 0.0, "theta": jnp.zeros(8)}
    return _model("eight_schools_centred", klover.Target(logdensity, example, constrain=constrain))


def eight_schools_noncentred() -> Problem:
    r"""Eight schools with :math:`\theta_j=\mu+\tau\eta_j`, :math:`\eta_j\sim\mathrm N(0,1)`; x holds η, log τ, μ.

    The evidence is that of the centred form.
    """

    def effects(position):
        return position["mu"] + jnp.exp(position["log_tau"]) * position["eta"]

    def logdensity(position):
        log_prior = _log_hyperprior(position["mu"], position["log_tau"]) + norm.logpdf(position["eta"]).sum()
        return log_prior + norm.logpdf(EFFECTS, effects(position), EFFECT_SDS).sum()

    def constrain(position):
        return {"mu": position["mu"], "tau": jnp.exp(position["log_tau"]), "theta": effects(position)}

    example = {"mu": 0.0, "log_tau": 0.0, "eta": jnp.zeros(8)}
    return _model("eight_schools_noncentred", klover.Target(logdensity, example, constrain=constrain))


def regression(name: str) -> Problem:
    """One of the paper's regressions, split 1: ``blr_…`` has the Gaussian prior, ``heavy_…`` the heavy-tailed one."""
    prior, dataset_name = name.split("_")
    build = {"blr": models.linear_regression, "heavy": models.heavy_tailed_regression}[prior]
    dataset = datasets.load(dataset_name)
    return _model(name, build(datasets.split(dataset, 1), dataset.feature_names))


def mixture(name, locations, scale_matrices, *, weights=None, df=np.inf, box=None) -> Problem:
    r"""Mixture of Gaussians (``df`` infinite) or Student-t, normalised; one scale matrix may serve all components.

    The moments are :math:`\sum_k\lambda_k\mu_k` and, with :math:`\Sigma_k` scaled by ν / (ν - 2),
    :math:`\sum_k\lambda_k(\Sigma_k+\mu_k\mu_k^\top)` less the square of the mean.
    """
    num, dim = locations.shape
    weights = np.full(num, 1 / num) if weights is None else np.asarray(weights)
    scale_matrices = np.broadcast_to(scale_matrices, (num, dim, dim))
    factors = np.linalg.cholesky(scale_matrices)
    log_volume = np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(1)
    if np.isinf(df):
        log_peak = -0.5 * dim * np.log(2 * np.pi)
    else:
        log_peak = gammaln((df + dim) / 2) - gammaln(df / 2) - 0.5 * dim * np.log(df * np.pi)
    centres, whiteners = jnp.asarray(locations), jnp.asarray(np.linalg.inv(factors))
    constants = jnp.asarray(np.log(weights) - log_volume + log_peak)

    def logdensity(x):
        distance = jnp.sum(jnp.einsum("kij,kj->ki", whiteners, x - centres) ** 2, axis=1)
        kernel = -0.5 * distance if np.isinf(df) else -0.5 * (df + dim) * jnp.log1p(distance / df)
        return jax.nn.logsumexp(constants + kernel)

    def sample(generator, num_draws):
        component = generator.choice(num, size=num_draws, p=weights)
        step = generator.normal(size=(num_draws, dim))
        if np.isfinite(df):
            step /= np.sqrt(generator.chisquare(df, size=(num_draws, 1)) / df)
        for k in range(num):
            step[component == k] = step[component == k] @ factors[k].T + locations[k]
        return step

    mean = weights @ locations if df > 1 else None
    sd = None
    if df > 2:
        inflation = 1.0 if np.isinf(df) else df / (df - 2)
        within = inflation * np.diagonal(scale_matrices, axis1=1, axis2=2)
        sd = np.sqrt(weights @ (within + (locations - mean) ** 2))
    modes, mode_weights = (locations, weights) if num > 1 else (None, None)
    target = klover.Target(logdensity, jnp.zeros(dim), box=box)
    return Problem(name, target, 0.0, mean, sd, modes, mode_weights, sample=sample)


def _logistic_regression(name, features, events) -> Problem:
    r""":math:`y_i\sim\mathrm{Bernoulli}(\mathrm{logit}^{-1}(\beta_0+x_i^\top\beta))`, every coefficient N(0, 10²), the
    intercept first; features are divided by their (population) standard deviations and not centred.
    """
    inputs = jnp.asarray(np.column_stack([np.ones(len(features)), features / features.std(0)]))
    signs = jnp.asarray(np.where(events, 1.0, -1.0))

    def logdensity(coefficients):
        log_likelihood = jax.nn.log_sigmoid(signs * (inputs @ coefficients)).sum()
        return log_likelihood + norm.logpdf(coefficients, 0.0, 10.0).sum()

    return _model(name, klover.Target(logdensity, jnp.zeros(inputs.shape[1])))


def _log_normal(x, mean, log_scale):
    """Log density of N(mean, exp(2 log_scale)), which no scale, however small, makes NaN."""
    return -0.5 * ((x - mean) * jnp.exp(-log_scale)) ** 2 - log_scale - 0.5 * np.log(2 * np.pi)


def _log_hyperprior(mu, log_tau):
    """Log density of μ ~ N(0, 5²) and of log τ where τ ~ HalfCauchy(5), the Jacobian τ included."""
    log_ratio = log_tau - np.log(5)
    return norm.logpdf(mu, 0.0, 5.0) + np.log(2 / np.pi) + log_ratio - jnp.logaddexp(0.0, 2 * log_ratio)


def _model(name, target) -> Problem:
    """Put a posterior and its stored reference together."""
    reference = json.loads(REFERENCES.read_text())["targets"].get(name, {}) if REFERENCES.exists() else {}
    mean, sd = (np.asarray(reference[moment]) if reference else None for moment in ("mean", "sd"))
    log_evidence, error = reference.get("log_evidence"), reference.get("log_evidence_se", 0.0)
    return Problem(name, target, log_evidence, mean, sd, log_evidence_se=error)


def _shared(path: str) -> pathlib.Path:
    """Find a file of the data that lies beside the checkout."""
    file = SHARED_DATA / path
    if not file.exists():
        raise FileNotFoundError(
            f"{file} is missing: put the folder shared/ beside the checkout, or leave this target out."
        )
    return file


SIMULATED = (funnel10, banana10, ring2, rosenbrock4, modes20, gaussians20, modes40, two_modes20, stm20, cauchy10)
SIMULATED += (student30, gaussian100)
POSTERIORS = (german_credit, breast_cancer, eight_schools_centred, eight_schools_noncentred)
REGRESSIONS = [f"{prior}_{name}" for prior in ("blr", "heavy") for name in datasets.DATASETS]

PROBLEMS: dict[str, Callable[[], Problem]] = {build.__name__: build for build in SIMULATED + POSTERIORS}
PROBLEMS |= {name: functools.partial(regression, name) for name in REGRESSIONS}
