"""Importance sampling: draws with their log-ratios, and what they say (:mod:`klover.importance.ratios`).

Draws of a mixture of NumPy arrays, which :func:`klover.refine` returns, are made, weighed and used on the host: nothing
is compiled but the target (as it was for :func:`klover.refine`) and the user's own functions. With a mixture of JAX
arrays all of it is compiled, and can be vmapped.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from klover.base.arrays import namespace, randomness
from klover.base.checks import as_floats, check_count, check_flag, check_function, check_result, in_words, note
from klover.base.jaxpr import trace
from klover.base.shapes import AnyArray, Float, Int, KeyLike, Points, PyTree, Scalar, record
from klover.importance import control_variates, psis, ratios, resampling
from klover.importance.ratios import LogRatio, MeanAndError
from klover.targets.evaluator import Evaluator
from klover.targets.loaded import TargetLike, as_target
from klover.targets.positions import variables
from klover.targets.target import Target, evaluate
from klover.warps.warped import Proposal

BLOCK = 256
"""Draws at which a function is computed at a time."""


@record
class WeightedDraws:
    """Flat draws x of a proposal with their weights under the target, which turns them into positions.

    ``log_p`` (invalid values replaced by -inf) and ``log_q`` are log densities of the target and of the proposal;
    ``log_weight`` has the Pareto-smoothed, normalised log-weights, which expectations and resampling use; ``pareto_k``
    is the tail index k̂ of the raw ratios. The target returned NaN ``num_nan`` times, and +inf
    ``num_positive_infinite`` times: such draws have weight zero. ``control`` is a control variate for the evidence at
    each draw (:mod:`klover.importance.control_variates`), 0 if there is none.
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
    def log_evidence(self) -> Scalar:
        """Log of the evidence, from the raw ratios and the control variate."""
        return ratios.log_evidence(self.log_ratio, self.control)[0]

    @property
    def log_evidence_se(self) -> Scalar:
        """Standard error of the log evidence."""
        return ratios.log_evidence(self.log_ratio, self.control)[1]

    @property
    def ess(self) -> Scalar:
        """Effective number of draws, from the raw ratios."""
        return ratios.effective_sample_size(self.log_ratio)

    @property
    def forward_kl(self) -> Scalar:
        """Estimate of KL(p‖q)."""
        return ratios.forward_kl(self.log_ratio)

    @property
    def required_draws(self) -> Scalar:
        """Estimate exp(KL) of the number of draws that this proposal needs."""
        return ratios.required_draws(self.log_ratio)

    @property
    def positions(self) -> PyTree:
        """Constrained positions at the draws, stacked on a leading axis."""
        return self.target.positions(self.x)

    def values(self, function: Callable[[PyTree], PyTree]) -> PyTree:
        """Evaluate a function of one constrained position at every draw."""
        check_function("function", function, "one constrained position")
        with note(
            "function failed: make it a function of one constrained position, as fit.target.position(x) gives it."
        ):
            found = over_draws(lambda position: check_result("function", function(position)), self.positions)
        if not jax.tree.leaves(found):
            raise ValueError(f"function must return a number, an array or a pytree of arrays, got {found}.")
        return found

    def expectation(self, function: Callable[[PyTree], PyTree]) -> tuple[PyTree, PyTree]:
        """Posterior expectation of a function of the position, with its standard error.

        The function maps one constrained position to a number, an array or a pytree of arrays; of a condition the
        expectation is its probability.
        """
        values = self.values(function)

        def average(leaf):
            is_number = jnp.issubdtype(leaf.dtype, jnp.inexact)
            return self.mean_and_error(leaf if is_number else leaf.astype(self.log_p.dtype))

        pairs = jax.tree.map(average, values)
        return jax.tree.transpose(jax.tree.structure(values), jax.tree.structure((0, 0)), pairs)

    def mean_and_error(self, values: Float[AnyArray, "draw ..."]) -> MeanAndError:
        """Weighted mean of values at the draws, and its standard error."""
        return ratios.self_normalised(self.log_weight, check_values(values, self.num_draws))

    def function_pareto_k(self, function: Callable[[PyTree], Scalar]) -> Scalar:
        """Tail index of ``|function| · ratio``: whether *this* expectation has a finite variance."""
        values = self.values(function)
        if np.ndim(values) != 1:
            found = f"shape {values.shape[1:]}" if hasattr(values, "shape") else in_words(values)
            raise ValueError(f"function must return one number, but it returned {found}.")
        xp = namespace(self.log_p, values)
        # Outside the support a function may have no value, or an infinite one.
        counts = (self.log_ratio > -xp.inf) & (values != 0)
        log_magnitude = xp.log(xp.where(counts, xp.abs(values), 1.0))
        return psis.pareto_k(xp.where(counts, self.log_ratio + log_magnitude, -xp.inf))

    def resample(self, key: KeyLike, num_draws: int, method: str = "systematic") -> dict[str, AnyArray]:
        """Return equally weighted posterior draws by name: constrained values, as NumPy arrays of shape (draw, ...).

        The method is ``"systematic"``, ``"stratified"``, ``"residual"`` (all with replacement: more draws than are
        effective, ``ess``, repeat what is there), or ``"without-replacement"`` for distinct draws. The key is one of
        JAX, or a whole number as its seed.
        """
        x = self.resample_unconstrained(key, num_draws, method)
        return variables(self.target.positions(x), self.target.names)

    def resample_unconstrained(self, key: KeyLike, num_draws: int, method: str = "systematic") -> Points:
        """Return what :meth:`resample` returns for the same key, as flat, unconstrained points."""
        index = resampling.resample(key, self.log_weight, num_draws, method)
        return (self.x if isinstance(index, np.ndarray) else jnp.asarray(self.x))[index]

    def initial_positions(self, key: KeyLike, num_chains: int, constrained: bool = False) -> PyTree:
        """Choose distinct starting points for Markov chains: NumPy arrays with a leading axis of chains, as positions.

        They are chosen in proportion to their weights, and no two are the same point. Positions are unconstrained, as
        NUTS wants them, unless asked otherwise. The key is one of JAX, or a whole number as its seed.
        """
        check_count("num_chains", num_chains, 1)
        check_flag("constrained", constrained)
        x = np.asarray(self.x)
        # Particles may be copies of each other.
        first, log_weight = resampling.merge_copies(x, np.asarray(self.log_weight, float))
        if len(first) < num_chains:
            raise ValueError(
                f"num_chains must be at most the number of distinct draws of positive weight, {len(first)}, got "
                f"{num_chains}. Draw more with fit.importance(key, num_draws), or run fewer chains."
            )
        chosen = x[first[resampling.resample(key, log_weight, num_chains, "without-replacement")]]
        return self.target.positions(chosen) if constrained else self.target.unravel(chosen)


