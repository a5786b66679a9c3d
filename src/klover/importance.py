r"""Importance sampling: from log-ratios to weights, expectations, the evidence and their errors.

With draws :math:`\theta_s\sim q` and :math:`r_s=\hat p(\theta_s)/q(\theta_s)`, self-normalised weights
:math:`w_s=r_s/\sum_t r_t` (Eq. 9, ``eq:fkl_snis``) estimate expectations under p, and :math:`\frac1S\sum_s r_s`
estimates the evidence Z. Everything stays in log space; a draw outside the support has log-ratio -inf and weight zero.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from klover import controls, datatree, psis, resampling, stored
from klover.arrays import logsumexp, namespace
from klover.mixture import Mixture
from klover.target import Target, evaluate
from klover.typing import AnyArray, Float, Int, Key, PyTree, record
from klover.validation import check_count, check_key

LogRatio = Float[AnyArray, " draw"]
Scalar = Float[AnyArray, ""]


def normalise(log_ratio: LogRatio) -> LogRatio:
    """Self-normalised log-weights; all -inf where every ratio is zero."""
    xp = namespace(log_ratio)
    total = logsumexp(log_ratio)
    return log_ratio - xp.where(xp.isfinite(total), total, 0.0)


def effective_sample_size(log_ratio: LogRatio) -> Scalar:
    r"""Kish's effective number of draws, :math:`1/\sum_s w_s^2`; 0 where no draw lies in the support."""
    xp = namespace(log_ratio)
    total = logsumexp(log_ratio)
    has_support = total > -xp.inf
    log_ess = 2 * xp.where(has_support, total, 0.0) - xp.where(has_support, logsumexp(2 * log_ratio), 0.0)
    return xp.where(has_support, xp.exp(log_ess), 0.0)


def log_evidence(log_ratio: LogRatio, control: LogRatio | float = 0.0) -> tuple[Scalar, Scalar]:
    r"""Logarithm of the evidence estimate :math:`\hat Z=\frac1S\sum_s(r_s-\bar rc_s)`, and its standard error.

    c is a control variate (:mod:`klover.controls`), whose mean under q is zero; without one :math:`\hat Z=\bar r`. By
    the delta method the error is :math:`\mathrm{sd}(r-\bar rc)/(\hat Z\sqrt S)`.
    """
    xp = namespace(log_ratio)
    num_draws = log_ratio.shape[0]
    weight = xp.exp(normalise(log_ratio))
    rest = num_draws * weight - control
    mean = 1 - xp.mean(xp.asarray(control))
    variance = xp.sum((rest - mean) ** 2) / (num_draws * (num_draws - 1))
    error = xp.where(xp.any(weight > 0), xp.sqrt(variance) / mean, xp.inf)
    return logsumexp(log_ratio) - math.log(num_draws) + xp.log(mean), error


def self_normalised(
    log_weight: LogRatio, values: Float[AnyArray, "draw ..."]
) -> tuple[Float[AnyArray, "..."], Float[AnyArray, "..."]]:
    r"""Weighted mean :math:`\hat\mu=\sum_s w_sf_s` and its error :math:`\sqrt{\sum_s w_s^2(f_s-\hat\mu)^2}` (Eq. 2)."""
    xp = namespace(log_weight, values)
    weight = xp.exp(normalise(log_weight)).reshape((-1,) + (1,) * (values.ndim - 1))
    # A draw outside the support may have no value there; its weight of zero must silence it.
    inside = xp.where(weight > 0, values, 0.0)
    mean = xp.sum(weight * inside, axis=0)
    return mean, xp.sqrt(xp.sum(xp.where(weight > 0, weight * (inside - mean), 0.0) ** 2, axis=0))


def truncate(log_ratio: LogRatio) -> LogRatio:
    r"""Cut the ratios at :math:`\sqrt S` times their mean (Ionides 2008): finite variance, a bias that vanishes."""
    xp = namespace(log_ratio)
    limit = logsumexp(log_ratio) - 0.5 * math.log(log_ratio.shape[0])
    return xp.minimum(log_ratio, limit)


def clip(log_ratio: LogRatio, quantile: float) -> LogRatio:
    """Cut the ratios at one of their own quantiles (for example 0.99)."""
    if not 0 < quantile <= 1:
        raise ValueError(f"quantile must lie in (0, 1], but {quantile!r} came. 0.99 clips the largest 1 %.")
    xp = namespace(log_ratio)
    rank = max(math.ceil(quantile * log_ratio.shape[0]) - 1, 0)
    return xp.minimum(log_ratio, xp.sort(log_ratio)[rank])


def forward_kl(log_ratio: LogRatio) -> Scalar:
    r"""Estimate :math:`\mathrm{KL}(p\|q)=\sum_s w_s\log r_s-\log\hat Z` (Eq. 9 less the unknown constant)."""
    xp = namespace(log_ratio)
    log_weight = normalise(log_ratio)
    weight = xp.exp(log_weight)
    relative = xp.where(weight > 0, log_weight + math.log(log_ratio.shape[0]), 0.0)
    return xp.where(xp.any(weight > 0), xp.sum(weight * relative), xp.inf)


