r"""Importance sampling: from log-ratios to weights, expectations, the evidence and their errors.

With draws :math:`\theta_s\sim q` and :math:`r_s=\hat p(\theta_s)/q(\theta_s)`, self-normalised weights
:math:`w_s=r_s/\sum_t r_t` (Eq. 9, ``eq:fkl_snis``) estimate expectations under p, and :math:`\frac1S\sum_s r_s`
estimates the evidence Z. Everything stays in log space; a draw outside the support has log-ratio -inf and weight zero.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from klover.base.arrays import namespace
from klover.base.checks import as_key, check_count
from klover.base.shapes import AnyArray, Float, Int, Key, PyTree, record
from klover.importance import control_variates, psis, resampling
from klover.importance.ratios import LogRatio, Scalar, effective_sample_size, forward_kl, log_evidence, self_normalised
from klover.mixtures.mixture import Mixture
from klover.targets.loaded import TargetLike, as_target
from klover.targets.target import Target, evaluate


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
        A control variate for the evidence at each draw (:mod:`klover.importance.control_variates`); 0 if there is none.
    """

    x: Float[AnyArray, "... draw dim"]
    log_p: Float[AnyArray, "... draw"]
    log_q: Float[AnyArray, "... draw"]
    log_weight: Float[AnyArray, "... draw"]
    pareto_k: Float[AnyArray, "..."]
    num_nan: Int[AnyArray, "..."]
    num_positive_infinite: Int[AnyArray, "..."]
    target: TargetLike
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
        return self.target.positions(self.x)

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
                f"num_chains must be at most the number of distinct draws of positive weight, {len(first)}, got "
                f"{num_chains}. Draw more with fit.importance(key, num_draws), or run fewer chains."
            )
        chosen = first[resampling.resample(key, log_weight, num_chains, "without-replacement")]
        if constrained:
            return jax.tree.map(lambda leaf: np.asarray(leaf)[chosen], self.positions)
        # PyMC takes no arrays of JAX; NumPyro and blackjax take both.
        return self.target.unravel(np.asarray(self.x)[chosen])


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
    control = jnp.zeros_like(log_q) if proposal is None else control_variates.control(proposal, x, log_q, log_p)
    return WeightedDraws(x, log_p, log_q, log_weight, pareto_k, num_nan, num_positive_infinite, target, control=control)


def sample_importance(key: Key[jax.Array, ""], target: TargetLike, proposal: Mixture, num_draws: int) -> WeightedDraws:
    """Draw from a mixture and weight the draws with the whole mixture as denominator."""
    key, target = as_key(key), as_target(target)
    check_count("num_draws", num_draws, 2, "Standard errors need two draws at the least; 10,000 is a good number.")
    x, log_q = jax.jit(Mixture.sample_and_log_prob, static_argnums=2)(proposal, key, num_draws)
    # What comes out of a compiled program may carry the front end of another target that shares it.
    return dataclasses.replace(weigh(target, x, log_q, proposal), target=target)
