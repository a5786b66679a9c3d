"""What became of the fits: counts with exact bounds, calibration, cost, and every answer that was trusted and wrong."""

import collections
import pathlib
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks import processes
from benchmarks.reliability import TRUST, calibration, statistics
from benchmarks.reliability.outcome import NOT_MADE, RAISED, REFUSED, RIGHT, TRUSTED, UNFINISHED, UNSUITED, WRONG

DIMS = ((1, 2), (3, 5), (6, 10), (11, 20), (21, 30), (31, 1000))
EASY_DIM = 10

Lines = Sequence[dict]


def read(paths: Sequence[pathlib.Path]) -> list[dict]:
    """Read the lines of all files; of a case that a tool was given twice the last one counts."""
    return list({(line.get("peer"), line["id"]): line for path in paths for line in processes.read(path)}.values())


def text(lines: Lines, totals_only: bool = False) -> str:
    """Write the report: klover's, arm by arm, then the other tools' on the same cases."""
    missing = of(lines, NOT_MADE)
    lines = [line for line in lines if line["outcome"] != NOT_MADE]
    parts, own = [], [line for line in lines if line.get("peer") is None]
    parts += [f"{len(missing)} cases could not be made, and do not count."] if missing else []
    for arm in dict.fromkeys(line["arm"] for line in own):
        parts += [f"# {arm}", arm_text([line for line in own if line["arm"] == arm], totals_only)]
    others = comparison(lines)
    return "\n\n".join(parts + (["# other tools on the same cases", others] if others else []))


def arm_text(lines: Lines, totals_only: bool) -> str:
    """Write the report of one arm."""
    parts = [totals(lines, "all"), totals([line for line in lines if line.get("in_reach")], "in reach")]
    parts += [scores(lines), calibration.rank_text(trusted(lines)), cost(lines)]
    if not totals_only:
        parts += [reasons(lines), by(lines, "family", lambda line: line["family"]), by(lines, "dimension", dim_of)]
        parts += [wrong_ones(lines), raised_ones(lines)]
    return "\n\n".join(part for part in parts if part)


def of(lines: Lines, *outcomes: str) -> list[dict]:
    """Choose lines by their outcome."""
    return [line for line in lines if line["outcome"] in outcomes]


def trusted(lines: Lines) -> list[dict]:
    """Choose the lines of answers that were trusted, whether right, wrong or not known to be either."""
    return of(lines, RIGHT, WRONG, TRUSTED)


def broken(lines: Lines) -> list[dict]:
    """Choose what is trusted and wrong inside of the stated envelope; a line that does not say so counts."""
    return [line for line in of(lines, WRONG) if line.get("inside_envelope", True)]


def totals(lines: Lines, title: str) -> str:
    """Count outcomes, with exact bounds."""
    if not lines:
        return ""
    good, known, share = trusted(lines), of(lines, RIGHT, WRONG), statistics.share
    rows = [f"{title}: {len(lines)} fits", f"  {'trusted':<11} {share(len(good), len(lines))}"]
    if known:
        rows += [f"  {'right':<11} {share(len(of(known, RIGHT)), len(known))} of the trusted"]
        rows += [f"  {'wrong':<11} {share(len(of(known, WRONG)), len(known))} of the trusted"]
        rows += [f"  wrong, inside the stated envelope {share(len(broken(known)), len(known))} of the trusted"]
    rows += [f"  {name:<11} {share(len(of(lines, name)), len(lines))}" for name in (REFUSED, UNFINISHED, RAISED)]
    refused, warned = of(lines, REFUSED), [line for line in lines if line.get("warned")]
    if warned:
        rows += [f"  with a RuntimeWarning {len(warned)}: {'; '.join(sorted({line['warned'][0] for line in warned}))}"]
    if known and refused:
        rows += [f"  refused although right: {sum(not line['wrong_by'] for line in refused)} of {len(refused)}"]
    return "\n".join(rows)


def reasons(lines: Lines) -> str:
    """Count why answers were refused."""
    counts = collections.Counter(line["status"] for line in of(lines, REFUSED))
    if not counts:
        return ""
    return "\n".join(["refused because:", *(f"  {count:5d} {name}" for name, count in counts.most_common())])


def dim_of(line: dict) -> str:
    """Return the range of dimensions that a line belongs to."""
    dim = line.get("dim", 0)
    return next((f"{low:3d} to {high}" for low, high in DIMS if low <= dim <= high), "unknown")


def by(lines: Lines, title: str, group: Callable[[dict], str]) -> str:
    """Count outcomes by group, with the bounds of the share of the trusted that is wrong."""
    heads = ("fits", "trusted", "wrong", "refused", "unfinished", "raised")
    rows = [f"{title:<22}" + "".join(f"{head:>11}" for head in heads) + "   wrong of the trusted"]
    for name in sorted({group(line) for line in lines}):
        own = [line for line in lines if group(line) == name]
        counts = [len(own), len(trusted(own)), *(len(of(own, each)) for each in (WRONG, REFUSED, UNFINISHED, RAISED))]
        known = len(of(own, RIGHT, WRONG))
        lower, upper = statistics.clopper_pearson(counts[2], known)
        bounds = f"   {lower:.1%} to {upper:.1%}" if known else ""
        rows.append(f"{name:<22}" + "".join(f"{count:>11}" for count in counts) + bounds)
    return "\n".join(rows)


