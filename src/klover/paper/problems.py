r"""The paper's inference problems: one posterior for each split of a data set, stacked so that one program solves all.

A method is judged by its test data, in two ways that the paper does not tell apart: the *log of mean*
:math:`\log\sum_sw_sp(y\mid x,\theta_s)`, the log of the posterior predictive density that its equations define, and the
*mean of logs* :math:`\sum_sw_s\log p(y\mid x,\theta_s)`, which its published numbers are.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from klover.base.checks import check_choice
from klover.base.shapes import AnyArray, Float, PerDraw, Scalar, record
from klover.importance import psis
from klover.importance.ratios import effective_sample_size, normalise
from klover.paper import datasets, models
from klover.targets.target import Target

Scores = dict[str, Float[AnyArray, " split"]]
"""``log_of_mean``, ``mean_of_logs``, the same with ``_is`` by importance weights, ``pareto_k``, ``ess``."""
Ratios = Float[AnyArray, "split draw"] | None


@record
class Test:
    """Test data: standardised features, standardised outputs, and the outputs' scale in original units."""

    features: Float[AnyArray, "... row feature"]
    outputs: Float[AnyArray, "... row"]
    scale: Float[AnyArray, "..."]


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """The posteriors and test data of some splits of a data set, with one axis in front of every array."""

    table: str
    dataset: str
    splits: tuple[int, ...]
    targets: Target
    test: Test

    def __len__(self) -> int:
        """Return the number of splits."""
        return len(self.splits)

    def target(self, which: int) -> Target:
        """Return one of the targets."""
        return jax.tree.map(lambda leaf: leaf[which], self.targets)

    def score(self, x: Float[AnyArray, "split draw dim"], log_ratio: Ratios = None) -> Scores:
        """Score draws of all splits; where ratios are given, with importance weights (plain, as in the paper) too."""
        return _score(self.targets, self.test, x, log_ratio)


def load(table: str, dataset: str, splits: tuple[int, ...], is_validation: bool = False) -> Problem:
    """Build the problems of some splits; the paper's are 1 to 20.

    For validation the training part is split once more: the test data of the problem are then a tenth of the training
    data, and the real test data are not touched.
    """
    check_choice("table", table, models.MODELS)
    whole = datasets.load(dataset)
    parts = [_inner(whole, number) if is_validation else datasets.split(whole, number) for number in splits]
    targets = [models.MODELS[table](part) for part in parts]
    tests = [Test(part.test_features, part.test_target, np.asarray(part.target_scale)) for part in parts]
    stack = lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves])  # noqa: E731
    return Problem(table, dataset, tuple(splits), jax.tree.map(stack, *targets), jax.tree.map(stack, *tests))


def _inner(whole: datasets.Dataset, number: int) -> datasets.Split:
    """Split the training rows of a split once more: nine tenths to fit, and a tenth to validate."""
    train, _ = datasets.rows(number, len(whole.target))
    inside = dataclasses.replace(whole, features=whole.features[train], target=whole.target[train])
    return datasets.split(inside, number)


@jax.jit
def _score(targets: Target, test: Test, x: Float[AnyArray, "split draw dim"], log_ratio: Ratios) -> Scores:
    """Score one split after the other, to save memory."""

    def score(arguments):
        target, here, draws, ratio = arguments

        def at(point):
            return models.predictive_log_density(target.unravel(point), here.features, here.outputs, here.scale)

        log_density, num = jax.lax.map(at, draws, batch_size=250), draws.shape[0]
        found = _averages(log_density, jnp.full(num, -jnp.log(num), draws.dtype), "")
        if ratio is None:
            return found
        found |= _averages(log_density, normalise(ratio), "_is")
        return found | {"pareto_k": psis.pareto_k(ratio), "ess": effective_sample_size(ratio)}

    return jax.lax.map(score, (targets, test, x, log_ratio))


def _averages(log_density: Float[AnyArray, "draw row"], log_weight: PerDraw, suffix: str) -> dict[str, Scalar]:
    """Log of mean, and mean of logs, averaged over test rows."""
    weight = jnp.exp(log_weight)[:, None]
    # A density of zero at a draw of weight zero counts nothing.
    logs = jnp.sum(jnp.where(weight > 0, weight * log_density, 0.0), axis=0)
    means = jax.nn.logsumexp(log_density + log_weight[:, None], axis=0)
    return {f"log_of_mean{suffix}": jnp.mean(means), f"mean_of_logs{suffix}": jnp.mean(logs)}
