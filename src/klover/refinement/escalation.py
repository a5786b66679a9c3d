r"""Escalation: where importance sampling cannot work, particles carry an approximation to the target.

In hundreds of dimensions the weights of any fitted mixture rest on a handful of draws. Sequential Monte Carlo along
:math:`p^\beta q^{1-\beta}` needs no such luck: every step changes the density so little that nearly all particles stay
effective, and Hamiltonian moves bring them to it (:mod:`klover.sampling.swarm`). It begins from the better (by the
evidence lower bound) of the fitted mixture and a mean-field Gaussian, in the coordinates that scores have whitened
where there are such (:mod:`klover.refinement.whitening`), and runs on independent islands
(:mod:`klover.importance.islands`). Half of these begin from the approximation as it is, half from a wider copy; islands
of one start share its temperatures and step, and each has the scales of the others.

Few particles on long trajectories do better than many on short ones. On the paper's neural network (Boston, split 1,
d = 753) with about 1.2 to 1.8 million gradients, two seeds each, the test log-likelihood was -2.30 with 512 particles
and 20 leapfrog steps, -2.28 with 256 and 50, -2.27 with 128 and 100, -2.25 with 128 and 250; NUTS has -2.24.

The particles stand for p only as far as the moves mix. So the result says how far the islands' evidences lie apart,
whether the particles still climbed at p itself, and whether those from the narrow start and from the wide one have
ended alike: on a funnel their evidences agree, all of them wrong, but the means of its width remember the start.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from klover.base.arrays import logsumexp
from klover.base.shapes import AnyArray, Float, Int, Key
from klover.fitting import mean_field as fitting
from klover.importance.islands import ParticleDraws, agreement
from klover.mixtures.algebra import inflate
from klover.mixtures.mixture import Mixture
from klover.sampling import swarm as smc
from klover.sampling.swarm import Swarm
from klover.targets.evaluator import Evaluator
from klover.targets.target import Target
from klover.tuning import Islands, Moves
from klover.warps.warp import Warp

FEWEST_LEAPFROGS = 3
NUM_BOUND_DRAWS = 32
MOST_TURNS = 10_000
ISLANDS, MOVES = Islands(), Moves()

Keys = Key[jax.Array, " target"]
Charge = Callable[[Int[np.ndarray, " target"]], None]
Tell = Callable[[Float[np.ndarray, " target"]], None]


class Stranded(Exception):
    """Raised where particles cannot be carried to the target."""


mean_field = jax.jit(jax.vmap(fitting.mean_field))
"""Fit a Gaussian with a diagonal covariance to each target by the reverse KL."""


@partial(jax.jit, static_argnums=1)
def _starts(begins: Mixture, inflations: tuple[float, ...]) -> Mixture:
    """Return copies of each approximation, from narrow to wide, on a second axis."""
    copies = [jax.vmap(partial(inflate, factor=factor))(begins) for factor in inflations]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves, 1), *copies)


@partial(jax.jit, static_argnums=(3, 4))
def _release(keys: Keys, targets: Target, starts: Mixture, num_islands: int, island_size: int) -> Swarm:
    def from_each(key, target, starts):
        own = jax.random.split(key, starts.log_weights.shape[0])
        return jax.vmap(lambda key, start: smc.release(key, target, start, num_islands, island_size))(own, starts)

    return jax.vmap(from_each)(keys, targets, starts)


@partial(jax.jit, static_argnums=(5, 6))
def _advance(
    keys: Keys,
    targets: Target,
    starts: Mixture,
    swarm: Swarm,
    num_leapfrogs: Int[AnyArray, "target start"],
    effective_share: float,
    acceptance: float,
) -> Swarm:
    def from_each(key, target, starts, swarm, num_leapfrogs):
        def from_one(key, start, swarm, num_leapfrogs):
            return smc.advance(key, target, start, swarm, num_leapfrogs, effective_share, acceptance)

        return jax.vmap(from_one)(jax.random.split(key, len(num_leapfrogs)), starts, swarm, num_leapfrogs)

    return jax.vmap(from_each)(keys, targets, starts, swarm, num_leapfrogs)


def compile_ahead(keys: Keys, targets: Target, tuning: Islands = ISLANDS, moves: Moves = MOVES) -> None:
    """Compile what :func:`mean_field` and :func:`carry` run; they find it in JAX's own cache."""
    mean_field.lower(keys, targets).compile()
    begins = jax.vmap(lambda target: fitting.gaussian(jnp.asarray(target.start), jnp.zeros_like(target.start)))(targets)
    starts = _starts(begins, tuning.inflations)
    swarm = _release(keys, targets, starts, tuning.num_islands, tuning.island_size)
    # A move of no leapfrog costs next to nothing.
    rest = jnp.zeros((len(keys), len(tuning.inflations)), int)
    _advance(keys, targets, starts, swarm, rest, tuning.effective_share, moves.acceptance)