def renyi_divergence(log_ratio: LogRatio) -> Scalar:
    r"""Estimate the Rényi divergence :math:`D_2(p\|q)=\log\mathrm E_q[(p/q)^2]`; :math:`\chi^2=e^{D_2}-1`."""
    xp = namespace(log_ratio)
    log_total = logsumexp(2 * normalise(log_ratio))
    return xp.where(log_total > -xp.inf, log_total + math.log(log_ratio.shape[0]), xp.inf)


def required_draws(log_ratio: LogRatio) -> Scalar:
    r"""Draws needed for accurate means, of the order :math:`e^{\mathrm{KL}(p\|q)}` (Chatterjee & Diaconis 2018)."""
    return namespace(log_ratio).exp(forward_kl(log_ratio))


@record
class WeightedDraws:
    """Draws of a proposal with their weights under the target.

    Parameters
    ----------
    x
        Flat draws of the proposal.
    log_p, log_q
        Log density of the target (invalid values replaced by -inf) and of the proposal.
    log_weight
        Pareto-smoothed, normalised log-weights; expectations and resampling use them.
    pareto_k
        Tail index k̂ of the raw ratios.
    num_nan, num_positive_infinite
        How often the target returned NaN or +inf. Such draws have weight zero.
    target
        The target, which turns flat draws into positions.
    control
        A control variate for the evidence at each draw (:func:`klover.controls.control`); 0 if there is none.
    """

    x: Float[AnyArray, "... draw dim"]
    log_p: Float[AnyArray, "... draw"]
    log_q: Float[AnyArray, "... draw"]
    log_weight: Float[AnyArray, "... draw"]
    pareto_k: Float[AnyArray, "..."]
    num_nan: Int[AnyArray, "..."]
    num_positive_infinite: Int[AnyArray, "..."]
    target: Target
    control: Float[AnyArray, "..."] | float = dataclasses.field(default=0.0, kw_only=True)

    @property
    def kind(self) -> str:
        """What the draws are: ``"importance"`` draws of a proposal, or ``"particles"``."""
        return "importance"

    @property
    def num_draws(self) -> int:
        """Number of draws S."""
        return self.x.shape[0]

    @property
    def log_ratio(self) -> LogRatio:
        """Raw log-ratios log p - log q."""
        return self.log_p - self.log_q

    @property
    def _figures(self) -> tuple[Scalar, Scalar, Scalar, Scalar]:
        """Log evidence, its error, ESS and forward KL; on JAX arrays in one small program."""
        compute = _compiled_figures if namespace(self.log_p, self.log_q) is jnp else _figures
        return compute(self.log_ratio, self.control)

    @property
    def log_evidence(self) -> Scalar:
        """Log of the evidence, from the raw ratios and the control variate."""
        return self._figures[0]

    @property
    def log_evidence_se(self) -> Scalar:
        """Standard error of the log evidence."""
        return self._figures[1]

    @property
    def ess(self) -> Scalar:
        """Effective number of draws, from the raw ratios."""
        return self._figures[2]

    @property
    def forward_kl(self) -> Scalar:
        """Estimate of KL(p‖q)."""
        return self._figures[3]

    @property
    def required_draws(self) -> Scalar:
        """Estimate exp(KL) of the number of draws that this proposal needs."""
        return namespace(self.log_p).exp(self.forward_kl)

    @property
    def positions(self) -> PyTree:
        """Constrained positions at the draws, stacked on a leading axis."""
        return stored.positions(self.target, self.x)

    def values(self, function: Callable[[PyTree], PyTree]) -> PyTree:
        """Evaluate a function of one constrained position at every draw."""
        return jax.vmap(function)(self.positions)

    def expectation(self, function: Callable[[PyTree], PyTree]) -> tuple[PyTree, PyTree]:
        """Posterior expectation of a function of the position, with its standard error.

        Parameters
        ----------
        function
            From one constrained position to a number, an array or a pytree of arrays; of a condition the expectation is
            its probability.
        """
        values = jax.tree.map(lambda leaf: leaf.astype(jnp.result_type(leaf, self.log_p)), self.values(function))
        pairs = jax.tree.map(self.mean_and_error, values)
        return jax.tree.transpose(jax.tree.structure(values), jax.tree.structure((0, 0)), pairs)

    def mean_and_error(
        self, values: Float[AnyArray, "draw ..."]
    ) -> tuple[Float[AnyArray, "..."], Float[AnyArray, "..."]]:
        """Weighted mean of values at the draws, and its standard error."""
        return self_normalised(self.log_weight, values)

    def function_pareto_k(self, function: Callable[[PyTree], Float[AnyArray, ""]]) -> Scalar:
        """Tail index of ``|function| · ratio``: whether *this* expectation has a finite variance."""
        values = self.values(function)
        if values.ndim != 1:
            raise ValueError(f"function must return one number, but it returned shape {values.shape[1:]}.")
        # Outside the support a function may have no value, or an infinite one.
        magnitude = jnp.where(self.log_ratio > -jnp.inf, jnp.abs(values), 0.0)
        return _pareto_k(self.log_ratio + jnp.where(magnitude == 0, -jnp.inf, jnp.log(magnitude)))

    def resample(
        self, key: Key[jax.Array, ""], num_draws: int, method: str = "systematic"
    ) -> Float[jax.Array, "draw dim"]:
        """Return equally weighted flat draws; ``"without-replacement"`` gives distinct ones."""
        return jnp.asarray(self.x)[resampling.resample(key, self.log_weight, num_draws, method)]

    def initial_positions(self, key: Key[jax.Array, ""], num_chains: int, constrained: bool = False) -> PyTree:
        """Choose distinct starting points for Markov chains: NumPy arrays with a leading axis of chains, as positions.

        Parameters
        ----------
        key
            A typed key.
        num_chains
            How many to choose, in proportion to their weights; no two of them are the same point.
        constrained
            Whether to return constrained positions; otherwise they are unconstrained ones, as NUTS wants them.
        """
        check_count("num_chains", num_chains, 1)
        # Particles may be copies of each other.
        first, log_weight = resampling.merge_copies(np.asarray(self.x), np.asarray(self.log_weight, float))
        if len(first) < num_chains:
            raise ValueError(
                f"num_chains must be at most the number of distinct draws of positive weight, {len(first)}, but "
                f"{num_chains} came. Draw more with fit.importance(key, num_draws), or run fewer chains."
            )
        chosen = first[resampling.resample(key, log_weight, num_chains, "without-replacement")]
        if constrained:
            return jax.tree.map(lambda leaf: np.asarray(leaf)[chosen], self.positions)
        # PyMC takes no arrays of JAX; NumPyro and blackjax take both.
        return jax.tree.map(np.asarray, jax.vmap(self.target.unravel)(jnp.asarray(self.x)[chosen]))

    def to_datatree(
        self, key: Key[jax.Array, ""] | None = None, num_draws: int = 4000, predictive: bool = False
    ) -> Any:
        """Return labelled results in ArviZ's groups, as an ``xarray.DataTree``.

        ``posterior`` holds draws of equal weight, because ArviZ knows no weights: one chain, so that r_hat is NaN. Some
        of them come more than once, which ArviZ's ess and mcse do not see: those of ``fit.summary()`` are right.
        ``sample_stats`` has their log density ``lp``. ``proposal`` holds the weighted draws, with ``log_p``, ``log_q``,
        the raw ``log_ratio`` and the smoothed ``log_weight``. ``observed_data`` and ``log_likelihood`` are there where
        the model knows them.

        Parameters
        ----------
        key
            For resampling and predictions; a fixed one if None.
        num_draws
            How many draws of equal weight.
        predictive
            Whether to add ``posterior_predictive``, new observations for each of these draws.
        """
        key_choice, key_order, key_predictions = jax.random.split(jax.random.key(0) if key is None else key, 3)
        index = jax.random.permutation(key_order, resampling.resample(key_choice, self.log_weight, num_draws))
        return datatree.build(self, np.asarray(index), key_predictions, predictive)

    def to_arviz(self, key: Key[jax.Array, ""] | None = None, num_draws: int = 4000, predictive: bool = False) -> Any:
        """Return :meth:`to_datatree` as the installed ArviZ has it: a DataTree, or InferenceData before ArviZ 1."""
        return datatree.to_arviz(self.to_datatree(key, num_draws, predictive))


