import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from klover import Family, Target
from klover.mixtures.algebra import mixture_of
from klover.refinement.pool import Pool
from klover.refinement.state import Context, Stage, State
from klover.targets.evaluator import Evaluator
from klover.tuning import Growth, Islands, Search, Tuning


def make_context(dim=3, family="student", tuning=None) -> Context:
    target = Target(lambda x: -0.5 * jnp.sum(x**2), jnp.ones(dim))
    return Context(np.random.default_rng(0), Evaluator(target), 7, Family.parse(family), tuning or Tuning())


def test_a_context_knows_what_all_rounds_share():
    growth, search = Growth(em_steps=9), Search(start_scale=4.0)
    context = make_context(tuning=Tuning(growth=growth, search=search))
    assert context.dim == 3
    assert (context.rules.max_components, context.rules.is_df_fitted, context.rules.tuning) == (7, True, growth)
    assert context.region.tuning is search
    np.testing.assert_array_equal(context.region.centre, 1.0)


@pytest.mark.parametrize(
    ("family", "expected"), [("student", True), ("normal", False), (Family(df=4.0), False), (Family(rank=2), True)]
)
def test_degrees_of_freedom_are_fitted_where_the_family_leaves_them_free(family, expected):
    assert make_context(family=family).rules.is_df_fitted is expected


@pytest.mark.parametrize(("dim", "beyond_dim", "expected"), [(3, 3, False), (3, 2, True), (21, 20, True)])
def test_particles_take_over_in_many_dimensions(dim, beyond_dim, expected):
    assert make_context(dim, tuning=Tuning(islands=Islands(beyond_dim=beyond_dim))).can_escalate is expected


def test_nothing_is_changed_in_place():
    mixture = mixture_of(Family(), np.zeros((1, 2)), np.ones((1, 2, 2)) + np.eye(2), 5.0, np.ones(1))
    state = State(mixture, mixture, Pool.empty(2))
    assert state.stage is Stage.BEGIN
    for record, name in ((state, "num_stale"), (make_context(), "max_components"), (state.pool, "x")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, name, None)
