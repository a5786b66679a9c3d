"""``klover paper``: the paper's tables and figures, one command each."""

import argparse
import itertools
import os
import sys
from concurrent.futures import BrokenExecutor
from pathlib import Path

from klover.base import optional
from klover.base.checks import check_choice, check_count
from klover.cli.environment import reported, set_up_jax

FIGURES = ("kl-comparison", "cauchy-boosting", "cauchy-logpdf", "gmm20-residual", "gmm20-moments")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the sub-commands and their options."""
    commands = parser.add_subparsers(dest="paper_command", required=True)
    commands.add_parser("list", help="list tables, figures, methods and data sets")
    table = commands.add_parser("table", help="compute a table")
    table.add_argument("name", help="blr, bnn, heavy, one of them with -noIS, failure-modes, wall-clock")
    figure = commands.add_parser("figure", help="draw a figure")
    figure.add_argument("name", help=", ".join(FIGURES))
    everything = commands.add_parser("all", help="compute all tables, draw all figures, write the page")
    page = commands.add_parser("report", help="write one page of everything that the folder holds")
    for each in (table, figure, everything, page):
        each.add_argument("--out", type=Path, default=Path("klover-paper"), help="folder of the results")
    for each in (table, everything):
        each.add_argument("--splits", type=int, default=20, help="number of train-test splits (20)")
        each.add_argument("--methods", help="methods, separated by commas (all)")
        each.add_argument("--datasets", help="data sets, separated by commas (all)")
        each.add_argument("--jobs", type=int, help="processes side by side (one for each core)")
        each.add_argument("--resume", action="store_true", help="go on with the results that the folder holds")
        tuned = each.add_mutually_exclusive_group()
        tuned.add_argument("--tuned", action="store_true", help="use the choices that were tuned before (the default)")
        tuned.add_argument("--tune", action="store_true", help="tune by the paper's grid first, on validation data")
    for each in (table, figure, everything):
        each.add_argument("--seed", type=int, default=0, help="seed of all fits (0)")
        each.add_argument("--device", choices=("cpu", "gpu"), help="where to compute (what JAX finds)")


def run(options: argparse.Namespace) -> int:
    """Run a sub-command; 0 when it went well, 2 on bad input."""
    commands = {"list": _list, "table": _table, "figure": _figure, "all": _all, "report": _report}
    try:
        return reported("paper", lambda: commands[options.paper_command](options))
    except BrokenExecutor:
        words = "a process was killed, perhaps for want of memory; what was finished is kept"
        print(f"klover paper: {words}. Go on with --resume, and fewer --jobs.", file=sys.stderr)
        return 1


def _list(options: argparse.Namespace) -> int:
    from klover.paper import experiments, methods
    from klover.paper.datasets import DATASETS

    names = {"tables": experiments.TABLES, "figures": FIGURES, "methods": methods.METHODS, "data sets": DATASETS}
    for title, values in names.items():
        print(f"{title:<10} {' '.join(values)}")
    return 0


def _table(options: argparse.Namespace) -> int:
    from klover.paper import experiments

    check_choice("the table", options.name, experiments.TABLES)
    _compute(options, [options.name])
    return 0


def _figure(options: argparse.Namespace) -> int:
    from klover.paper import figures

    check_choice("the figure", options.name, FIGURES)
    set_up_jax(options.device)
    _show(figures.draw(options.name, options.out / "figures", options.seed))
    return 0


def _all(options: argparse.Namespace) -> int:
    from klover.paper import experiments, figures

    # Figures take as long as a table: they are drawn meanwhile.
    num_artists = min(1 + _num_jobs(options) // 8, len(FIGURES))
    with experiments.pool(num_artists, set_up_jax) as artists:
        drawings = [artists.submit(figures.draw, name, options.out / "figures", options.seed) for name in FIGURES]
        _compute(options, list(experiments.TABLES))
        for drawing in drawings:
            _show(drawing.result())
    return _report(options)


def _report(options: argparse.Namespace) -> int:
    from klover.paper import report

    if not options.out.is_dir():
        raise ValueError(f"--out names {options.out}, where there is no folder of results.")
    print(f"page    {report.write(options.out)}")
    return 0


def _show(paths: list[Path]) -> None:
    for path in paths:
        print(f"figure  {path}")


def _names(option: str, text: str | None, known: tuple[str, ...]) -> tuple[str, ...] | None:
    """Split a list of names, and refuse one that is not known."""
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        check_choice(option, name, known)
    return names


def _compute(options: argparse.Namespace, names: list[str]) -> None:
    """Compute what is missing of some tables, write them, and print them."""
    from klover.paper import experiments, failure_modes, methods, tables
    from klover.paper.datasets import DATASETS

    known = (*methods.METHODS, *(name for name in failure_modes.METHODS if name not in methods.METHODS))
    chosen = _names("--methods", options.methods, known)
    datasets = _names("--datasets", options.datasets, DATASETS)
    check_count("--splits", options.splits, 1)
    path = options.out / "results.jsonl"
    if path.exists() and not options.resume:
        raise ValueError(f"{path} exists. Go on with it by --resume, or choose another folder by --out.")
    set_up_jax(options.device)
    results = experiments.Results(path)
    tuned = _tune(options, names, datasets) if options.tune else None
    # Views come last: the fits that they show are those of the tables before.
    plans = (experiments.plan(name, chosen, datasets, options.splits, options.seed, tuned) for name in names)
    _run(options, list(dict.fromkeys(itertools.chain(*plans))), results)
    for name in names:
        text = tables.markdown(name, results.rows)
        (options.out / f"{name}.md").write_text(text, encoding="utf-8")
        print(text)


def _run(options: argparse.Namespace, cells: list, results) -> None:
    from klover.paper import experiments

    total = sum(len(cell.splits) for cell in cells)
    left = sum(len(results.missing(cell).splits) for cell in cells)
    with _progress()(total=total, initial=total - left, unit="fit", file=sys.stderr) as bar:

        def tell(cell, num):
            bar.set_description(f"{cell.table} {cell.dataset} {cell.method}")
            bar.update(num)

        experiments.run(cells, results, _num_jobs(options), set_up_jax, tell)


def _progress():
    return optional.load("tqdm", "The paper's tables need", "paper").tqdm


def _num_jobs(options: argparse.Namespace) -> int:
    return options.jobs or os.cpu_count() or 1


def _tune(options: argparse.Namespace, names: list[str], datasets: tuple[str, ...] | None) -> dict:
    """Tune what is not tuned yet; the file in the results' folder keeps what is."""
    import json

    import jax

    from klover.paper import experiments, tuning
    from klover.paper.datasets import DATASETS

    path = options.out / "tuned.json"
    tuned = json.loads(path.read_text("utf-8")) if path.exists() else {}
    fitted = dict.fromkeys(experiments.VIEWS.get(name, name) for name in names if name not in experiments.MEASURED)
    pairs = itertools.product(fitted, datasets or DATASETS)
    wanted = [(table, dataset, method) for table, dataset in pairs for method in tuning.tuned(table)]
    for table, dataset, method in _progress()(wanted, desc="tuning", unit="method", file=sys.stderr):
        name = f"{table} {dataset} {method}"
        if name not in tuned:
            key = jax.random.fold_in(jax.random.key(options.seed), experiments.number_of(name))
            tuned[name] = tuning.tune(key, table, dataset, method)
            tuning.save(path, tuned)
    return tuned