def _figures(log_ratio: LogRatio, control: LogRatio | float) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    return *log_evidence(log_ratio, control), effective_sample_size(log_ratio), forward_kl(log_ratio)


_compiled_figures = jax.jit(_figures)
_pareto_k = jax.jit(psis.pareto_k)


@jax.jit
def weigh(
    target: Target, x: Float[AnyArray, "draw dim"], log_q: LogRatio, proposal: Mixture | None = None
) -> WeightedDraws:
    """Evaluate the target at draws of a proposal, and weight them; if that is a mixture, use its control variate."""
    log_p, num_nan, num_positive_infinite = evaluate(target, x)
    log_weight, pareto_k = psis.smooth(log_p - log_q)
    control = jnp.zeros_like(log_q) if proposal is None else controls.control(proposal, x, log_q, log_p)
    return WeightedDraws(x, log_p, log_q, log_weight, pareto_k, num_nan, num_positive_infinite, target, control=control)


def sample_importance(key: Key[jax.Array, ""], target: Target, proposal: Mixture, num_draws: int) -> WeightedDraws:
    """Draw from a mixture and weight the draws with the whole mixture as denominator."""
    check_key(key)
    check_count("num_draws", num_draws, 2, "Standard errors need two draws at the least; 10,000 is a good number.")
    x, log_q = jax.jit(Mixture.sample_and_log_prob, static_argnums=2)(proposal, key, num_draws)
    # What comes out of a compiled program may carry the front end of another target that shares it.
    return dataclasses.replace(weigh(target, x, log_q, proposal), target=target)
