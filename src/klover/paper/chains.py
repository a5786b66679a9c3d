"""Markov chains by blackjax: Hamiltonian Monte Carlo as the paper ran it, and chains that Stan's windows adapt.

Every function runs one chain and can be vmapped over chains and targets.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from klover.base import optional
from klover.base.shapes import AnyArray, Float, Int, Point, Points, RandomKey, Scalar
from klover.targets.target import Target

LogDensity = Callable[[Point], Scalar]

NUM_LEAPFROGS = 10
START_SCALE = 0.01
"""Chains start at draws of N(0, 0.01²) (appendix "Hyperparameters")."""
NUM_BURN_IN, NUM_ADAPTED = 1000, 800
FIRST_STEP = 1.0
ACCEPTANCE = 0.75
JITTER = 0.2


def start(key: RandomKey, target: Target) -> Point:
    """Draw the paper's starting point of a chain."""
    return START_SCALE * jax.random.normal(key, (target.dim,), target.start.dtype)


def _jitter(key: RandomKey, size: Scalar) -> Scalar:
    """Vary a step size: trajectories of one length may be whole periods of a coordinate, which then never mixes."""
    return size * jax.random.uniform(key, (), size.dtype, 1 - JITTER, 1 + JITTER)


def hamiltonian(
    key: RandomKey,
    log_density: LogDensity,
    position: Point,
    num_draws: int,
    *,
    step_size: Scalar | float = FIRST_STEP,
    num_burn_in: int = NUM_BURN_IN,
    num_adapted: int = NUM_ADAPTED,
) -> Points:
    """Run HMC with unit masses: some steps of burn-in, of which the first adapt the step size by dual averaging.

    With ``num_adapted=0`` all steps have the given size.
    """
    blackjax = optional.blackjax()
    kernel = blackjax.mcmc.hmc.build_kernel()
    begin, update, _ = blackjax.adaptation.step_size.dual_averaging_adaptation(ACCEPTANCE)
    masses = jnp.ones(position.shape[0], position.dtype)

    def move(state, step_key, size):
        key_size, key_move = jax.random.split(step_key)
        return kernel(key_move, state, log_density, _jitter(key_size, size), masses, NUM_LEAPFROGS)

    def adapt(carry, inputs):
        state, adaptation = carry
        step_key, number = inputs
        is_adapting = number < num_adapted
        size = jnp.exp(jnp.where(is_adapting, adaptation.log_step_size, adaptation.log_step_size_avg))
        state, info = move(state, step_key, size)
        updated = update(adaptation, info.acceptance_rate)
        adaptation = jax.tree.map(lambda new, old: jnp.where(is_adapting, new, old), updated, adaptation)
        return (state, adaptation), None

    key_burn, key_draw = jax.random.split(key)
    state = blackjax.mcmc.hmc.init(position, log_density)
    # Both averages begin at the given step, so that it serves where nothing is adapted.
    first = begin(jnp.asarray(step_size, position.dtype))
    first = first._replace(log_step_size_avg=first.log_step_size)
    steps = jax.random.split(key_burn, num_burn_in), jnp.arange(num_burn_in)
    (state, adaptation), _ = jax.lax.scan(adapt, (state, first), steps)
    size = jnp.exp(adaptation.log_step_size_avg)

    def draw(state, step_key):
        state, _ = move(state, step_key, size)
        return state, state.position

    return jax.lax.scan(draw, state, jax.random.split(key_draw, num_draws))[1]


def adapted(
    key: RandomKey,
    log_density: LogDensity,
    position: Point,
    num_draws: int,
    *,
    algorithm: str = "nuts",
    num_warmup: int = NUM_BURN_IN,
    budget: float | int = math.inf,
    **options: Any,
) -> tuple[Points, Int[AnyArray, " draw"], Int[AnyArray, ""]]:
    """Run ``"nuts"`` or ``"hmc"``, with Stan's windows to adapt the step size and the diagonal masses.

    Return positions, the leapfrog steps that each took, and those of the warm-up. When the steps of both exceed the
    ``budget``, the chain stays where it is. ``options`` are those of blackjax's algorithm.
    """
    blackjax = optional.blackjax()
    kernel = getattr(blackjax, algorithm)
    warmup = blackjax.window_adaptation(
        kernel, log_density, adaptation_info_fn=lambda state, info, adaptation: info.num_integration_steps, **options
    )
    key_warmup, key_draw = jax.random.split(key)
    # The number of steps has no place in the annotation of ``run``.
    run: Any = warmup.run
    (state, parameters), num_warmup_steps = run(key_warmup, position, num_warmup)
    spent = jnp.sum(num_warmup_steps)

    def move(state, step_key):
        key_size, key_move = jax.random.split(step_key)
        jittered = {**parameters, "step_size": _jitter(key_size, parameters["step_size"])}
        state, info = kernel(log_density, **jittered).step(key_move, state)
        return state, jnp.asarray(info.num_integration_steps, spent.dtype)

    def draw(carry, step_key):
        state, total = carry
        state, num = jax.lax.cond(
            total < budget, move, lambda state, _: (state, jnp.zeros_like(total)), state, step_key
        )
        return (state, total + num), (state.position, num)

    _, (x, num_steps) = jax.lax.scan(draw, (state, spent), jax.random.split(key_draw, num_draws))
    return x, num_steps, spent


def effective_draws(x: Float[AnyArray, "chain draw dim"]) -> Scalar:
    """Smallest effective number of draws over all coordinates, between and within chains."""
    halves = x.reshape(2 * x.shape[0], -1, x.shape[-1])
    return jnp.min(optional.blackjax().diagnostics.effective_sample_size(halves))
