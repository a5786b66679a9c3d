"""``klover fit`` fits a model in a file, and fills a folder with the answer; ``klover explain`` words its verdict."""

import argparse
import contextlib
import datetime
import json
import math
import re
import sys
import time
import webbrowser
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from klover.cli.environment import reported, set_up_jax
from klover.cli.models import ModelError, describe, errors_in, load_target, split

if TYPE_CHECKING:
    from klover.results.fit import Fit
    from klover.targets.target import Target

TRUSTED, REFUSED = 0, 3
FIT = "fit.klover"
SECONDS_TO_CONNECT = 5
SECONDS = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.description = "Exit status: 0 trusted, 3 refused, 2 bad input."
    parser.add_argument("model", help="FILE.py:NAME (a NumPyro model, a PyMC model, a klover.Target) or FILE.stan")
    parser.add_argument("--data", type=Path, help="data by name: .json, .csv (a header and numbers) or .npz")
    parser.add_argument("--out", type=Path, default=Path("klover-fit"), help="folder of the results (klover-fit)")
    parser.add_argument("--journal", type=Path, help="file of all evaluations; from one that exists, the fit goes on")
    parser.add_argument("--start", type=Path, help="begin with draws: an ArviZ netCDF file, or a .klover file")
    parser.add_argument("--budget", help="most evaluations (100000) or most time (60s, 5min, 1h)")
    parser.add_argument("--min-ess", type=int, help="effective draws that are enough, where evaluations are expensive")
    parser.add_argument("--seed", type=int, default=0, help="seed of all draws (0)")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.add_argument("--open", action="store_true", help="open the page about the fit in the browser")
    parser.add_argument("--allow-latent", action="store_true", help="infer arguments of the model that have no data")
    workers = parser.add_mutually_exclusive_group()
    workers.add_argument("--jobs", type=int, help="processes that evaluate a model of klover.from_callback")
    workers.add_argument("--dask", metavar="ADDRESS", help="a Dask scheduler whose workers do so (tcp://host:8786)")
    parser.add_argument("--device", choices=("cpu", "gpu"), help="where to compute (what JAX finds)")


def run(options: argparse.Namespace, command: str) -> int:
    """Fit, write and tell; return the exit status."""
    advice = "With --journal FILE the same command goes on where the evaluations ended."
    return reported("fit", lambda: _run(options, command), TypeError, ModelError, advice=advice)


def run_explain(place: Path) -> int:
    """Explain the fit in a folder of ``klover fit``, or in a file of ``fit.save``; return the exit status."""
    import klover

    def work():
        path = place / FIT if place.is_dir() else place
        if not path.is_file():
            raise ValueError(f"{path} does not exist. Make a fit first: klover fit MODEL --out DIR.")
        print(klover.explain(klover.load(path)))
        return 0

    return reported("explain", work)


def _run(options: argparse.Namespace, command: str) -> int:
    began = time.perf_counter()
    budget = None if options.budget is None else parse_budget(options.budget)
    is_held = (options.out / FIT).exists()
    if is_held and not (options.journal and options.journal.exists()):
        raise ValueError(
            f"{options.out / FIT} exists. Choose another folder by --out, or go on with that fit by the --journal that "
            "it was made with."
        )
    set_up_jax(options.device)
    import jax

    import klover

    # Of a traceback only the lines of the user's file are shown, so JAX need not shorten it.
    jax.config.update("jax_traceback_filtering", "off")
    target = load_target(options.model, options.data, options.allow_latent)
    if is_held:
        klover.load(options.out / FIT, target)  # refuses another model or other data, whose fit would be replaced
    start = None if options.start is None else read_start(options.start, target)
    options.out.mkdir(parents=True, exist_ok=True)
    print(f"klover fit: {describe(target)}", file=sys.stderr, flush=True)
    with _pool(options) as pool, errors_in(split(options.model)[0]):
        key, progress = jax.random.key(options.seed), sys.stderr.isatty()
        limits = {"budget": budget, "min_ess": options.min_ess, "journal": options.journal}
        fit = klover.refine(key, target, start, **limits, progress=progress, pool=pool)
    _tell(options, fit, command, began)
    return TRUSTED if fit.verdict.trusted else REFUSED


