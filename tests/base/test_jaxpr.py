import jax
import jax.numpy as jnp
import numpy as np
import pytest

from klover import Target
from klover.base.jaxpr import calls_host, evaluate_jaxpr, largest_array, prune, signature, trace


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


def size_of(function, *arguments):
    return largest_array(jax.make_jaxpr(function)(*arguments).jaxpr)


def outer(x):
    return jnp.sum(x[:, None] * x)


def repeated(x):
    return jax.lax.fori_loop(0, 3, lambda _, total: total + outer(x), 0.0)


def scanned(x):
    return jax.lax.scan(lambda total, row: (total + outer(row * x), None), 0.0, x)[0]


with_own_rule = jax.custom_jvp(outer)
with_own_rule.defjvps(lambda change, _, x: 2 * jnp.sum(x) * jnp.sum(change))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x[0] + 1.0, 1),
        (lambda x: jnp.sum(2 * x), 7),
        (outer, 49),
        (jax.jit(outer), 49),
        (repeated, 49),
        (scanned, 49),
        (with_own_rule, 49),
        (jax.vmap(lambda entry: jnp.sum(jnp.full((5, 5), entry))), 175),
        (lambda x: jnp.float64(3.0), 1),
    ],
    ids=["scalar", "vector", "matrix", "compiled", "loop", "scan", "own rule", "vmap", "nothing"],
)
def test_largest_array_is_that_of_the_widest_step(function, expected):
    assert size_of(function, jnp.ones(7)) == expected


def test_largest_array_looks_into_branches():
    assert size_of(lambda x: jax.lax.cond(x[0] > 0, outer, jnp.sum, x), jnp.ones(7)) == 49


def test_arrays_that_are_given_are_not_counted():
    table = jnp.ones(1000)
    assert size_of(lambda x: x[0] + table[3], jnp.ones(7)) < 1000


def test_pruned_programs_keep_what_their_results_need():
    used, unused, x = jnp.arange(7.0), jnp.ones(1000), jnp.linspace(0.0, 1.0, 7)

    def function(x):
        wasted = jnp.sum(jnp.outer(x, unused))
        return jnp.sum(used * x), 0.0 * x, (wasted, used)[1]

    closed = jax.make_jaxpr(function)(x)
    pruned = prune(closed)
    assert [constant.shape for constant in pruned.consts] == [(7,)]
    assert (largest_array(closed.jaxpr), largest_array(pruned.jaxpr)) == (7000, 7)
    for found, expected in zip(evaluate_jaxpr(pruned.jaxpr, pruned.consts, x), function(x), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_pruned_programs_keep_what_they_print(capsys):
    def function(x):
        jax.debug.print("seen {}", x)
        return 2 * x

    pruned = prune(jax.make_jaxpr(function)(1.5))
    evaluate_jaxpr(pruned.jaxpr, pruned.consts, np.float64(1.5))
    jax.effects_barrier()
    assert capsys.readouterr().out == "seen 1.5\n"


def test_a_traced_function_gives_what_the_function_gives():
    weights = np.array([1.0, 2.0, 3.0])

    def function(x, extra):
        return {"sum": weights @ x, "pair": (x * extra["shift"], jnp.max(x))}

    arguments = jnp.array([0.5, -1.0, 2.0]), {"shift": jnp.array(4.0)}
    program = trace(function, *arguments)
    for factor in (1.0, -2.0):
        moved = jax.tree.map(lambda leaf, factor=factor: factor * leaf, arguments)
        jax.tree.map(np.testing.assert_allclose, program(*moved), function(*moved))


def test_a_program_for_one_run_draws_what_others_draw():
    def draw(key):
        return jax.random.normal(key, (50,))

    key = jax.random.key(3)
    np.testing.assert_allclose(trace(draw, key, is_for_one_run=True)(key), draw(key), rtol=1e-12)


def test_programs_that_call_the_host_are_told():
    def inside(x):
        shape = jax.ShapeDtypeStruct((), x.dtype)
        return jax.lax.cond(x > 0, lambda v: jax.pure_callback(np.sin, shape, v), jnp.cos, x)

    assert calls_host(jax.make_jaxpr(inside)(1.0).jaxpr)
    assert not calls_host(jax.make_jaxpr(lambda x: jax.lax.cond(x > 0, jnp.sin, jnp.cos, x))(1.0).jaxpr)
