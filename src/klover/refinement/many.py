"""Many fits: a function that makes a target of an item, and items that are shared out among processes or machines."""

import dataclasses
import inspect
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from klover.base.checks import as_key, check_choice, check_flag, check_function, check_path, in_words
from klover.base.shapes import KeyLike
from klover.mixtures.components import Family
from klover.refinement.answer import INTERRUPTED
from klover.refinement.lines import ERROR, FitLine, LinesFile, digest
from klover.refinement.refine import check_counts, refine
from klover.results.fit import Fit
from klover.targets.budget import check_budget
from klover.targets.cores import threads_each
from klover.targets.target import Target
from klover.tuning import Tuning
from klover.verdict.status import Status
from klover.workers.crew import connect
from klover.workers.parcel import Job
from klover.workers.work import Errors, OnItems

OF_ONE = ("key", "target", "journal", "callback", "progress", "pool")
"""What ``refine`` takes, and many fits do not share."""
SECONDS = 1.0
"""Between two lines of progress."""


class NoTarget(TypeError):
    """Raised where the function makes something else of an item: this would be so of all items."""


def map_fits(
    function: Callable[[Any], Target | Fit],
    items: Iterable[Any],
    *,
    pool: Any = None,
    out: str | os.PathLike | None = None,
    key: KeyLike = 0,
    labels: Iterable[str] | None = None,
    save_to: str | os.PathLike | None = None,
    timeout: float | None = None,
    progress: bool | None = None,
    **options: Any,
) -> list[FitLine]:
    """Fit a target to each of many items, on many cores or machines; what is finished is kept in a file.

    Targets that differ by their data alone compile once in each process. An item whose fit raises, whose process dies
    twice, or that takes longer than ``timeout`` twice, has a line that says so, and costs the others nothing.

    Parameters
    ----------
    function
        Makes a :class:`~klover.Target` of an item, or a :class:`~klover.Fit` if it fits by itself.
    items
        Data sets, rows, names of files: whatever the function takes.
    pool
        Who makes the fits: None for this process, a whole number of processes, which share the cores, a
        ``concurrent.futures.Executor``, a Dask ``Client``, or an object with ``.map``.
    out
        A file that gets a line of JSON when a fit is finished. The same call, with more items at the end if you like,
        takes from it what it holds and makes the rest. Delete a line, and its item is fitted again.
    key
        Of all fits: that of an item is folded with its index, so that neither the pool nor the other items matter.
    labels
        Names of the items; short descriptions if None.
    save_to
        A folder for whole fits, ``000000.klover`` and so on, which :func:`klover.load` reads.
    timeout
        Seconds that one item may take, with what compiles.
    progress
        Whether to say on stderr how far it is; None says so on a terminal.
    **options
        Arguments of :func:`klover.refine`, such as ``budget``; the same for all fits.

    Returns
    -------
    A :class:`~klover.refinement.lines.FitLine` for each item, in their order.

    Examples
    --------
    >>> import jax.numpy as jnp, klover
    >>> def model(mean):
    ...     return klover.Target(lambda x: -0.5 * (x - mean) ** 2, 0.0)
    >>> lines = klover.map_fits(model, [1.0, 2.0], min_ess=200)
    >>> [(line.status, round(line.mean["x"])) for line in lines]
    [('TRUSTED', 1), ('TRUSTED', 2)]
    """
    check_function("function", function, "one item")
    items, key = _listed(items), as_key(key)
    labels = _check_labels(labels, items)
    _check_options(options)
    if progress is not None:
        check_flag("progress", progress)
    folder, is_double = _check_folder(save_to), jnp.result_type(float) == np.float64
    work = FitOne(
        function, np.asarray(jax.random.key_data(key)), str(jax.random.key_impl(key)), options, is_double, folder
    )
    workers = connect(pool, timeout, threads_each(pool))
    try:
        if out is None:
            return _run(workers, work, items, labels, None, progress)
        with LinesFile(check_path("out", out), work.made_with, [digest(item) for item in items]) as file:
            return _run(workers, work, items, labels, file, progress)
    finally:
        workers.close()


def _run(
    workers: Any, work: "FitOne", items: list[Any], labels: list[str], file: LinesFile | None, progress: bool | None
) -> list[FitLine]:
    """Make the fits that the file does not hold."""
    lines = {} if file is None else dict(file.found)
    waiting = [index for index in range(len(items)) if index not in lines]
    meter = Meter(len(items), len(lines), progress)

    def keep(places: np.ndarray, values: Sequence[FitLine | None], errors: Errors) -> None:
        raised = dict(errors)
        for place, line in zip(places, values, strict=True):
            index, error = waiting[place], raised.get(int(place))
            if isinstance(error, NoTarget):
                raise error
            if line is None:
                error = error or RuntimeError("nothing came back")
                line = FitLine.failed(index, labels[index], error)
            lines[index] = line
            if file is not None:
                file.append(line)
            meter.tell(lines)

    # One item at a time: it takes longer than to send it, and costs no others if it kills.
    tasks = [(index, labels[index], items[index]) for index in waiting]
    workers.run(Job("function", OnItems(work), most_seconds=0.0, is_double=work.is_double), tasks, keep)
    return [lines[index] for index in range(len(items))]


