"""The reliability factory: ``run`` makes and judges fits of random cases, ``report`` counts what became of them.

    python -m benchmarks.reliability run known --set dev --num 300 --jobs 2 --out known.jsonl [--families a,b]
    python -m benchmarks.reliability run known/dev/mixture/17 --progress
    python -m benchmarks.reliability report known.jsonl [--totals] [--out DIR]

A case that is in the file already is not run again, so that an interrupted run goes on.
"""

import argparse
import json
import pathlib

from benchmarks import processes
from benchmarks.reliability import ARMS, PEERS, SETS

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results"


def main() -> None:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reliability",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="fit cases, or one case by its name")
    run.add_argument("what", help=f"an arm ({', '.join(ARMS)}), or the name of a case")
    run.add_argument("--set", default="dev", choices=SETS, help="set of seeds")
    run.add_argument("--num", type=int, default=300, help="number of cases, spread over the families")
    run.add_argument("--families", default="", help="separated by commas; all by default")
    run.add_argument("--jobs", type=int, default=1, help="worker processes, each on one core")
    run.add_argument("--limit", type=float, default=20.0, help="seconds that a fit may take")
    run.add_argument("--out", type=pathlib.Path, help="file of lines; ARM.jsonl by default")
    run.add_argument("--peer", choices=PEERS, help="another tool instead of klover")
    run.add_argument("--progress", action="store_true", help="show the rounds of one case")
    report = commands.add_parser("report", help="count what became of fits")
    report.add_argument("files", nargs="+", type=pathlib.Path)
    report.add_argument("--totals", action="store_true", help="totals only: no families, no cases")
    report.add_argument("--suite", type=pathlib.Path, default=RESULTS / "suite.jsonl", help="runs of the suite")
    report.add_argument("--posteriors", type=pathlib.Path, default=RESULTS / "posteriors.jsonl", help="and of these")
    report.add_argument("--out", type=pathlib.Path, help="folder for the page and its figures")
    arguments = parser.parse_args()
    {"run": run_cases, "report": write_report}[arguments.command](arguments)


def run_cases(arguments: argparse.Namespace) -> None:
    """Run the cases that are missing in the file, or one case by its name."""
    if "/" in arguments.what:
        print_one(arguments)
        return
    from benchmarks.reliability import case, work, workers

    names = case.names(arguments.what, arguments.set, arguments.num, list(filter(None, arguments.families.split(","))))
    path = arguments.out or pathlib.Path(".".join(filter(None, [arguments.what, arguments.peer, "jsonl"])))
    if any(line.get("peer") != arguments.peer for line in processes.read(path)):
        raise SystemExit(f"{path} holds the answers of another tool: name another file with --out.")
    workers.collect(path, names, work.Job(arguments.limit, arguments.peer), arguments.jobs)


def print_one(arguments: argparse.Namespace) -> None:
    """Run one case by its name, without a limit of time where its rounds are shown."""
    import jax

    jax.config.update("jax_enable_x64", True)
    from benchmarks.reliability import work

    limit = None if arguments.progress else arguments.limit
    print(json.dumps(work.run(arguments.what, limit, arguments.progress, arguments.peer)))


def write_report(arguments: argparse.Namespace) -> None:
    """Print the goals and the report; with a folder, write them there too, with figures."""
    from benchmarks.reliability import goals, report

    lines = report.read(arguments.files)
    held = goals.table(lines, processes.read(arguments.suite), processes.read(arguments.posteriors))
    text = f"# what has to hold\n\n{held}\n\n{report.text(lines, arguments.totals)}"
    print(text)
    if arguments.out is not None:
        from benchmarks.reliability import figures

        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "report.txt").write_text(text + "\n")
        figures.write(lines, arguments.out)


if __name__ == "__main__":
    main()
