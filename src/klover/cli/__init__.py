"""The command line: ``klover fit``, ``explain``, ``demo`` and ``paper``, a module for each.

``models`` reads the models and the data that ``klover fit`` is given, ``environment`` sets JAX up. It may import every
room, and no room imports it.
"""

import argparse
import os
import shlex
import sys
from pathlib import Path

import klover
from klover.cli import demo, fit, paper

READER_LEFT = 141
"""What shells show of a program that a closed pipe has ended."""


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
    parser = argparse.ArgumentParser("klover", description="Cover the posterior, then correct it: right or refused.")
    parser.add_argument("--version", action="version", version=f"klover {klover.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    fit.add_arguments(commands.add_parser("fit", help="fit a model in a Python or Stan file"))
    words = commands.add_parser("explain", help="say what the verdict of a fit means, and what to try")
    words.add_argument("place", type=Path, metavar="DIR", help="folder of klover fit, or a .klover file")
    show = commands.add_parser("demo", help="fit a regression on data that ships with the package")
    show.add_argument("--out", type=Path, default=Path("klover-demo"), help="folder for the figure and the table")
    show.add_argument("--seed", type=int, default=0, help="seed of the fits")
    paper.add_arguments(commands.add_parser("paper", help="reproduce the tables and figures of the paper"))
    return parser.parse_args(arguments)


def _run(options: argparse.Namespace, command: str) -> int:
    if options.command == "fit":
        return fit.run(options, command)
    if options.command == "explain":
        return fit.run_explain(options.place)
    if options.command == "paper":
        return paper.run(options)
    return demo.run_demo(options.out, options.seed)
