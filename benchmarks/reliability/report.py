"""What became of the fits: counts with exact bounds, calibration, cost, and every answer that was trusted and wrong."""

import collections
import pathlib
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks import processes
from benchmarks.reliability import statistics
from benchmarks.reliability.outcome import OUTCOMES, RAISED, REFUSED, RIGHT, UNFINISHED, WRONG

DIMS = ((1, 2), (3, 5), (6, 10), (11, 20), (21, 30), (31, 1000))
EASY_DIM = 10

Lines = Sequence[dict]


def read(paths: Sequence[pathlib.Path]) -> list[dict]:
    """Read the lines of all files; of a case that was run twice the last one counts."""
    return list({(line.get("peer"), line["id"]): line for path in paths for line in processes.read(path)}.values())


def text(lines: Lines, totals_only: bool = False) -> str:
    """Write the report, arm by arm."""
    parts = []
    for arm in dict.fromkeys(line["arm"] for line in lines):
        parts += [f"# {arm}", arm_text([line for line in lines if line["arm"] == arm], totals_only)]
    return "\n".join(parts)


def arm_text(lines: Lines, totals_only: bool) -> str:
    """Write the report of one arm."""
    parts = [totals(lines, "all"), totals([line for line in lines if line.get("in_reach")], "in reach")]
    parts += [calibration(lines), cost(lines)]
    if not totals_only:
        parts += [reasons(lines), by(lines, "family", lambda line: line["family"]), by(lines, "dimension", dim_of)]
        parts += [wrong_ones(lines), raised_ones(lines)]
    return "\n\n".join(part for part in parts if part)


def of(lines: Lines, outcome: str) -> list[dict]:
    """Choose lines by their outcome."""
    return [line for line in lines if line["outcome"] == outcome]


def trusted(lines: Lines) -> list[dict]:
    """Choose the lines of answers that were trusted, right or wrong."""
    return of(lines, RIGHT) + of(lines, WRONG)


def totals(lines: Lines, title: str) -> str:
    """Count outcomes, with exact bounds."""
    if not lines:
        return ""
    good, share = trusted(lines), statistics.share
    rows = [f"{title}: {len(lines)} fits", f"  trusted     {share(len(good), len(lines))}"]
    rows += [f"  right       {share(len(of(good, RIGHT)), len(good))} of the trusted"]
    rows += [f"  wrong       {share(len(of(good, WRONG)), len(good))} of the trusted"]
    rows += [f"  {outcome:<11} {share(len(of(lines, outcome)), len(lines))}" for outcome in OUTCOMES[2:]]
    refused = [line for line in of(lines, REFUSED) if not line["wrong_by"]]
    rows += [f"  refused although right: {share(len(refused), len(of(lines, REFUSED)))} of the refused"]
    return "\n".join(rows)


def reasons(lines: Lines) -> str:
    """Count why answers were refused."""
    counts = collections.Counter(line["status"] for line in of(lines, REFUSED))
    return "\n".join(["refused because:", *(f"  {count:5d} {name}" for name, count in counts.most_common())])


def dim_of(line: dict) -> str:
    """Return the range of dimensions that a line belongs to."""
    dim = line.get("dim", 0)
    return next((f"{low:3d} to {high}" for low, high in DIMS if low <= dim <= high), "unknown")


def by(lines: Lines, title: str, group: Callable[[dict], str]) -> str:
    """Count outcomes by group, with the bounds of the share that is trusted and wrong."""
    rows = [
        f"{title:<20}{'fits':>7}{'right':>7}{'wrong':>7}{'refused':>9}{'unfinished':>12}{'raised':>8}   wrong/trusted"
    ]
    for name in sorted({group(line) for line in lines}):
        own = [line for line in lines if group(line) == name]
        right, wrong, refused, unfinished, raised = (
            len(of(own, outcome)) for outcome in (RIGHT, WRONG, REFUSED, UNFINISHED, RAISED)
        )
        lower, upper = statistics.clopper_pearson(wrong, right + wrong)
        counts = f"{len(own):>7}{right:>7}{wrong:>7}{refused:>9}{unfinished:>12}{raised:>8}"
        rows.append(f"{name:<20}{counts}   {lower:.1%} to {upper:.1%}")
    return "\n".join(rows)


def calibration(lines: Lines) -> str:
    """Say how far stated errors are true, over the trusted, and over those of them that are right."""
    rows = ["z-scores of the trusted (sd 1, beyond 2 4.6 %, beyond 3 0.27 % if stated errors are true)"]
    for kind in ("importance", "particles"):
        for title, own in (("trusted", trusted(lines)), ("right", of(lines, RIGHT))):
            own = [line for line in own if line.get("kind") == kind]
            log_z = [line["log_z_score"] for line in own if line.get("log_z_score") is not None]
            means = [z for line in own for z in line.get("mean_scores") or [] if z is not None]
            if own:
                rows += [f"  {kind}, {title}: log Z {statistics.scores(log_z)}"]
                rows += [f"  {kind}, {title}: means {statistics.scores(means)}"]
    return "\n".join(rows)


def cost(lines: Lines) -> str:
    """Give medians of evaluations and seconds."""
    easy = [line for line in lines if line.get("unimodal") and line.get("dim", 99) <= EASY_DIM]
    rows = ["cost of what came to an end: median and 90 % quantile"]
    for title, own in (("all", lines), (f"easy (unimodal, d ≤ {EASY_DIM})", easy)):
        own = [line for line in own if line.get("evaluations") is not None]
        if own:
            figures = [np.quantile([line[name] for line in own], (0.5, 0.9)) for name in ("evaluations", "seconds")]
            (evaluations, most), (seconds, longest) = figures
            rows.append(f"  {title}: evaluations {evaluations:.0f}, {most:.0f}; seconds {seconds:.2f}, {longest:.2f}")
    return "\n".join(rows)


def wrong_ones(lines: Lines) -> str:
    """List every answer that was trusted and wrong."""
    rows = [f"trusted and wrong: {len(of(lines, WRONG))}"]
    for line in sorted(of(lines, WRONG), key=lambda line: line["id"]):
        error, ratio = line.get("log_z_error"), line.get("sd_ratio")
        words = [line["id"], f"d={line['dim']}", line["kind"], "+".join(line["wrong_by"])]
        words += [] if error is None else [f"log Z {error:+.3f} ± {line['log_z_se']:.3f}"]
        words += [f"mean {line['mean_error']:.2f} sd"] if line.get("mean_error") is not None else []
        words += [f"sd × {ratio:.2f}"] if ratio is not None else []
        words += [f"masses {np.round(line['masses'], 2)} of {np.round(line['weights'], 2)}"] if "masses" in line else []
        rows.append("  " + ", ".join(words))
    return "\n".join(rows)


def raised_ones(lines: Lines) -> str:
    """List every exception."""
    raised = of(lines, RAISED)
    rows = [f"raised: {len(raised)}"]
    return "\n".join(rows + [f"  {line['id']}: {line['status']}: {line['reason'][:140]}" for line in raised])
