"""The command line: ``klover fit``, ``explain``, ``demo``, ``paper`` and ``bench``."""

import argparse
import os
import shlex
import sys
from pathlib import Path

import klover
from klover.cli import demo, explain, fit, paper

READER_LEFT = 141
"""What shells show of a program that a closed pipe has ended."""
SCRIPTS = {
    "suite": "refine every target of the suite, every seed reported",
    "run": "run klover and its peers on every task, each in a process of its own",
    "report": "make tables, figures and a page of such runs",
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command that the arguments name; return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _parse(arguments)
    status = READER_LEFT
    try:
        status = _run(options, shlex.join(["klover", *arguments]))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader is content with what it has, as with ``| head``; Python must not write the rest at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def _parse(arguments: list[str]) -> argparse.Namespace:
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
    scripts = bench.add_subparsers(dest="script", required=True)
    for name, help_text in SCRIPTS.items():
        scripts.add_parser(name, help=help_text, add_help=False)
    options, options.rest = parser.parse_known_args(arguments)
    if options.rest and options.command != "bench":
        parser.error(f"unrecognized arguments: {' '.join(options.rest)}")
    return options


def _run(options: argparse.Namespace, command: str) -> int:
    if options.command == "fit":
        return fit.run(options, command)
    if options.command == "explain":
        return explain.run(options.place)
    if options.command == "bench":
        return run_script(options.script, options.rest)
    if options.command == "paper":
        return paper.run(options)
    return demo.run_demo(options.out, options.seed)


def run_script(name: str, arguments: list[str]) -> int:
    """Run a script that measures; it is a part of the repository, not of the installed package."""
    import subprocess

    command = ["suite.py"] if name == "suite" else ["field.py", name]
    script = Path(klover.__file__).parents[2] / "benchmarks" / command[0]
    if not script.exists():
        print(f"{script} is missing: benchmarks are in the repository, so clone it and install klover from there.")
        return 1
    return subprocess.run([sys.executable, str(script), *command[1:], *arguments], check=False).returncode
