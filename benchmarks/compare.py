"""Two files of runs side by side, target by target: what was trusted, right and wrong, evaluations and seconds.

    python -m benchmarks compare BEFORE.jsonl AFTER.jsonl

The files are those of ``suite`` or of ``posteriors``. Only pairs of runs with the same target and seed are compared.
*Wrong* are answers that were trusted and wrong. Evaluations and seconds are medians over the seeds; a ratio is after
over before, and a star marks what became worse by more than 10 %.
"""

import argparse
import pathlib

import numpy as np

from benchmarks import processes, suite

LARGEST_RATIO = 1.1


def name_of(run: dict) -> str:
    """Return the target of a run."""
    return run["target"] if "target" in run else run["posterior"]


def is_right(run: dict) -> bool:
    """Whether the answer is right, by the rule of the script that made the run."""
    return run["is_right"] if "is_right" in run else not suite.is_wrong(run)


def counts(runs: list[dict]) -> tuple[int, int, int]:
    """Count the answers that are trusted, right, and trusted although wrong."""
    trusted = [run["trusted"] for run in runs]
    right = [is_right(run) for run in runs]
    return sum(trusted), sum(right), sum(one and not other for one, other in zip(trusted, right, strict=True))


def row(name: str, before: list[dict], after: list[dict]) -> str:
    """Return the line of a target."""
    cells = [name, str(len(before))]
    cells += [f"{old} → {new}" for old, new in zip(counts(before), counts(after), strict=True)]
    for field, form in (("evaluations", ".0f"), ("seconds", ".2f")):
        old, new = (float(np.median([run[field] for run in runs])) for runs in (before, after))
        star = " *" if new > LARGEST_RATIO * old else ""
        cells += [f"{old:{form}} → {new:{form}}", f"{new / old:.2f}{star}"]
    return "| " + " | ".join(cells) + " |"


def table(before: list[dict], after: list[dict]) -> str:
    """Return one line a target, and one for all together."""
    by_key = [{(name_of(run), run["seed"]): run for run in runs} for runs in (before, after)]
    common = [key for key in by_key[0] if key in by_key[1]]
    if not common:
        raise SystemExit("The two files have no target and seed in common.")
    columns = ("target", "runs", "trusted", "right", "wrong", "evaluations", "ratio", "seconds", "ratio")
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for name in [*dict.fromkeys(name for name, _ in common), None]:
        keys = [key for key in common if name in (key[0], None)]
        lines.append(row(name or "all", *([runs[key] for key in keys] for runs in by_key)))
    left_out = [len(runs) - len(common) for runs in by_key]
    if any(left_out):
        lines.append(f"\nLeft out: {left_out[0]} runs that are only before, {left_out[1]} that are only after.")
    return "\n".join(lines)


def main() -> None:
    """Print the table of two files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=pathlib.Path)
    parser.add_argument("after", type=pathlib.Path)
    arguments = parser.parse_args()
    missing = [path for path in (arguments.before, arguments.after) if not path.exists()]
    if missing:
        raise SystemExit(f"{missing[0]} does not exist.")
    print(table(processes.read(arguments.before), processes.read(arguments.after)))


if __name__ == "__main__":
    main()