def check_values(values: Any, num_draws: int) -> Float[AnyArray, "draw ..."]:
    """Return values at all draws as an array, and refuse anything else."""
    array = as_floats("values", values)
    if array.shape[:1] != (num_draws,):
        raise ValueError(
            f"values must have a leading axis of the {num_draws} draws, got shape {array.shape}. To compute them from "
            "a function of the position, use expectation(function)."
        )
    return array


def over_draws(function: Callable[..., PyTree], *arguments: PyTree) -> PyTree:
    """Evaluate a function of one draw at all draws, which are stacked on the leading axes of its arguments.

    It is compiled for a block of draws: less work than a program for each of its operations, and less memory than all
    draws at a time. It is traced at each call, since what it refers to may have changed, but compiled only where it
    computes something new. Where JAX cannot trace the function, it is called draw by draw.
    """
    leaves, structure = jax.tree.flatten(arguments)
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        return jax.vmap(function)(*arguments)
    num_draws = len(leaves[0])
    size = min(BLOCK, num_draws)

    def block(start: int) -> PyTree:
        # The last block is filled up with copies of the last draw.
        rows = np.minimum(np.arange(start, start + size), num_draws - 1)
        return jax.tree.map(lambda leaf: np.asarray(leaf)[rows], arguments)

    try:
        program = trace(jax.vmap(function), *block(0))
        parts = [program(*block(start)) for start in range(0, num_draws, size)]
        return jax.tree.map(lambda *found: np.concatenate(found)[:num_draws], *parts)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError):
        each = [function(*jax.tree.unflatten(structure, draw)) for draw in zip(*leaves, strict=True)]
        return jax.tree.map(lambda *results: np.stack(results), *each)


@jax.jit
def weigh(target: Target, x: Points, log_q: LogRatio, proposal: Proposal | None = None) -> WeightedDraws:
    """Evaluate the target at draws of a proposal, and weight them; if that is a mixture, use its control variate."""
    log_p, num_nan, num_positive_infinite = evaluate(target, x)
    log_weight, pareto_k = psis.smooth(log_p - log_q)
    control = jnp.zeros_like(log_q) if proposal is None else control_variates.control(proposal, x, log_q, log_p)
    return WeightedDraws(x, log_p, log_q, log_weight, pareto_k, num_nan, num_positive_infinite, target, control=control)


def weigh_on_host(
    generator: np.random.Generator, evaluator: Evaluator, proposal: Proposal, num_draws: int
) -> WeightedDraws:
    """Draw from a mixture of NumPy arrays, and weight the draws; nothing is compiled but the target.

    If the evaluator's time runs out there are fewer of them; they come in random order, so that the first are as good.
    """
    num_nan, num_infinite = evaluator.num_nan, evaluator.num_infinite
    # Rounded as the target will see them, so that both densities are those of one point.
    x = proposal.draw(generator, num_draws).astype(evaluator.target.start.dtype).astype(float)
    log_p = evaluator.values_in_time(x)
    x = x[: len(log_p)]
    log_q = proposal.log_prob(x)
    log_weight, pareto_k = psis.smooth(log_p - log_q)
    control = control_variates.control(proposal, x, log_q, log_p)
    invalid = np.asarray(evaluator.num_nan - num_nan), np.asarray(evaluator.num_infinite - num_infinite)
    return WeightedDraws(x, log_p, log_q, log_weight, pareto_k, *invalid, evaluator.target, control=control)


def sample_importance(key: KeyLike, target: TargetLike, proposal: Proposal, num_draws: int) -> WeightedDraws:
    """Draw from a mixture and weight the draws with the whole mixture as denominator."""
    target = as_target(target)
    check_count("num_draws", num_draws, 2, "Standard errors need two draws at the least; 10,000 is a good number.")
    source = randomness(key, proposal.log_weights, target.start)
    if isinstance(source, np.random.Generator):
        return weigh_on_host(source, Evaluator(target), proposal, num_draws)
    x, log_q = jax.jit(type(proposal).sample_and_log_prob, static_argnums=2)(proposal, source, num_draws)
    # What comes out of a compiled program may carry the front end of another target that shares it.
    return dataclasses.replace(weigh(target, x, log_q, proposal), target=target)
