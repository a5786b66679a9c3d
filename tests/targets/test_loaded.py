"""Targets of fits that were loaded without them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover.importance.draws import weigh
from klover.targets.loaded import StoredTarget, describe


class Pair(NamedTuple):
    left: np.ndarray
    right: np.ndarray


X = np.random.default_rng(0).normal(size=(20, 3))


def make_target(container):
    return klover.Target(
        lambda x: -0.5 * x @ x, np.zeros(3), constrain=lambda x: container(left=jnp.exp(x[1:]), right=x[0])
    )


@pytest.fixture
def stored():
    return StoredTarget(**describe(make_target(dict), X))


@pytest.mark.parametrize("container", [dict, Pair, lambda left, right: (left, [right])])
def test_positions_and_names_stay(container):
    target = make_target(container)
    stored = StoredTarget(**describe(target, X))
    assert (stored.dim, stored.names, stored.model_info) == (3, target.names, None)
    np.testing.assert_array_equal(stored.flat_position(X), target.flat_position(X))
    expected, found = target.positions(X), stored.positions(X)
    if container is not Pair:
        assert jax.tree.structure(found) == jax.tree.structure(expected)
    for leaf, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(leaf, other)


def test_other_containers_become_dicts_in_the_same_order():
    found = StoredTarget(**describe(make_target(Pair), X)).positions(X)
    assert list(found) == ["left", "right"]
    np.testing.assert_array_equal(found["right"], X[:, 0])


def test_a_stored_target_is_stored_as_it_is(stored):
    again = StoredTarget(**describe(stored, X))
    np.testing.assert_array_equal(again.flat_position(X), stored.flat_position(X))
    assert again.names == stored.names


@pytest.mark.parametrize(
    "use",
    [
        lambda target: target.log_prob(X),
        lambda target: target.position(X[0]),
        lambda target: target.unravel(X[0]),
        lambda target: target.start,
        lambda target: target.box,
        lambda target: target.flat_position(X + 1),
        lambda target: target.check(jax.random.key(0)),
        lambda target: weigh(target, X, X[:, 0]),
        lambda target: klover.refine(jax.random.key(0), target),
        lambda target: klover.boost(jax.random.key(0), target),
    ],
)
def test_whatever_needs_the_density_is_refused(stored, use):
    with pytest.raises(ValueError, match=r"loaded without its target.*klover.load\(path, target=target\)"):
        use(stored)
