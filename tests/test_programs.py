import jax
import jax.numpy as jnp
import numpy as np
import pytest

from klover import Target
from klover.programs import signature


def traced(function, *arguments):
    return signature(jax.make_jaxpr(function)(*arguments).jaxpr)


def logistic(inputs, outputs, scale=10.0):
    def logdensity(weights):
        logit = inputs @ weights
        return jnp.sum(
            outputs * jax.nn.log_sigmoid(logit) + (1 - outputs) * jax.nn.log_sigmoid(-logit)
        ) - 0.5 * jnp.sum((weights / scale) ** 2)

    return logdensity


def data(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(20, 3)), rng.integers(0, 2, 20).astype(float)


def test_a_second_data_set_of_the_same_shape_compiles_nothing():
    evaluate = jax.jit(lambda target, x: target.log_prob(x))
    x = np.linspace(-1, 1, 6).reshape(2, 3)
    for seed in range(3):
        logdensity = logistic(*data(seed))
        target = Target(logdensity, jnp.zeros(3))
        np.testing.assert_allclose(evaluate(target, x), [logdensity(point) for point in x], rtol=1e-12)
        np.testing.assert_allclose(
            jax.grad(target.log_prob)(jnp.asarray(x[0])), jax.grad(logdensity)(jnp.asarray(x[0])), rtol=1e-12
        )
    assert evaluate._cache_size() == 1


@pytest.mark.parametrize(
    "change",
    {
        "constant": lambda inputs, outputs: Target(logistic(inputs, outputs, scale=10.0 + 1e-12), jnp.zeros(3)),
        "rows": lambda inputs, outputs: Target(logistic(inputs[:-1], outputs[:-1]), jnp.zeros(3)),
        "names": lambda inputs, outputs: Target(logistic(inputs, outputs), jnp.zeros(3), names=("a", "b", "c")),
        "constrain": lambda inputs, outputs: Target(logistic(inputs, outputs), jnp.zeros(3), constrain=jnp.exp),
        "pytree": lambda inputs, outputs: Target(lambda tree: logistic(inputs, outputs)(tree[0]), [jnp.zeros(3)]),
    }.items(),
    ids=lambda item: item[0],
)
def test_what_differs_is_not_shared(change):
    inputs, outputs = data(0)
    first = Target(logistic(inputs, outputs), jnp.zeros(3))
    second = change[1](inputs, outputs)
    assert jax.tree.structure(first) != jax.tree.structure(second)


def test_the_order_of_operands_and_the_branches_count():
    x, y = jnp.ones(2), jnp.ones(2)
    assert traced(lambda a, b: a - b, x, y) == traced(lambda c, d: c - d, x, y)
    assert traced(lambda a, b: a - b, x, y) != traced(lambda a, b: b - a, x, y)

    def branch(value):
        return lambda a: jax.lax.cond(a[0] > 0, lambda: a.sum(), lambda: a.sum() * value)

    assert traced(branch(2.0), x) == traced(branch(2.0), x)
    assert traced(branch(2.0), x) != traced(branch(3.0), x)


def test_callbacks_are_equal_to_themselves_alone():
    def wrap(function):
        return lambda a: jax.pure_callback(function, jax.ShapeDtypeStruct((2,), a.dtype), a, vmap_method="sequential")

    def twice(a):
        return 2 * np.asarray(a)

    def thrice(a):
        return 3 * np.asarray(a)

    assert traced(wrap(twice), jnp.ones(2)) != traced(wrap(thrice), jnp.ones(2))
