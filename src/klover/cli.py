"""The command line: ``klover demo``, ``klover bench suite``."""

import argparse
import os
import sys
import time
from pathlib import Path

import klover

DEMO_DATASET, DEMO_SPLIT = "boston", 1
DEMO_PAIR = ("RAD", "TAX")


def main(arguments: list[str] | None = None) -> int:
    """Run the command that the arguments name."""
    parser = argparse.ArgumentParser(
        prog="klover", description="Cover the posterior, then correct it: right or refused."
    )
    parser.add_argument("--version", action="version", version=f"klover {klover.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="fit a regression on data that ships with the package")
    demo.add_argument("--out", type=Path, default=Path("klover-demo"), help="folder for the figure and the table")
    demo.add_argument("--seed", type=int, default=0, help="seed of the fits")
    bench = commands.add_parser("bench", help="measure klover on its benchmarks (in a clone of the repository)")
    suites = bench.add_subparsers(dest="suite", required=True)
    suite = suites.add_parser("suite", help="refine every target of the suite, every seed reported", add_help=False)
    suite.add_argument("rest", nargs=argparse.REMAINDER, help="--targets, --seeds, --out; see --help")
    options = parser.parse_args(arguments)
    if options.command == "bench":
        return run_suite(options.rest)
    return run_demo(options.out, options.seed)


def run_suite(arguments: list[str]) -> int:
    """Run the script that measures the suite; it is a part of the repository, not of the installed package."""
    import subprocess

    script = Path(klover.__file__).parents[2] / "benchmarks" / "suite.py"
    if not script.exists():
        print(f"{script} is missing: the suite is in the repository, so clone it and install klover from there.")
        return 1
    return subprocess.run([sys.executable, str(script), *arguments], check=False).returncode


def set_up_jax() -> None:
    """Switch on float64 and the persistent compilation cache, so that a second run starts at once."""
    import jax

    jax.config.update("jax_enable_x64", True)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(home / "klover" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def run_demo(out: Path, seed: int) -> int:
    """Fit the paper's heavy-tailed regression by reverse and by forward KL, and show what the difference is."""
    started = time.perf_counter()
    set_up_jax()
    import jax
    import numpy as np

    from klover.paper import datasets, gibbs, models
    from klover.reports import comparison_figure

    dataset = datasets.load(DEMO_DATASET)
    split = datasets.split(dataset, DEMO_SPLIT)
    target = models.heavy_tailed_regression(split, dataset.feature_names)
    rows = len(split.train_target)
    print(f"Linear regression with a heavy-tailed prior on {DEMO_DATASET} ({rows} rows, {target.dim} parameters)\n")
    key_reverse, key_forward = jax.random.split(jax.random.key(seed))
    reverse = _fit("reverse KL, one diagonal Gaussian", key_reverse, target, divergence="reverse", num_components=1)
    forward = _fit(
        "forward KL, Student-t components",
        key_forward,
        target,
        first="forward",
        fitter="em",
        family="student",
        newcomer="lbfgs",
        num_components=2,
    )
    print(f"\nreverse KL     {reverse.verdict}\n\nforward KL\n{forward.summary()}")
    exact = gibbs.sample_heavy_tailed_regression(np.random.default_rng(seed), split, 4000)
    features = [dataset.feature_names.index(name) for name in DEMO_PAIR]
    # The flat point is (log τ, w): weights stand one place later.
    figure = comparison_figure(exact["w"][:, features], reverse, forward, (features[0] + 1, features[1] + 1), DEMO_PAIR)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "demo.png", dpi=150)
    (out / "summary.txt").write_text(f"{forward.summary()}\n", encoding="utf-8")
    print(f"\nfigure         {out / 'demo.png'}\ntable          {out / 'summary.txt'}")
    print(f"time           {time.perf_counter() - started:.1f} s")
    return 0


def _fit(title: str, key, target, num_components: int, **choices):
    """Fit with a progress bar, one tick a component."""
    from tqdm import tqdm

    from klover.boosting import boost

    with tqdm(total=num_components, desc=f"{title:<36}", unit="component", file=sys.stdout) as bar:

        def report(_, info):
            bar.set_postfix_str(f"KL {float(info.forward_kl):.3g}, ESS {float(info.ess_share):.1%}")
            bar.update()

        return boost(key, target, num_components=num_components, callback=report, **choices)
