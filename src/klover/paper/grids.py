"""What a table of the paper is made of, and how its numbers are written."""

import dataclasses
import math
from collections.abc import Iterable

import numpy as np

MISSING = "–"


@dataclasses.dataclass(frozen=True)
class Grid:
    """Cells under a header, and notes on what they show; ``num_text`` columns from the left hold words, not numbers."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    num_text: int = 1


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of the paper: a lead that says how to read it, and its grids."""

    name: str
    lead: str
    grids: tuple[Grid, ...]


def markdown_grid(grid: Grid) -> str:
    """Pad the cells too: such a text is read in a terminal as often as in a browser."""
    lines = [[cell.replace("|", r"\|") for cell in line] for line in (grid.header, *grid.rows)]
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    rules = [":" + "-" * (n - 1) if i < grid.num_text else "-" * (n - 1) + ":" for i, n in enumerate(widths)]
    lines.insert(1, rules)
    padded = [
        [
            cell.ljust(n) if i < grid.num_text else cell.rjust(n)
            for i, (cell, n) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)


def as_number(value: object) -> float:
    """Take null and absent fields for NaN."""
    return float(value) if isinstance(value, int | float) else math.nan


def median(rows: list[dict], field: str) -> float:
    """Median of a field over the lines that have it."""
    known = [value for row in rows if not math.isnan(value := as_number(row.get(field)))]
    return float(np.median(known)) if known else math.nan


def mean_and_error(values: Iterable[float]) -> tuple[float, float]:
    """Mean and standard error of the finite values; one value has no standard error."""
    finite = [value for value in values if math.isfinite(value)]
    error = float(np.std(finite, ddof=1)) / math.sqrt(len(finite)) if len(finite) > 1 else math.nan
    return (float(np.mean(finite)) if finite else math.nan), error


def format_number(value: float, num_decimals: int) -> str:
    """Write a number; one that is not finite is a dash."""
    if not math.isfinite(value):
        return MISSING
    return f"{value:.{num_decimals}f}" if abs(value) < 1e5 else f"{value:.3g}"


def format_pair(pair: tuple[float, float], num_decimals: int = 4) -> str:
    """Write a mean and its standard error."""
    mean, error = (format_number(value, num_decimals) for value in pair)
    return MISSING if mean == MISSING else f"{mean} ± {error}"


def distinct(values: Iterable[str], order: Iterable[str]) -> list[str]:
    """Names in the given order; names that it does not know come last, in that of their lines."""
    known = {name: number for number, name in enumerate(order)}
    return sorted(dict.fromkeys(values), key=lambda value: known.get(value, len(known)))
