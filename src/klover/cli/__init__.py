"""The command line: ``klover fit``, ``explain``, ``demo``, ``paper`` and ``bench suite``."""

import argparse
import shlex
import sys
from pathlib import Path

import klover
from klover.cli import demo, explain, fit, paper


def main(arguments: list[str] | None = None) -> int:
    """Run the command that the arguments name."""
    parser = argparse.ArgumentParser(
        prog="klover", description="Cover the posterior, then correct it: right or refused."
    )
    parser.add_argument("--version", action="version", version=f"klover {klover.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    fit.add_arguments(commands.add_parser("fit", help="fit a model in a Python or Stan file"))
    words = commands.add_parser("explain", help="say what the verdict of a fit means, and what to try")
    words.add_argument("place", type=Path, metavar="DIR", help="folder of klover fit, or a .klover file")
    show = commands.add_parser("demo", help="fit a regression on data that ships with the package")
    show.add_argument("--out", type=Path, default=Path("klover-demo"), help="folder for the figure and the table")
    show.add_argument("--seed", type=int, default=0, help="seed of the fits")
    paper.add_arguments(commands.add_parser("paper", help="reproduce the tables and figures of the paper"))
    bench = commands.add_parser("bench", help="measure klover on its benchmarks (in a clone of the repository)")
    suites = bench.add_subparsers(dest="suite", required=True)
    suite = suites.add_parser("suite", help="refine every target of the suite, every seed reported", add_help=False)
    suite.add_argument("rest", nargs=argparse.REMAINDER, help="--targets, --seeds, --out; see --help")
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(arguments)
    if options.command == "fit":
        return fit.run(options, shlex.join(["klover", *arguments]))
    if options.command == "explain":
        return explain.run(options.place)
    if options.command == "bench":
        return run_suite(options.rest)
    if options.command == "paper":
        return paper.run(options)
    return demo.run_demo(options.out, options.seed)


def run_suite(arguments: list[str]) -> int:
    """Run the script that measures the suite; it is a part of the repository, not of the installed package."""
    import subprocess

    script = Path(klover.__file__).parents[2] / "benchmarks" / "suite.py"
    if not script.exists():
        print(f"{script} is missing: the suite is in the repository, so clone it and install klover from there.")
        return 1
    return subprocess.run([sys.executable, str(script), *arguments], check=False).returncode
