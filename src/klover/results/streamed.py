"""What a stream of draws says: the evidence, means, probabilities and the tail of the weights, of sums alone."""

import dataclasses
import functools
import sys
import time
import warnings
from typing import Any

import jax
import numpy as np

from klover.base.checks import as_key, check_choice, check_count, check_flag, check_function, in_words
from klover.base.shapes import Float, KeyLike, PyTree, Weights
from klover.importance import psis, sums
from klover.importance.shared_stream import stream_on_pool
from klover.importance.stream import Functions, keep_largest, num_kept, shapes_of, stream
from klover.importance.sums import Sums
from klover.targets.loaded import TargetLike, as_target
from klover.verdict.judge import Verdict, judge_weights
from klover.warps.warped import Proposal
from klover.workers.crew import check_pool

SECONDS = 1.0
"""Seconds between two lines of progress."""


@dataclasses.dataclass(frozen=True)
class StreamedDraws:
    """The sums over draws that were weighed and forgotten.

    ``sums`` has those of each stream, by the data of its key; ``largest`` are the largest log-ratios of all, enough of
    them for k̂ (:func:`klover.importance.psis.num_needed`). ``names`` and ``shapes`` say what was averaged: the
    coordinates of constrained positions, and the functions. ``weights`` are those of the proposal's components, and
    ``doubt`` is what the fit's own verdict has against it that more draws do not settle.

    Means and probabilities use the raw weights, without Pareto smoothing, which changes the largest alone.
    """

    sums: dict[tuple[int, ...], Sums]
    largest: Float[np.ndarray, " known"]
    names: tuple[str, ...]
    shapes: dict[str, PyTree]
    weights: Weights
    doubt: Verdict | None = None

    @functools.cached_property
    def total(self) -> Sums:
        """The sums of all streams, added in the order of their keys, whatever the order in which they were merged."""
        return sums.combine(sums.stack([self.sums[key] for key in sorted(self.sums)]))

    @property
    def num_draws(self) -> int:
        """Number of draws S."""
        return int(self.total.num_draws)

    @property
    def num_nan(self) -> int:
        """Number of draws where the target was NaN; they have weight zero."""
        return int(self.total.num_nan)

    @property
    def num_positive_infinite(self) -> int:
        """Number of draws where the target was +inf; they have weight zero."""
        return int(self.total.num_infinite)

    @property
    def log_evidence(self) -> float:
        """Log of the evidence, from the raw ratios and the control variate, as of :class:`klover.WeightedDraws`."""
        return sums.log_evidence(self.total, self.weights)[0]

    @property
    def log_evidence_se(self) -> float:
        """Standard error of the log evidence."""
        return sums.log_evidence(self.total, self.weights)[1]

    @property
    def ess(self) -> float:
        """Effective number of draws, from the raw ratios."""
        return sums.effective_sample_size(self.total)

    @functools.cached_property
    def pareto_k(self) -> float:
        """Tail index k̂ of all ratios: exactly what :func:`klover.importance.psis.pareto_k` gives for them."""
        num = psis.num_needed(self.num_draws)
        largest = keep_largest(self.largest, num)
        known = np.concatenate([np.full(num - len(largest), -np.inf), largest])
        return float(psis.pareto_k_of_largest(known, self.num_draws, int(self.total.num_finite)))

    @property
    def verdict(self) -> Verdict:
        """Whether the weights are to be believed, and the fit in what they do not show: modes that it misses."""
        num_invalid = self.num_nan, self.num_positive_infinite
        found = judge_weights(self.num_draws, self.ess, self.pareto_k, *num_invalid)
        return found if self.doubt is None or not found.trusted else self.doubt

    @property
    def mean(self) -> dict[str, tuple[float, float]]:
        """Posterior mean of every coordinate of the constrained position, with its error."""
        return {name: (float(self._mean[0][place]), float(self._mean[1][place])) for place, name in self._places}

    @property
    def sd(self) -> dict[str, float]:
        """Posterior standard deviation of every coordinate of the constrained position."""
        sd = sums.standard_deviation(self.total)
        return {name: float(sd[place]) for place, name in self._places}

    def expectation(self, name: str) -> tuple[PyTree, PyTree]:
        """Posterior expectation of one of the functions that the stream was given, with its standard error."""
        check_choice("name", name, self.shapes)
        sizes = {each: sum(leaf.size for leaf in jax.tree.leaves(shapes)) for each, shapes in self.shapes.items()}
        first = len(self.names) + sum(sizes[each] for each in list(sizes)[: list(sizes).index(name)])
        leaves, structure = jax.tree.flatten(self.shapes[name])
        ends = first + np.cumsum([leaf.size for leaf in leaves])
        starts = [first, *ends[:-1]]
        found = (
            [part[start:end].reshape(leaf.shape)[()] for start, end, leaf in zip(starts, ends, leaves, strict=True)]
            for part in self._mean
        )
        mean, error = (jax.tree.unflatten(structure, part) for part in found)
        return mean, error

    def merge(self, *others: "StreamedDraws") -> "StreamedDraws":
        """Return what these and other draws of the same fit say together, to the last digit in whatever order.

        The others come from streams with other keys, on this machine or elsewhere.
        """
        parts, largest = dict(self.sums), self.largest
        for other in others:
            if not isinstance(other, StreamedDraws):
                raise TypeError(f"merge takes streamed draws, got {in_words(other)}. Make them with fit.stream.")
            if not self._is_alike(other):
                raise ValueError("merge takes streams of one fit and of the same functions, got one of another.")
            if parts.keys() & other.sums.keys():
                raise ValueError("merge takes streams of different keys: with one key all draws would count twice.")
            parts |= other.sums
            largest = np.concatenate([largest, other.largest])
        merged = dataclasses.replace(self, sums=parts, largest=largest)
        floors = [each.floor for each in (self, *others)]
        complete = largest[largest >= max(floors)]
        if max(floors) > -np.inf and len(complete) < psis.num_needed(merged.num_draws):
            raise ValueError("these streams differ too much in size for an exact k̂: merge streams of about one size.")
        return dataclasses.replace(merged, largest=keep_largest(complete, num_kept(merged.num_draws)))

    @property
    def floor(self) -> float:
        """Log-ratio from which on all ratios are known."""
        return -np.inf if len(self.largest) == int(self.total.num_finite) else float(self.largest.min())

    def __repr__(self) -> str:
        """Return a one-line description."""
        evidence = f"log_evidence={self.log_evidence:.7g} ± {self.log_evidence_se:.1g}"
        return f"StreamedDraws(num_draws={self.num_draws}, {evidence}, pareto_k={self.pareto_k:.2f})"

    @functools.cached_property
    def _mean(self) -> tuple[Any, Any]:
        return sums.mean_and_error(self.total)

    @property
    def _places(self) -> enumerate[str]:
        return enumerate(self.names)

    def _is_alike(self, other: "StreamedDraws") -> bool:
        mine, others = (jax.tree.map(np.shape, each.shapes) for each in (self, other))
        return self.names == other.names and mine == others and np.array_equal(self.weights, other.weights)


