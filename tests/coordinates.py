"""What every change of coordinates satisfies, and exact draws of targets that want one."""

import jax
import jax.numpy as jnp
import numpy as np


def assert_is_change(change, points):
    """Check a change of coordinates at points x: its inverse, determinants and gradients; NumPy against JAX."""
    z, log_det = change.to_base(points)
    back, log_det_back = change.from_base(z)
    np.testing.assert_allclose(back, points, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(log_det_back, -log_det, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(change.to_base(back)[0], z, rtol=1e-7, atol=1e-7)
    for function, at, expected in ((change.to_base, points, log_det), (change.from_base, z, log_det_back)):

        @jax.jit
        def on_device(x, function=function):
            return function(x), jax.vmap(function)(x), jax.vmap(jax.jacobian(lambda one: function(one)[0]))(x)

        *pairs, jacobian = on_device(jnp.asarray(at))
        np.testing.assert_allclose(np.linalg.slogdet(jacobian)[1], expected, rtol=1e-6, atol=1e-8)
        host = function(at)
        assert all(isinstance(leaf, np.ndarray) for leaf in host)
        for pair in pairs:
            for leaf, other in zip(host, pair, strict=True):
                np.testing.assert_allclose(leaf, other, rtol=1e-9, atol=1e-9)
    assert_pulls_back(change, z)


def assert_pulls_back(change, z):
    """Check the gradient of a density of x, seen in z, against that of JAX."""
    slope = np.linspace(-1.0, 2.0, z.shape[-1])

    def log_density(x):
        return x @ slope - jnp.log1p(x @ x)

    def moved(point):
        x, log_det = change.from_base(point)
        return log_density(x) + log_det

    gradient = np.asarray(jax.jit(jax.vmap(jax.grad(log_density)))(change.from_base(z)[0]))
    expected = np.asarray(jax.jit(jax.vmap(jax.grad(moved)))(z))
    scale = 1 + np.abs(expected).max()
    np.testing.assert_allclose(change.pull_back(z, gradient), expected, rtol=1e-7, atol=1e-9 * scale)


def equal_weights(num):
    return np.full(num, 1 / num)


def draw_funnel(num, dim, seed=0):
    """Draw x[0] ~ N(0, 1.5²) and all others from N(0, exp(x[0]))."""
    noise = np.random.default_rng(seed).normal(size=(num, dim))
    lead = 1.5 * noise[:, :1]
    return np.concatenate([lead, np.exp(0.5 * lead) * noise[:, 1:]], axis=1)


def draw_banana(num, seed=0):
    """Draw x[1] ~ N(0, 1), x[0] from N(x[1]², 0.3²), and x[2] ~ N(0, 1) beside them."""
    noise = np.random.default_rng(seed).normal(size=(num, 3))
    return np.stack([noise[:, 1] ** 2 + 0.3 * noise[:, 0], noise[:, 1], noise[:, 2]], axis=1)


def draw_product(num, dim, seed=0):
    """Draw independent coordinates: exponential, logarithm of one, Laplace, and so on; all of mean 0 and variance 1."""
    generator = np.random.default_rng(seed)
    exponential = generator.exponential(size=(num, dim))
    laplace = exponential * generator.choice([-1.0, 1.0], (num, dim)) / np.sqrt(2)
    kinds = exponential - 1, (np.log(exponential) + np.euler_gamma) * np.sqrt(6) / np.pi, laplace
    return np.stack([kinds[coordinate % 3][:, coordinate] for coordinate in range(dim)], axis=1)


def draw_hierarchy(num, num_groups, seed=0):
    """Draw the posterior of (μ, log τ, θ) of a centred hierarchy: y_j ~ N(θ_j, 1), θ_j ~ N(μ, τ²), μ ~ N(0, 5²).

    The prior of log τ is N(0, 1.5²), the data are small. All but log τ is Normal given log τ, which has a grid.
    """
    generator = np.random.default_rng(seed)
    y = 0.6 * generator.normal(size=num_groups)
    grid = np.linspace(-8.0, 4.0, 2001)
    variance = 1 + np.exp(2 * grid)
    precision = num_groups / variance + 1 / 25
    mean = y.sum() / variance / precision
    log_mass = -0.5 * (num_groups * np.log(variance) + np.log(precision) + (y @ y) / variance - precision * mean**2)
    mass = np.exp(log_mass - 0.5 * (grid / 1.5) ** 2 - log_mass.max())
    place = generator.choice(len(grid), num, p=mass / mass.sum())
    log_tau = grid[place] + (grid[1] - grid[0]) * generator.uniform(-0.5, 0.5, num)
    mu = mean[place] + generator.normal(size=num) / np.sqrt(precision[place])
    within = 1 / (1 + np.exp(-2 * log_tau))
    centre = within[:, None] * (y + np.exp(-2 * log_tau)[:, None] * mu[:, None])
    theta = centre + np.sqrt(within)[:, None] * generator.normal(size=(num, num_groups))
    return np.concatenate([mu[:, None], log_tau[:, None], theta], axis=1)
