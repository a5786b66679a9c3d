r"""Escalation: where importance sampling cannot work, particles carry an approximation to the target.

In hundreds of dimensions the weights of any fitted mixture rest on a handful of draws. Sequential Monte Carlo along
:math:`p^\beta q^{1-\beta}` needs no such luck: every step changes the density so little that half of the particles stay
effective, and Hamiltonian moves bring them to it (:mod:`klover.sampling.swarm`). It begins from the better (by the
evidence lower bound) of the fitted mixture and a mean-field Gaussian, and runs on independent islands
(:mod:`klover.importance.islands`), which share the temperatures and the metric alone.

Few particles on long trajectories do better than many on short ones. On the paper's neural network (Boston, split 1,
d = 753) with about 1.2 to 1.8 million gradients, two seeds each, the test log-likelihood was -2.30 with 512 particles
and 20 leapfrog steps, -2.28 with 256 and 50, -2.27 with 128 and 100, -2.25 with 128 and 250; NUTS has -2.24.

The particles stand for p only as far as the moves mix. So the result says how far the islands' evidences lie apart, and
whether the particles still climbed in the last sweeps at p itself.
"""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from klover.base.arrays import logsumexp
from klover.base.shapes import AnyArray, Float, Int, Key
from klover.importance.islands import ParticleDraws
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.sampling import swarm as smc
from klover.sampling.swarm import Swarm
from klover.targets.evaluator import Evaluator
from klover.targets.target import Target
from klover.tuning import Islands

FEWEST_LEAPFROGS = 10
NUM_BOUND_DRAWS = 32
MOST_TURNS = 10_000
ISLANDS = Islands()

Keys = Key[jax.Array, " target"]
Charge = Callable[[Int[np.ndarray, " target"]], None]
Tell = Callable[[Float[np.ndarray, " target"]], None]


class Stranded(Exception):
    """Raised where particles cannot be carried to the target."""


_mean_field = jax.jit(jax.vmap(smc.mean_field))
_release = jax.jit(jax.vmap(smc.release, in_axes=(0, 0, 0, None, None)), static_argnums=(3, 4))
_advance = jax.jit(jax.vmap(smc.advance))


def mean_field(keys: Keys, targets: Target) -> Mixture:
    """Fit a Gaussian with a diagonal covariance to each target by the reverse KL."""
    return _gaussians(*_mean_field(keys, targets))


def _gaussians(location: Float[AnyArray, "target dim"], scale: Float[AnyArray, "target dim"]) -> Mixture:
    return jax.vmap(lambda mean, sd: Mixture.of(Family("normal", "diagonal").components(mean[None], sd[None] ** 2)))(
        location, scale
    )


def compile_ahead(keys: Keys, targets: Target, tuning: Islands = ISLANDS) -> None:
    """Compile what :func:`mean_field` and :func:`carry` run; they find it in JAX's own cache."""
    start = jax.vmap(lambda target: jnp.asarray(target.start))(targets)
    begins = _gaussians(start, jnp.ones_like(start))
    swarm = _release(keys, targets, begins, tuning.num_islands, tuning.island_size)
    _mean_field.lower(keys, targets).compile()
    # A move of no leapfrog costs next to nothing.
    _advance(keys, targets, begins, swarm, jnp.zeros(len(keys), int))