class Meter:
    """Lines on a terminal, or in a file if they are asked for: how many draws there are, and how fast they come."""

    def __init__(self, num_draws: int, is_shown: bool | None):
        self._num_draws = num_draws
        self._is_shown = sys.stderr.isatty() if is_shown is None else is_shown
        self._began = self._told = time.monotonic()

    def tell(self, num_done: int) -> None:
        """Tell, if the last line is old enough."""
        now = time.monotonic()
        if self._is_shown and now - self._told >= SECONDS:
            rate = num_done / (now - self._began)
            left = (self._num_draws - num_done) / rate
            line = f"{num_done:,} of {self._num_draws:,} draws  {rate:,.0f} a second  {left:,.0f} s left"
            print(line, file=sys.stderr, flush=True)
            self._told = now


def stream_draws(
    key: KeyLike,
    target: TargetLike,
    proposal: Proposal,
    num_draws: int,
    functions: Functions | None = None,
    progress: bool | None = None,
    doubt: Verdict | None = None,
    pool: Any = None,
) -> StreamedDraws:
    """Do what :meth:`klover.Fit.stream` does, for any target and proposal."""
    key, target = as_key(key), as_target(target)
    check_count("num_draws", num_draws, 2, "Standard errors need two draws at the least.", psis.MOST_DRAWS)
    functions = {} if functions is None else functions
    if not isinstance(functions, dict) or not all(isinstance(name, str) for name in functions):
        raise TypeError(f"functions must be a dict of functions by name, got {in_words(functions)}.")
    for name, function in functions.items():
        check_function(f"functions[{name!r}]", function, "one constrained position")
    if progress is not None:
        check_flag("progress", progress)
    check_pool(pool)
    shapes, meter, done = shapes_of(functions, target), Meter(num_draws, progress), None
    try:
        share = stream if pool is None else functools.partial(stream_on_pool, pool)
        for so_far in share(key, target, proposal, functions, num_draws, tell=meter.tell):
            done = so_far
    except KeyboardInterrupt:
        if done is None:
            raise
        message = f"interrupted after {int(done.sums.num_draws):,} of {num_draws:,} draws: the answer is that of these."
        warnings.warn(message, stacklevel=3)
    assert done is not None
    data = tuple(np.ravel(jax.random.key_data(key)).tolist())
    weights = np.asarray(proposal.weights, float)
    return StreamedDraws({data: done.sums}, done.largest, target.names, shapes, weights, doubt)