@dataclasses.dataclass(frozen=True)
class FitOne:
    """What a worker does with an item.

    Parameters
    ----------
    function
        The user's.
    key_data, key_impl
        The key of all fits, as it can be sent.
    options
        For ``refine``.
    is_double
        Whether JAX computes in double precision.
    save_to
        A folder for the fit, or None.
    """

    function: Callable[[Any], Target | Fit]
    key_data: np.ndarray
    key_impl: str
    options: dict[str, Any]
    is_double: bool
    save_to: str | None

    @property
    def made_with(self) -> dict[str, str]:
        """Digests of what decides about the results, by name."""
        options = {name: digest(value) for name, value in self.options.items() if value is not None}
        key, precision = digest((self.key_data, self.key_impl)), "double" if self.is_double else "single"
        return {"function": digest(self.function), "key": key, "precision": precision} | options

    def __call__(self, task: tuple[int, str, Any]) -> FitLine:
        """Fit an item."""
        index, label, item = task
        began = time.perf_counter()
        made = self.function(item)
        if not isinstance(made, Target | Fit):
            raise NoTarget(f"function must return a klover.Target or a klover.Fit, got {in_words(made)} for {label}.")
        fit = made if isinstance(made, Fit) else self._refine(index, made)
        if self.save_to is not None:
            fit.save(Path(self.save_to, f"{index:06}.klover"))
        return FitLine.of(index, label, fit, time.perf_counter() - began)

    def _refine(self, index: int, target: Target) -> Fit:
        key = jax.random.fold_in(jax.random.wrap_key_data(jnp.asarray(self.key_data), impl=self.key_impl), index)
        fit = refine(key, target, progress=False, **self.options)
        if fit.verdict.status is Status.UNFINISHED and INTERRUPTED in fit.verdict.reason:
            raise KeyboardInterrupt  # Ctrl-C ends all fits, and half of one is not kept
        return fit


class Meter:
    """Lines on a terminal, or in a file if they are asked for: how many fits there are, and how they ended."""

    def __init__(self, num_items: int, num_known: int, is_shown: bool | None):
        self._num_items, self._num_known = num_items, num_known
        self._is_shown = sys.stderr.isatty() if is_shown is None else is_shown
        self._began, self._told = time.monotonic(), -math.inf

    def tell(self, lines: Mapping[int, FitLine]) -> None:
        """Tell, if the last line is old enough or this is the last."""
        now = time.monotonic()
        if not self._is_shown or (now - self._told < SECONDS and len(lines) < self._num_items):
            return
        seconds = (now - self._began) / (len(lines) - self._num_known) * (self._num_items - len(lines))
        ends = Counter(
            "trusted" if line.trusted else "errors" if line.status == ERROR else "refused" for line in lines.values()
        )
        words = ", ".join(f"{number:,} {word}" for word, number in sorted(ends.items(), reverse=True))
        line = f"{len(lines):,} of {self._num_items:,} fits: {words}  {now - self._began:,.0f} s, {seconds:,.0f} s left"
        print(line, file=sys.stderr, flush=True)
        self._told = now


def _listed(items: Any) -> list[Any]:
    """Return the items, and refuse what is none, or one alone."""
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        raise TypeError(f"items must be a list of what function takes, got {in_words(items)}. Pass list(...).")
    listed = list(items)
    if not listed:
        raise ValueError("items must hold one item at least, got none.")
    return listed


def _check_labels(labels: Any, items: list[Any]) -> list[str]:
    if labels is None:
        return [in_words(item) for item in items]
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise TypeError(f"labels must be a list of words, got {in_words(labels)}.")
    listed = [str(label) for label in labels]
    if len(listed) != len(items):
        raise ValueError(f"labels must hold one for each of {len(items)} items, got {len(listed)}.")
    return listed


def _check_options(options: dict[str, Any]) -> None:
    """Refuse options that ``refine`` would refuse for every item."""
    allowed = [name for name in inspect.signature(refine).parameters if name not in OF_ONE]
    unknown = sorted(set(options).difference(allowed))
    if unknown:
        raise TypeError(
            f"map_fits has no argument {', '.join(unknown)}. Those of refine for all are {', '.join(allowed)}."
        )
    max_components, num_draws, min_ess = (options.get(name) for name in ("max_components", "num_draws", "min_ess"))
    has_integrand = options.get("integrand") is not None
    check_counts(options.get("tuning") or Tuning(), max_components, num_draws, min_ess, has_integrand)
    check_choice("search", options.get("search", "auto"), ("auto", "thorough"))
    Family.parse(options.get("family", "student"))
    check_budget(options.get("budget"), 2)


def _check_folder(save_to: Any) -> str | None:
    """Return the path of a folder, which is made if there is none."""
    if save_to is None:
        return None
    if not isinstance(save_to, str | os.PathLike):
        raise TypeError(f"save_to must be a folder (a str or a pathlib.Path), got {in_words(save_to)}.")
    try:
        Path(save_to).mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise ValueError(f"save_to must be a folder, or a new one, got {os.fspath(save_to)!r}: {error}.") from None
    return os.path.abspath(save_to)