def carry(
    keys: Keys, targets: Target, begins: Mixture, charge: Charge, tell: Tell, tuning: Islands = ISLANDS
) -> tuple[Swarm, list[Swarm]]:
    """Carry particles from an approximation of each target to the target itself.

    Parameters
    ----------
    keys, targets, begins
        All with one axis in front: a key, a target and an approximation for each problem.
    charge
        Called with the evaluations that each problem is about to make.
    tell
        Called with the temperatures that have been reached.

    Returns
    -------
    The particles on arriving at the target, and those after each sweep there.
    """
    charge(np.full(len(keys), tuning.num_islands * tuning.island_size))
    swarm = _release(_fold(keys, 0), targets, begins, tuning.num_islands, tuning.island_size)
    if not np.isfinite(np.asarray(swarm.log_p)).any(axis=-1).all():
        raise Stranded("an island has no particle in the support of the target")
    turn, arrived, sweeps = 0, None, []
    while len(sweeps) < tuning.num_sweeps:
        turn += 1
        if turn > MOST_TURNS:
            raise Stranded(f"the target was not reached in {MOST_TURNS} turns")
        # Trajectories have the same length in the particles' own scales, whatever the step.
        num_leapfrogs = np.clip(
            tuning.trajectory / np.asarray(swarm.step), FEWEST_LEAPFROGS, tuning.most_leapfrogs
        ).astype(int)
        charge(tuning.num_islands * tuning.island_size * (num_leapfrogs + 1))
        swarm = _advance(_fold(keys, turn), targets, begins, swarm, jnp.asarray(num_leapfrogs))
        if np.all(np.asarray(swarm.beta) == 1):
            arrived = arrived or swarm
            sweeps.append(swarm)
        tell(np.asarray(swarm.beta))
    assert arrived is not None
    return arrived, sweeps


def _fold(keys: Keys, number: int) -> Keys:
    return jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, number)


def escalate(
    key: Key[jax.Array, ""],
    evaluator: Evaluator,
    mixture: Mixture,
    pareto_k: Float[AnyArray, ""],
    tell: Tell,
    tuning: Islands = ISLANDS,
) -> ParticleDraws:
    """Carry particles from the best beginning to the target, and keep the last sweeps there.

    Parameters
    ----------
    key
        A typed key.
    evaluator
        Of the refinement whose importance draws were refused.
    mixture
        The fitted mixture.
    pareto_k
        Tail index of those draws.
    tell
        Called with every temperature.
    tuning
        How many islands of how many particles, and how far they go.
    """
    began = time.perf_counter()
    key_field, key_bound, key_carry = jax.random.split(key, 3)
    targets = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], evaluator.target)
    evaluator.charge(smc.NUM_STEPS * smc.BATCH)
    field = mean_field(key_field[None], targets)
    fitted = jax.tree.map(lambda leaf: jnp.asarray(leaf, evaluator.target.start.dtype)[None], mixture)
    begins = max(fitted, field, key=lambda begin: _lower_bound(key_bound, evaluator, begin))
    arrived, sweeps = carry(key_carry[None], targets, begins, lambda num: evaluator.charge(int(num[0])), tell, tuning)
    evaluator.seconds += time.perf_counter() - began
    return as_draws(evaluator.target, arrived, sweeps, 0, pareto_k)


def _lower_bound(key: Key[jax.Array, ""], evaluator: Evaluator, begin: Mixture) -> float:
    """Estimate the evidence lower bound E_q[log p - log q]; draws outside the support make it -inf."""
    one = jax.tree.map(lambda leaf: leaf[0], begin)
    x = one.sample(key, NUM_BOUND_DRAWS)
    return float(np.mean(evaluator.values(np.asarray(x)) - np.asarray(one.log_prob(x))))


def as_draws(
    target: Target, arrived: Swarm, sweeps: list[Swarm], which: int, pareto_k: Float[AnyArray, ""]
) -> ParticleDraws:
    """Keep the last sweeps of one problem, and measure whether particles still climbed."""
    log_evidence = np.asarray(arrived.log_evidence[which], float)
    before, after = (np.asarray(sweeps[place].log_p[which]) for place in (0, -1))
    drift = abs(after.mean() - before.mean()) / np.sqrt((after.var() + before.var()) / after.size)
    kept = sweeps[len(sweeps) // 2 :]
    # Ordered by island, so that the scatter of islands can be read off.
    x = np.stack([np.asarray(swarm.x[which]) for swarm in kept], 1).reshape(-1, target.dim)
    log_p = np.stack([np.asarray(swarm.log_p[which]) for swarm in kept], 1).ravel()
    return ParticleDraws(
        x,
        log_p,
        log_p - (logsumexp(log_evidence) - np.log(len(log_evidence))),
        np.full(len(log_p), -np.log(len(log_p))),
        pareto_k,
        np.asarray(sweeps[-1].num_nan[which]),
        np.asarray(0),
        target,
        log_evidence,
        np.asarray(drift),
    )