def _tell(options: argparse.Namespace, fit: "Fit", command: str, began: float) -> None:
    """Print the answer, write the files, and open the page if that is wanted."""
    if not options.json:
        print(fit.summary(), flush=True)
    print(f"klover fit: writing to {options.out}", file=sys.stderr, flush=True)
    files = write(options.out, fit, Path(options.model).name, command)
    if options.json:
        print(json.dumps(_as_json(fit, files), indent=2, ensure_ascii=False))
    else:
        print("\n" + "\n".join(f"{name:<15}{path}" for name, path in files.items()))
        print(f"time           {time.perf_counter() - began:.1f} s")
    if options.open and "report" in files and not webbrowser.open(files["report"].resolve().as_uri()):
        print(f"klover fit: no browser was found for --open. The page is {files['report']}.", file=sys.stderr)


@contextlib.contextmanager
def _pool(options: argparse.Namespace) -> Iterator[Any]:
    """Return who evaluates the model: so many processes, a cluster, or nobody else."""
    if options.dask is None:
        yield options.jobs
        return
    from klover.base import optional

    try:
        client = optional.distributed().Client(options.dask, timeout=SECONDS_TO_CONNECT)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"--dask: nobody answers at {options.dask} ({error}). Start `dask scheduler` and workers, and pass the "
            "address that it prints."
        ) from error
    with client:
        yield client


def parse_budget(text: str) -> int | datetime.timedelta:
    """Read a number of evaluations, or a time with its unit."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?)\s*(s|sec|m|min|h)", text.strip())
    if found:
        return datetime.timedelta(seconds=float(found[1]) * SECONDS[found[2]])
    if re.fullmatch(r"[\d_]*[1-9][\d_]*", text.strip()):
        return int(text)
    raise ValueError(f"--budget must be a number of evaluations, or a time such as 60s or 5min, got {text!r}.")


def read_start(path: Path, target: "Target") -> Any:
    """Read draws to begin with: a fit of klover's, or the posterior in an ArviZ file."""
    import klover
    from klover.base import optional

    if not path.is_file():
        raise ValueError(f"--start names {path}, which does not exist.")
    if path.suffix == ".klover":
        return klover.load(path)
    xarray = optional.xarray()
    try:
        with xarray.open_datatree(path, engine="h5netcdf") as tree:
            start = tree.load()
    except (OSError, ValueError) as error:
        raise ValueError(f"--start {path} is no netCDF file: {error}") from error
    if "posterior" not in start.children:
        raise ValueError(f"--start {path} must have a group 'posterior', but it has {', '.join(start.children)}.")
    values = list(start.posterior.data_vars.values())
    is_nameless = target.model_info is None and not isinstance(target.unravel(target.start), dict)
    # One variable holds the whole position of a target without names.
    return values[0].to_numpy().reshape(-1, target.dim) if is_nameless and len(values) == 1 else start


def write(folder: Path, fit: "Fit", title: str, command: str) -> dict[str, Path]:
    """Write all that a folder is to hold, and return the files by what they are; say what a missing library costs."""
    from klover.results import report

    files = {"fit": folder / FIT, "table": folder / "summary.csv"}
    fit.save(files["fit"])
    fit.summary().to_csv(files["table"])
    wanted: dict[str, tuple[Path, Callable[[Path], object]]] = {
        "draws": (folder / "draws.nc", lambda path: fit.to_datatree().to_netcdf(path, engine="h5netcdf")),
        "report": (folder / "report.html", lambda path: report.write_report(path, fit, title, command)),
    }
    for name, (path, make) in wanted.items():
        try:
            make(path)
        except ImportError as error:
            notes = " ".join(getattr(error, "__notes__", ()))
            print(f"klover fit: {path} is left out. {notes}", file=sys.stderr)
        else:
            files[name] = path
    return files


def _as_json(fit: "Fit", files: dict[str, Path]) -> dict[str, Any]:
    summary, verdict = fit.summary(), fit.verdict
    words = {"status": verdict.status.name, "reason": verdict.reason, "remedy": verdict.remedy}
    return {
        "verdict": {"trusted": verdict.trusted, **words},
        "figures": {name: _as_number(value) for name, value in summary.figures.items()},
        "num_evaluations": fit.num_evaluations,
        "quantities": {
            name: {column: _as_number(float(values[row])) for column, values in summary.columns.items()}
            for row, name in enumerate(summary.names)
        },
        "files": {name: str(path) for name, path in files.items()},
    }


def _as_number(value: Any) -> Any:
    """JSON has neither NaN nor infinities."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
