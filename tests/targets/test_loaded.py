"""Targets of fits that were loaded without them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover.importance.draws import sample_importance
from klover.targets.evaluator import Evaluator
from klover.targets.loaded import LoadedTarget, as_target


class Pair(NamedTuple):
    left: np.ndarray
    right: np.ndarray


X = np.random.default_rng(0).normal(size=(20, 3))


def make_target(container):
    return klover.Target(
        lambda position: -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(position)),
        container(left=np.zeros(2), right=np.zeros(())),
        constrain=lambda position: container(
            left=jnp.exp(jax.tree.leaves(position)[0]), right=jax.tree.leaves(position)[1]
        ),
    )


@pytest.fixture
def loaded():
    return LoadedTarget.of(make_target(dict), X)


@pytest.mark.parametrize("container", [dict, Pair, lambda left, right: (left, [right])])
def test_a_loaded_target_reads_as_the_target(container):
    target = make_target(container)
    loaded = LoadedTarget.of(target, X)
    assert (loaded.dim, loaded.names, loaded.model_info) == (3, target.names, None)
    assert [loaded.coordinate_name(index) for index in range(3)] == [
        target.coordinate_name(index) for index in range(3)
    ]
    np.testing.assert_array_equal(loaded.flat_position(X), target.flat_position(X))
    for method in ("positions", "unravel"):
        expected, found = getattr(target, method)(X), getattr(loaded, method)(X)
        if container is not Pair:
            assert jax.tree.structure(found) == jax.tree.structure(expected)
        for leaf, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(leaf, other)


def test_other_containers_become_dicts_in_the_same_order():
    found = LoadedTarget.of(make_target(Pair), X).positions(X)
    assert list(found) == ["left", "right"]
    np.testing.assert_array_equal(found["right"], X[:, 2])


def test_stored_draws_are_found_in_any_order(loaded):
    chosen = np.array([3, 3, 0, 19])
    found = loaded.positions(jnp.asarray(X)[chosen])["left"]
    np.testing.assert_array_equal(found, loaded.positions(X)["left"][chosen])
    np.testing.assert_allclose(found, np.exp(X[chosen, :2]), rtol=1e-14)


def test_a_loaded_target_is_stored_as_it_is(loaded):
    again = LoadedTarget.of(loaded, X)
    np.testing.assert_array_equal(again.flat_position(X), loaded.flat_position(X))
    assert again.names == loaded.names


REFUSAL = r"loaded without its target.*klover.load\(path, target=target\)"


@pytest.mark.parametrize(
    "use",
    [
        lambda target: target.flat_position(X + 1),
        lambda target: target.positions(X[:1] + 1e-9),
        as_target,
        lambda target: Evaluator(target),
        lambda target: sample_importance(
            jax.random.key(0),
            target,
            klover.Mixture.of(klover.Family().components(np.zeros((1, 3)), np.ones((1, 3)))),
            9,
        ),
        # The tests check types before the functions do.
        lambda target: klover.refine.__wrapped__(jax.random.key(0), target),
        lambda target: klover.boost.__wrapped__(jax.random.key(0), target),
    ],
    ids=["flat", "positions", "as_target", "evaluator", "importance", "refine", "boost"],
)
def test_whatever_needs_the_density_is_refused(loaded, use):
    with pytest.raises(ValueError, match=REFUSAL):
        use(loaded)


def test_what_is_no_target_is_refused_with_advice():
    with pytest.raises(TypeError, match=r"target must be a klover.Target, got a function. Wrap your log density"):
        as_target(lambda x: x)