def carry(
    keys: Keys,
    targets: Target,
    begins: Mixture,
    charge: Charge,
    tell: Tell,
    tuning: Islands = ISLANDS,
    moves: Moves = MOVES,
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
    The particles on arriving at the target, and those after each sweep there; axes are problems, starts, islands.
    """
    size = tuning.num_islands * tuning.island_size
    charge(np.full(len(keys), size * len(tuning.inflations)))
    starts = _starts(begins, tuning.inflations)
    swarm = _release(_fold(keys, 0), targets, starts, tuning.num_islands, tuning.island_size)
    if not np.isfinite(np.asarray(swarm.log_p)).any(axis=-1).all():
        raise Stranded("an island has no particle in the support of the target")
    turn, arrived, sweeps = 0, None, []
    while len(sweeps) < tuning.num_sweeps:
        turn += 1
        if turn > MOST_TURNS:
            raise Stranded(f"the target was not reached in {MOST_TURNS} turns")
        num_leapfrogs = _num_leapfrogs(swarm, tuning)
        charge(size * (num_leapfrogs + 1).sum(1))
        swarm = _advance(
            _fold(keys, turn),
            targets,
            starts,
            swarm,
            jnp.asarray(num_leapfrogs),
            tuning.effective_share,
            moves.acceptance,
        )
        if np.all(np.asarray(swarm.beta) == 1):
            arrived = arrived or swarm
            sweeps.append(swarm)
        tell(np.asarray(swarm.beta).min(1))
    assert arrived is not None
    return arrived, sweeps


def _num_leapfrogs(swarm: Swarm, tuning: Islands) -> Int[np.ndarray, "target start"]:
    """Trajectories have the same length in the particles' own scales, whatever the step.

    Between temperatures, which differ little, a short one does; who has arrived before others rests.
    """
    has_arrived = np.asarray(swarm.beta) == 1
    all_have = has_arrived.all()
    length = tuning.trajectory / (1 if all_have else 4)
    wanted = np.clip(length / np.asarray(swarm.step), FEWEST_LEAPFROGS, tuning.most_leapfrogs).astype(int)
    return wanted if all_have else np.where(has_arrived, 0, wanted)


def _fold(keys: Keys, number: int) -> Keys:
    return jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, number)


def escalate(
    key: Key[jax.Array, ""],
    evaluator: Evaluator,
    mixture: Mixture,
    pareto_k: Float[AnyArray, ""],
    tell: Tell,
    tuning: Islands = ISLANDS,
    moves: Moves = MOVES,
    warp: Warp | None = None,
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
    moves
        The acceptance that their steps are adapted to.
    warp
        From the user's coordinates to those in which the mixture is, and the particles move; None if they are the same.
    """
    key_field, key_bound, key_carry = jax.random.split(key, 3)
    target = evaluator.target if warp is None else _behind(evaluator.target, warp)
    targets = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], target)
    evaluator.charge(fitting.NUM_EVALUATIONS)
    fitted = jax.tree.map(lambda leaf: jnp.asarray(leaf, evaluator.target.start.dtype)[None], mixture)

    def charge(num):
        evaluator.charge(int(num[0]))

    with evaluator.evaluating():
        field = mean_field(key_field[None], targets)
        with evaluator.within(warp):
            begins = max(fitted, field, key=lambda begin: _lower_bound(key_bound, evaluator, begin))
        arrived, sweeps = carry(key_carry[None], targets, begins, charge, tell, tuning, moves)
    return as_draws(evaluator.target, arrived, sweeps, 0, pareto_k, warp)


def _behind(target: Target, warp: Warp) -> Target:
    """Return the target in the coordinates behind a warp, beginning at their origin."""
    arrays = jax.tree.map(lambda leaf: jnp.asarray(leaf, target.start.dtype), warp)

    def log_density(z):
        x, log_det = arrays.from_base(z)
        return target.log_prob(x) + log_det

    return Target(log_density, np.zeros(target.dim, target.start.dtype))


def _lower_bound(key: Key[jax.Array, ""], evaluator: Evaluator, begin: Mixture) -> float:
    """Estimate the evidence lower bound E_q[log p - log q]; draws outside the support make it -inf."""
    one = jax.tree.map(lambda leaf: leaf[0], begin)
    x = one.sample(key, NUM_BOUND_DRAWS)
    return float(np.mean(evaluator.values(np.asarray(x)) - np.asarray(one.log_prob(x))))


def as_draws(
    target: Target,
    arrived: Swarm,
    sweeps: list[Swarm],
    which: int,
    pareto_k: Float[AnyArray, ""],
    warp: Warp | None = None,
) -> ParticleDraws:
    """Keep the last sweeps of one problem, and measure whether particles have settled, in their own coordinates."""
    log_evidence = np.asarray(arrived.log_evidence[which], float)
    kept = sweeps[len(sweeps) // 2 :]
    # Axes: start, island, sweep, particle; so ordered, the scatter of islands can be read off.
    x = np.stack([np.asarray(swarm.x[which]) for swarm in kept], 2)
    log_p = np.stack([np.asarray(swarm.log_p[which]) for swarm in kept], 2)
    climb = log_p.mean((2, 3)) - np.asarray(arrived.log_p[which]).mean(2)
    num, settled = log_p.size, _agreement(x, log_evidence)
    x, log_p = x.reshape(num, target.dim), log_p.ravel()
    if warp is not None:
        x, log_det = warp.from_base(x)
        log_p = log_p - log_det
    return ParticleDraws(
        x,
        log_p,
        log_p - (logsumexp(log_evidence.ravel()) - np.log(log_evidence.size)),
        np.full(num, -np.log(num)),
        pareto_k,
        np.asarray(sweeps[-1].num_nan[which].sum()),
        np.asarray(0),
        target,
        log_evidence.ravel(),
        np.asarray(abs(climb.mean()) / (climb.std(ddof=1) / np.sqrt(climb.size))),
        agreement=np.asarray(settled),
    )


def _agreement(
    x: Float[np.ndarray, "start island sweep particle dim"], log_evidence: Float[np.ndarray, "start island"]
) -> float:
    """Compare the starts in their evidences, and in the means and log variances of all coordinates."""
    square = np.mean((x - x.mean((0, 1, 2, 3))) ** 2, axis=(2, 3))
    log_variance = np.log(np.maximum(square, np.finfo(float).tiny))
    return agreement(np.concatenate([log_evidence[:, :, None], x.mean((2, 3)), log_variance], axis=2))