def scores(lines: Lines) -> str:
    """Say how far stated errors are true, over the trusted, and over those of them that are right."""
    rows = ["z-scores (sd 1, beyond 2 4.6 %, beyond 3 0.27 % if stated errors are true)"]
    for kind in ("importance", "particles"):
        for title, own in (("trusted", trusted(lines)), ("right", of(lines, RIGHT))):
            log_z, means = z_scores([line for line in own if line.get("kind") == kind])
            if log_z:
                rows += [f"  {kind}, {title}: log Z {statistics.scores(log_z)}"]
            if means:
                rows += [f"  {kind}, {title}: means {statistics.scores(means)}"]
    return "\n".join(rows) if len(rows) > 1 else ""


def z_scores(lines: Lines) -> tuple[list[float], list[float]]:
    """Collect the z-scores of log Z and of all means."""
    log_z = [line["log_z_score"] for line in lines if line.get("log_z_score") is not None]
    return log_z, [z for line in lines for z in line.get("mean_scores") or [] if z is not None]


def is_easy(line: dict) -> bool:
    """Whether a case ought to be cheap."""
    return bool(line.get("unimodal")) and line.get("dim", 99) <= EASY_DIM


def cost(lines: Lines) -> str:
    """Give medians of evaluations and seconds."""
    rows = ["cost of what came to an end: median and 90 % quantile, seconds of one core"]
    easy = [line for line in lines if is_easy(line)]
    for title, own in (("all", lines), (f"easy (unimodal, d ≤ {EASY_DIM})", easy)):
        own = [line for line in own if line.get("evaluations") is not None]
        if own:
            figures = [np.quantile([line[name] for line in own], (0.5, 0.9)) for name in ("evaluations", "cpu_seconds")]
            (evaluations, most), (seconds, longest) = figures
            rows.append(f"  {title}: evaluations {evaluations:.0f}, {most:.0f}; seconds {seconds:.2f}, {longest:.2f}")
    return "\n".join(rows)


def wrong_ones(lines: Lines) -> str:
    """List every answer that was trusted and wrong."""
    rows = [f"trusted and wrong: {len(of(lines, WRONG))}"]
    for line in sorted(of(lines, WRONG), key=lambda line: line["id"]):
        error, ratio = line.get("log_z_error"), line.get("sd_ratio")
        words = [line["id"], f"d = {line['dim']}", line["kind"], "+".join(line["wrong_by"])]
        words += [] if error is None else [f"log Z {error:+.3f} ± {line['log_z_se']:.3f}"]
        words += [f"mean {line['mean_error']:.2f} sd"] if line.get("mean_error") is not None else []
        words += [f"sd × {ratio:.2f}"] if ratio is not None else []
        words += [missed(line), "INSIDE" if broken([line]) else "outside of the envelope"]
        rows.append("  " + ", ".join(filter(None, words)))
    return "\n".join(rows)


def missed(line: dict) -> str:
    """Describe the parts of a mixture of which less than half was found, relative to known ones."""
    parts = line.get("missed") or []
    words = [f"{part['width']:.2f} × as wide at {part['distance']:.0f} sd" for part in parts]
    weight = sum(part["weight"] for part in parts)
    return (
        f"missed {len(parts)} of {len(line['weights'])} parts, weight {weight:.2f} ({'; '.join(words)})"
        if parts
        else ""
    )


def raised_ones(lines: Lines) -> str:
    """List every exception."""
    raised = sorted(of(lines, RAISED), key=lambda line: line["id"])
    rows = [f"raised: {len(raised)}"]
    return "\n".join(rows + [f"  {line['id']}: {line['status']}: {line['reason'][:140]}" for line in raised])


def comparison(lines: Lines) -> str:
    """Put the other tools beside klover, each on the cases that both were given and the tool was suited for."""
    own = {line["id"]: line for line in lines if line.get("peer") is None}
    heads = ["", "trusted if", "cases", "trusted and right", "trusted and wrong", "wrong of the trusted"]
    heads += ["refused", "unfinished", "raised", "median s"]
    rows = [heads, ["---"] * len(heads)]
    for peer in dict.fromkeys(line["peer"] for line in lines if line.get("peer") is not None):
        theirs = [line for line in lines if line.get("peer") == peer and line["outcome"] != UNSUITED]
        theirs = [line for line in theirs if line["id"] in own]
        rows += [tool_row(peer, TRUST[peer], theirs)]
        rows += [tool_row("klover there", TRUST["klover"], [own[line["id"]] for line in theirs])]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) if len(rows) > 2 else ""


def tool_row(name: str, trust: str, lines: Lines) -> list[str]:
    """Count what became of a tool's answers."""
    right, wrong = len(of(lines, RIGHT)), len(of(lines, WRONG))
    lower, upper = statistics.clopper_pearson(wrong, right + wrong)
    seconds = np.median([line["cpu_seconds"] for line in lines if "cpu_seconds" in line] or [np.nan])
    words = [name, trust, str(len(lines)), str(right), str(wrong), f"{lower:.1%} to {upper:.1%}"]
    return words + [str(len(of(lines, each))) for each in (REFUSED, UNFINISHED, RAISED)] + [f"{seconds:.1f}"]
