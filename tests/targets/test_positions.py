import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from klover.targets.positions import flatten, names_of, pad, ravel_rows, variables

POSITION = {"a": 1.0, "b": np.arange(6.0).reshape(2, 3), "c": {"d": np.array([7.0]), "e": ()}}
NAMES = ("a", "b[0,0]", "b[0,1]", "b[0,2]", "b[1,0]", "b[1,1]", "b[1,2]", "c.d[0]")


def test_points_are_flat_as_jax_flattens_them():
    flat, unravel = flatten(POSITION)
    np.testing.assert_array_equal(flat, ravel_pytree(POSITION)[0])
    jax.tree.map(np.testing.assert_array_equal, unravel(flat), POSITION)
    # Nothing is compiled where nothing has to be.
    assert isinstance(flat, np.ndarray)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(unravel(flat)))


@pytest.mark.parametrize("axes", [(4,), (2, 3)])
@pytest.mark.parametrize("convert", [np.asarray, jnp.asarray])
def test_leading_axes_are_those_of_single_points(axes, convert):
    flat, unravel = flatten(POSITION)
    points = np.random.default_rng(0).normal(size=(*axes, len(flat)))
    together = unravel(convert(points))
    for place in np.ndindex(axes):
        alone = jax.tree.map(lambda leaf, place=place: leaf[place], together)
        jax.tree.map(np.testing.assert_array_equal, alone, unravel(points[place]))


def test_rows_are_the_way_back():
    flat, unravel = flatten(POSITION)
    points = np.random.default_rng(1).normal(size=(5, len(flat)))
    np.testing.assert_array_equal(ravel_rows(unravel(points)), points)


def test_padding_keeps_what_there_is():
    points = np.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(pad(points, 5), points[[0, 1, 2, 0, 0]])
    np.testing.assert_array_equal(pad(points, 3), points)


def test_numbers_are_named_by_their_paths():
    assert tuple(names_of(flatten(POSITION)[1](flatten(POSITION)[0]))) == NAMES
    assert names_of(np.zeros(2)) == ["x[0]", "x[1]"]


def test_arrays_keep_their_names_unless_single_numbers_were_named():
    flat, unravel = flatten(POSITION)
    points = np.random.default_rng(2).normal(size=(4, len(flat)))
    positions = unravel(points)
    plain = variables(positions, NAMES)
    assert {name: values.shape for name, values in plain.items()} == {"a": (4,), "b": (4, 2, 3), "c.d": (4, 1)}
    own = variables(positions, (*NAMES[:-1], "rate"))
    assert list(own) == ["a", "b", "rate"]
    np.testing.assert_array_equal(own["rate"], points[:, -1])
