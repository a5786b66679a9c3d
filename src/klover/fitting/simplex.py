r"""Fully corrective weights: all :math:`\lambda_k` re-optimised on the simplex, components held fixed.

The forward problem, maximise :math:`\sum_sw_s\log\sum_k\lambda_kf_k(\theta_s)`, is convex with gradient

.. math:: \partial_{\lambda_k}=-g_k,\qquad g_k=\sum_sw_s\,f_k(\theta_s)/q(\theta_s)

(Eq. 23, ``eq:weight_grad``), and is solved by projected gradient (the paper), by multiplicative EM steps
:math:`\lambda_k\leftarrow\lambda_kg_k`, or by Newton steps. At the optimum :math:`g_k\le1`, with equality where
:math:`\lambda_k>0`: the *KKT gap*
:math:`\max_kg_k-1` bounds how much the objective can still rise. The same :math:`g` of a candidate that is not in the
mixture yet is its *gain*: above 1, adding the candidate lowers the forward KL.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from klover.base.arrays import iterate, logsumexp, namespace
from klover.base.checks import check_choice
from klover.base.linalg import solve_positive
from klover.base.shapes import AnyArray, Float, PerComponent, PerDraw, Scalar, Weights

NUM_STEPS = {"projected": 300, "em": 300, "newton": 40}
LINE_SEARCH = tuple(0.5**power for power in range(12))


def gain(log_candidate: PerComponent, log_q: PerDraw, weight: PerDraw) -> Weights:
    r"""Return :math:`g=\sum_sw_sf(\theta_s)/q(\theta_s)` for each candidate f: the negative functional gradient."""
    xp = namespace(log_candidate)
    log_weight = xp.where(weight > 0, xp.log(xp.where(weight > 0, weight, 1.0)), -xp.inf)
    return xp.exp(logsumexp(log_weight + log_candidate - xp.where(weight > 0, log_q, 0.0), axis=1))


def kkt_gap(log_weights: Weights, log_component: PerComponent, weight: PerDraw) -> Scalar:
    """Largest gain over the used components, less one: zero at the optimum."""
    xp = namespace(log_component)
    log_q = logsumexp(log_weights[:, None] + log_component, axis=0)
    return xp.max(xp.where(log_weights > -xp.inf, gain(log_component, log_q, weight), -xp.inf)) - 1.0


def forward_weights(
    log_weights: Weights,
    log_component: PerComponent,
    weight: PerDraw,
    method: str = "newton",
    num_steps: int | None = None,
) -> tuple[Weights, Scalar]:
    """Re-optimise the weights for the forward KL by ``"projected"``, ``"em"`` or ``"newton"``; return the KKT gap, too.

    Slots at -inf are unused and stay so. ``log_component`` has the log density of each component at the draws, whose
    normalised weights under the target are ``weight``. Each method has its own default of ``num_steps``.
    """
    check_choice("method", method, NUM_STEPS)
    xp = namespace(log_component)
    used = log_weights > -xp.inf
    scaled = _scaled_densities(log_component, used)
    start = xp.where(used, xp.maximum(xp.exp(log_weights), 1e-8), 0.0)
    solve = {"projected": _forward_projected, "em": _multiplicative, "newton": _newton}[method]
    solution = solve(start / xp.sum(start), scaled, weight, NUM_STEPS[method] if num_steps is None else num_steps)
    solution = xp.where(used, xp.maximum(solution, 0.0), 0.0)
    solution = solution / xp.sum(solution)
    new = xp.where(solution > 0, xp.log(xp.where(solution > 0, solution, 1.0)), -xp.inf)
    # A solver that met a singular system or an empty sample must not lose the mixture.
    new = xp.where(xp.all(xp.isfinite(solution)) & (xp.sum(weight) > 0), new, log_weights)
    log_q = logsumexp(new[:, None] + log_component, axis=0)
    gains = xp.where(used, gain(log_component, log_q, weight), -xp.inf)
    return new, xp.max(gains) - 1.0


def reverse_weights(
    log_weights: Weights,
    log_component: Float[AnyArray, "component component draw"],
    log_p: PerComponent,
    num_steps: int = NUM_STEPS["projected"],
) -> Weights:
    r"""Re-optimise the weights for the reverse KL by projected gradient.

    The gradient is :math:`\mathrm E_{f_k}[\log q-\log\hat p]` ("Gradients of mixture weights"), estimated with draws of
    each component, kept through all steps. ``log_component[j, k, s]`` is the log density of component j, and
    ``log_p[k, s]`` that of the target, at draw s of component k.
    """
    used = log_weights > -jnp.inf
    highest = jnp.max(jnp.where(used[:, None] & jnp.isfinite(log_p), log_p, -jnp.inf))
    # Relative to the highest, so that the floor does not depend on the constant of p.
    log_p = jnp.maximum(log_p - jnp.where(jnp.isfinite(highest), highest, 0.0), -1e6)

    def gradient(weights):
        positive = jnp.where(weights > 0, weights, 1.0)
        log_lambda = jnp.where(weights > 0, jnp.log(positive), -jnp.inf)
        log_q = logsumexp(log_lambda[:, None, None] + log_component, axis=0)
        # A component with no neighbour may leave log q at -inf under its own draws: adding it would be a pure gain.
        return jnp.mean(jnp.maximum(log_q, -1e6) - log_p, axis=1)

    solution = _projected(gradient, lambda weights: weights @ gradient(weights), jnp.exp(log_weights), used, num_steps)
    return jnp.where(solution > 0, jnp.log(jnp.where(solution > 0, solution, 1.0)), -jnp.inf)


def _scaled_densities(log_component: PerComponent, used: AnyArray) -> PerComponent:
    """Densities divided, draw by draw, by the largest of them: the objective moves by a constant only."""
    xp = namespace(log_component)
    log_component = xp.where(used[:, None], log_component, -xp.inf)
    highest = xp.max(log_component, axis=0)
    return xp.exp(log_component - xp.where(xp.isfinite(highest), highest, 0.0))


def _safe_density(weights: Weights, density: PerComponent) -> PerDraw:
    return namespace(density).maximum(weights @ density, 1e-300 if density.dtype.itemsize == 8 else 1e-30)


def _multiplicative(weights: Weights, density: PerComponent, weight: PerDraw, num_steps: int) -> Weights:
    def step(now):
        return now * (density @ (weight / _safe_density(now, density)))

    return iterate(step, weights, num_steps)


def _newton(weights: Weights, density: PerComponent, weight: PerDraw, num_steps: int) -> Weights:
    r"""Primal-dual interior-point Newton on :math:`-\sum_sw_s\log q+\sum_k\lambda_k` over :math:`\lambda\ge0`.

    The added sum replaces the constraint: its minimiser adds up to one by itself. With duals :math:`z>0` and a
    shrinking :math:`\mu`, each step solves :math:`(H+\mathrm{diag}(z/\lambda))\,\Delta=g-1+\mu/\lambda`.
    """
    xp = namespace(density)
    used = xp.any(density > 0, axis=1)
    num = xp.maximum(xp.sum(used), 1).astype(density.dtype)
    identity = xp.eye(density.shape[0], dtype=density.dtype)
    eps = float(xp.finfo(density.dtype).eps)

    def step(carry):
        now, dual = carry
        ratio = density / _safe_density(now, density)
        # Below the floor weights and duals would underflow.
        barrier = xp.maximum(0.1 * xp.sum(xp.where(used, now * dual, 0.0)) / num, eps**1.5)
        right = xp.where(used, ratio @ weight - 1.0 + barrier / now, 0.0)
        hessian = (ratio * weight) @ ratio.T
        # Two components may be the same: this keeps the system regular, and does not move the solution.
        ridge = 100 * eps * xp.trace(hessian)
        hessian = hessian + identity * xp.where(used, dual / now + ridge, 1.0)[:, None]
        move = solve_positive(hessian, right[:, None])[:, 0]
        dual_move = barrier / now - dual - dual / now * move
        longest = xp.minimum(_longest(now, move), _longest(dual, dual_move))
        return now + longest * move, dual + longest * dual_move

    start = xp.where(used, xp.maximum(weights, 0.1 / num), 1.0)
    solution, _ = iterate(step, (start, xp.ones_like(weights)), num_steps)
    return xp.where(used, solution, 0.0)


def _longest(value: Weights, move: Weights) -> Scalar:
    """Longest step, at most 1, that keeps 1 % of every positive value."""
    xp = namespace(value)
    return xp.minimum(1.0, 0.99 * xp.min(xp.where(move < 0, -value / xp.where(move < 0, move, -1.0), xp.inf)))


def _forward_projected(weights: Weights, density: PerComponent, weight: PerDraw, num_steps: int) -> Weights:
    def gradient(now):
        return -density @ (weight / _safe_density(now, density))

    def value(now):
        return -jnp.sum(weight * jnp.log(_safe_density(now, density)))

    return _projected(gradient, value, weights, jnp.any(density > 0, axis=1), num_steps)


def _projected(
    gradient: Callable, value: Callable, weights: Weights, used: AnyArray, num_steps: int
) -> Float[jax.Array, " component"]:
    """Spectral projected gradient: project onto the simplex, search along the segment, adapt the rate by curvature."""
    from optax.projections import projection_simplex

    fractions = jnp.asarray(LINE_SEARCH, weights.dtype)

    def project(point):
        # Unused slots must stay at zero: far below every other coordinate they are cut off by the projection.
        lowest = jnp.min(jnp.where(used, point, jnp.inf)) - 2.0
        with jax.numpy_dtype_promotion("standard"):  # optax needs it, whatever a user has set
            return projection_simplex(jnp.where(used, point, lowest)).astype(point.dtype)

    def step(carry):
        now, slope, rate = carry
        direction = project(now - rate * slope) - now
        values = jax.vmap(lambda fraction: value(now + fraction * direction))(fractions)
        best = jnp.argmin(jnp.where(jnp.isnan(values), jnp.inf, values))
        new = jnp.where(values[best] < value(now), now + fractions[best] * direction, now)
        new_slope = gradient(new)
        shift, bend = new - now, new_slope - slope
        curvature = shift @ bend
        new_rate = jnp.where(curvature > 0, shift @ shift / jnp.where(curvature > 0, curvature, 1.0), 0.5 * rate)
        return new, new_slope, jnp.clip(new_rate, 1e-10, 1e10)

    start = project(weights)
    return iterate(step, (start, gradient(start), jnp.ones((), weights.dtype)), num_steps)[0]
