"""From weights to a verdict: trusted, or refused with the reason and the remedy.

The weights of a proposal say nothing about a mode that it never visits: k̂ and ESS are then perfect. So the verdict also
climbs the target from far-flung points, and refuses when a top is found where one more draw would outweigh all others.
This is a search, not a proof: it can miss a mode whose basin no start falls into.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from klover.base.shapes import AnyArray, Float, Key
from klover.boosting.placement import climb
from klover.importance.draws import WeightedDraws
from klover.importance.islands import ParticleDraws
from klover.importance.psis import reliable_k
from klover.mixtures.mixture import Mixture
from klover.targets.loaded import TargetLike
from klover.targets.target import Target
from klover.verdict.status import Status

FEWEST_EFFECTIVE_DRAWS = 100
LARGEST_INVALID_SHARE = 0.1
LARGEST_SPREAD = 1.0
LARGEST_DRIFT = 3.0
NUM_STARTS = 16
INFLATION = 3.0
DECISIVE = (Status.IMPROPER, Status.TARGET_RAISED, Status.NOT_A_NUMBER)
"""Doubts that explain bad weights, and are named before them."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether an answer is to be believed.

    Parameters
    ----------
    trusted
        True when nothing speaks against the answer.
    reason
        Why, in words.
    remedy
        What to do when it is refused; empty when it is trusted.
    status
        The same as a member of :class:`klover.Status`.
    """

    trusted: bool
    reason: str
    remedy: str
    status: Status

    def __str__(self) -> str:
        """Verdict, reason and remedy in one paragraph."""
        return f"{'trusted' if self.trusted else 'REFUSED'}: {self.reason} {self.remedy}".rstrip()


def judge(draws: WeightedDraws, doubt: Status | None = None, **figures: Any) -> Verdict:
    """Judge fresh draws of a final proposal.

    Parameters
    ----------
    draws
        Weighted draws that were not used to fit the proposal.
    doubt
        What else speaks against the answer, for example a mode that :func:`uncovered_mode` has found.
    **figures
        Numbers and words for the reason of the doubt.
    """
    limit = reliable_k(draws.num_draws)
    num_nan, num_infinite = int(draws.num_nan), int(draws.num_positive_infinite)
    pareto_k, ess = float(draws.pareto_k), float(draws.ess)
    if ess == 0:
        status = Status.NO_SUPPORT
    elif doubt in DECISIVE:
        status = doubt
    elif num_nan + num_infinite > LARGEST_INVALID_SHARE * draws.num_draws:
        status = Status.NOT_A_NUMBER
    elif not pareto_k <= limit:
        status = Status.HEAVY_WEIGHTS
    elif doubt is not None:
        status = doubt
    elif ess < FEWEST_EFFECTIVE_DRAWS:
        status = Status.FEW_EFFECTIVE_DRAWS
    else:
        status = Status.TRUSTED
    figures = {
        "pareto_k": pareto_k,
        "ess": ess,
        "num_draws": draws.num_draws,
        "num_nan": num_nan,
        "num_infinite": num_infinite,
        "limit": limit,
        "minimum": FEWEST_EFFECTIVE_DRAWS,
        **figures,
    }
    reason = status.reason.format(**figures)
    if status is Status.TRUSTED and num_nan + num_infinite > 0:
        reason += f" ({num_nan} draws were NaN and {num_infinite} +inf: taken as outside the support.)"
    return Verdict(status is Status.TRUSTED, reason, status.remedy.format(**figures), status)


def judge_particles(draws: ParticleDraws, mode: str | None = None) -> Verdict:
    """Judge particles by the agreement of their islands, after importance sampling was refused.

    Parameters
    ----------
    draws
        The particles.
    mode
        A mode, in words, that none of them is on.
    """
    is_converged = (
        draws.spread < LARGEST_SPREAD
        and float(draws.drift) < LARGEST_DRIFT
        and float(draws.ess) >= FEWEST_EFFECTIVE_DRAWS
    )
    status = Status.PARTICLES if is_converged else Status.UNCONVERGED_PARTICLES
    if is_converged and mode is not None:
        status = Status.PARTICLES_MISS_MODE
    figures = {
        "pareto_k": float(draws.pareto_k),
        "num_draws": draws.num_draws,
        "num_islands": draws.num_islands,
        "spread": draws.spread,
        "drift": float(draws.drift),
        "ess": float(draws.ess),
        "mode": mode,
    }
    return Verdict(status is Status.PARTICLES, status.reason.format(**figures), status.remedy, status)


@jax.jit
def _search(
    key: Key[jax.Array, ""], target: Target, proposal: Mixture, x: Float[jax.Array, "draw dim"]
) -> tuple[Float[jax.Array, " dim"], Float[jax.Array, ""]]:
    """Climb log p from inflated draws and from around the example; return the top with the largest ratio p/q."""
    key_pick, key_near = jax.random.split(key)
    picked = x[jax.random.choice(key_pick, x.shape[0], (NUM_STARTS,))]
    centre = jnp.median(x, axis=0)
    near = target.start + INFLATION * jax.random.normal(key_near, (NUM_STARTS, target.dim), x.dtype)
    tops = climb(target.log_prob, jnp.concatenate([centre + INFLATION * (picked - centre), near]))
    log_ratio = target.log_prob(tops) - proposal.log_prob(tops)
    worst = jnp.argmax(jnp.where(jnp.isfinite(log_ratio), log_ratio, -jnp.inf))
    return tops[worst], log_ratio[worst]


def uncovered_mode(key: Key[jax.Array, ""], draws: WeightedDraws, proposal: Mixture) -> str | None:
    """Look for a mode of the target that the proposal misses, and say where it is.

    A top counts as missed when its ratio p/q is so large that one draw there would outweigh all draws together.
    """
    top, log_ratio = _search(key, draws.target, proposal, draws.x)
    if not float(log_ratio) > float(draws.log_evidence) + np.log(draws.num_draws):
        return None
    return place_in_words(draws.target, top)


def place_in_words(target: TargetLike, x: Float[AnyArray, " dim"]) -> str:
    """Name the first coordinates of a point."""
    values = np.asarray(target.flat_position(x[None]))[0]
    named = [f"{name} = {value:.3g}" for name, value in zip(target.names, values, strict=True)]
    return "at " + ", ".join(named[:4]) + (", ..." if len(named) > 4 else "")
