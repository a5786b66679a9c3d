import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from klover.fitting.adam import minimise

CENTRE = {"a": jnp.array([1.0, -2.0]), "b": jnp.array(0.5)}


def quadratic(params):
    return 0.5 * jnp.sum((params["a"] - CENTRE["a"]) ** 2) + 4.0 * (params["b"] - CENTRE["b"]) ** 2


def run(key, loss, params, rates, num_steps, is_stochastic):
    compiled = jax.jit(lambda key, params: minimise(key, loss, params, rates, num_steps, is_stochastic=is_stochastic))
    return compiled(key, params)


def run_one(key, loss, start, rate, num_steps, is_stochastic):
    """Descend in one array."""
    params, descent = run(
        key, lambda key, now: loss(key, now["x"]), {"x": start}, {"x": rate}, num_steps, is_stochastic
    )
    return params["x"], descent


ZERO = {"a": jnp.zeros(2), "b": jnp.zeros(())}


@pytest.mark.parametrize("is_stochastic", [False, True])
def test_reaches_the_minimum_of_a_quadratic(getkey, is_stochastic):
    params, descent = run(
        getkey(), lambda _, params: quadratic(params), ZERO, {"a": 0.02, "b": 0.02}, 2000, is_stochastic
    )
    np.testing.assert_allclose(params["a"], CENTRE["a"], atol=1e-6)
    np.testing.assert_allclose(params["b"], CENTRE["b"], atol=1e-6)
    assert descent.loss.shape == (2000,)
    np.testing.assert_allclose(descent.loss[0], quadratic(ZERO))
    assert not descent.has_failed


def test_takes_the_steps_of_adam_at_separate_rates(getkey):
    num_steps, rates = 5, {"a": 0.3, "b": 0.01}
    expected = {}
    for name, rate in rates.items():
        # Adam works coordinate by coordinate, so each array moves as if it were alone with its own rate.
        optimiser, params = optax.adam(rate), ZERO
        state = optimiser.init(params)
        for _ in range(num_steps):
            gradient = jax.grad(lambda value, name=name, held=params: quadratic(held | {name: value}))(params[name])
            updates, state = optimiser.update(jax.tree.map(jnp.zeros_like, params) | {name: gradient}, state)
            params = optax.apply_updates(params, updates)
        expected[name] = params[name]
    reached, _ = run(getkey(), lambda _, params: quadratic(params), ZERO, rates, num_steps, True)
    np.testing.assert_allclose(reached["a"], expected["a"], rtol=1e-10)
    np.testing.assert_allclose(reached["b"], expected["b"], rtol=1e-10)


def test_a_rate_of_zero_holds_an_array(getkey):
    reached, _ = run(getkey(), lambda _, params: quadratic(params), ZERO, {"a": 0.0, "b": 0.1}, 20, True)
    np.testing.assert_array_equal(reached["a"], ZERO["a"])
    assert reached["b"] != 0


def test_a_fixed_loss_returns_the_best_and_a_drawn_one_the_last(getkey):
    # Adam's first step is as long as its rate, so it leaps over the minimum and ends far beyond.
    start, rate = jnp.array(0.4), 1.0

    def loss(_, x):
        return x**2

    best, descent = run_one(getkey(), loss, start, rate, 2, False)
    last, _ = run_one(getkey(), loss, start, rate, 2, True)
    visited = jnp.sqrt(descent.loss)
    np.testing.assert_allclose(best, 0.4)
    assert jnp.all(visited >= 0.4)
    assert abs(last) != abs(best)


def test_returns_the_smallest_of_all_losses_on_a_rough_fixed_loss(getkey):
    def loss(_, x):
        return jnp.sum(x**2) + jnp.cos(30 * x[0]) * jnp.sin(20 * x[1])

    best, descent = run_one(getkey(), loss, jnp.array([0.7, -0.9]), 0.3, 100, False)
    np.testing.assert_allclose(loss(None, best), descent.loss.min(), rtol=1e-12)
    assert descent.loss[-1] > descent.loss.min()


def test_each_step_has_its_own_key(getkey):
    _, descent = run_one(getkey(), lambda key, x: x + jax.random.normal(key), jnp.zeros(()), 0.0, 50, True)
    assert len(np.unique(descent.loss)) == 50


def sometimes(bad_value):
    def loss(key, x):
        is_bad = jax.random.uniform(key) < 0.3
        return jnp.where(is_bad, bad_value, 1.0) * jnp.sum((x - 1.0) ** 2)

    return loss


@pytest.mark.parametrize("bad_value", [jnp.nan, jnp.inf, -jnp.inf])
def test_steps_that_are_not_finite_are_skipped_and_reported(getkey, bad_value):
    start = jnp.array([0.0, 3.0])
    params, descent = run_one(getkey(), sometimes(bad_value), start, 0.05, 1000, True)
    assert descent.has_failed
    assert 200 < np.sum(~np.isfinite(descent.loss)) < 400
    np.testing.assert_allclose(params, 1.0, atol=1e-4)


def test_a_bad_gradient_behind_a_finite_loss_is_not_followed(getkey):
    def loss(_, x):
        # The well-known trap: the branch not taken has an infinite derivative, and 0 times it is NaN.
        return jnp.where(x > 0, jnp.sqrt(x), 0.0) + x**2

    params, descent = run_one(getkey(), loss, jnp.zeros(()), 0.1, 10, False)
    assert descent.has_failed
    assert params == 0
    np.testing.assert_array_equal(descent.loss, 0.0)


def test_a_start_outside_the_support_is_returned_as_it_is(getkey):
    start = jnp.array([-1.0, 2.0])
    params, descent = run_one(getkey(), lambda _, x: -jnp.sum(jnp.log(x)), start, 0.1, 10, False)
    np.testing.assert_array_equal(params, start)
    assert descent.has_failed
    assert np.all(np.isnan(descent.loss))


def test_a_failed_step_counts_as_a_gradient_of_zero(getkey):
    key, rate, num_steps = getkey(), 0.1, 20
    reached, descent = run_one(
        key,
        lambda key, x: jnp.where(jax.random.bernoulli(key, 0.3), jnp.nan, x**2),
        jnp.array(1.0),
        rate,
        num_steps,
        True,
    )
    optimiser, point = optax.adam(rate), jnp.array(1.0)
    state = optimiser.init(point)
    for step_key in jax.random.split(key, num_steps):
        has_failed = jax.random.bernoulli(step_key, 0.3)
        update, state = optimiser.update(jnp.where(has_failed, 0.0, 2 * point), state)
        point = jnp.where(has_failed, point, point + update)
    assert 0 < jnp.sum(jnp.isnan(descent.loss)) < num_steps
    np.testing.assert_allclose(reached, point, rtol=1e-10)


def test_cooled_steps_and_a_shorter_memory_are_those_of_the_schedule(getkey):
    rate, num_steps, memory = 0.1, 20, 0.9
    how = {"is_stochastic": True, "is_cooled": True, "memory": memory}
    params, _ = minimise(getkey(), lambda _, now: quadratic(now), ZERO, {"a": rate, "b": rate}, num_steps, **how)
    optimiser, point = optax.adam(optax.cosine_decay_schedule(rate, num_steps), b2=memory), ZERO
    state = optimiser.init(point)
    for _ in range(num_steps):
        update, state = optimiser.update(jax.grad(quadratic)(point), state)
        point = optax.apply_updates(point, update)
    np.testing.assert_allclose(params["a"], point["a"], rtol=1e-10)
    np.testing.assert_allclose(params["b"], point["b"], rtol=1e-10)
