"""``klover demo``: a regression on data that ships with the package, by the reverse and by the forward KL."""

import time
from pathlib import Path

from klover.cli.environment import set_up_jax

DEMO_DATASET, DEMO_SPLIT = "concrete", 1
DEMO_PAIR = ("cement", "blast_furnace_slag")


def run_demo(out: Path, seed: int) -> int:
    """Fit the paper's heavy-tailed regression by reverse and by forward KL, and show what the difference is."""
    started = time.perf_counter()
    set_up_jax()
    import jax

    from klover.paper import datasets, models

    dataset = datasets.load(DEMO_DATASET)
    split = datasets.split(dataset, DEMO_SPLIT)
    target = models.heavy_tailed_regression(split, dataset.feature_names)
    rows = len(split.train_target)
    print(f"Linear regression with a heavy-tailed prior on {DEMO_DATASET} ({rows} rows, {target.dim} parameters)\n")
    key_reverse, key_forward = jax.random.split(jax.random.key(seed))
    reverse = _fit("reverse KL, one diagonal Gaussian", key_reverse, target, divergence="reverse", max_components=1)
    choices = {"start": "forward", "fitter": "em", "family": "student", "newcomer": "lbfgs", "max_components": 2}
    forward = _fit("forward KL, Student-t components", key_forward, target, **choices)
    print(f"\nreverse KL     {reverse.verdict}\n\nforward KL\n{forward.summary()}")
    out.mkdir(parents=True, exist_ok=True)
    (out / "summary.txt").write_text(f"{forward.summary()}\n", encoding="utf-8")
    print(f"\ntable          {out / 'summary.txt'}")
    try:
        print(f"figure         {_draw(out / 'demo.png', split, dataset.feature_names, reverse, forward, seed)}")
    except ImportError as error:
        print(f"figure         not drawn. {' '.join(error.__notes__)}")
    print(f"time           {time.perf_counter() - started:.1f} s")
    return 0


def _fit(title: str, key, target, **options):
    """Fit, and print a line for each component."""
    from klover.boosting.boost import boost

    def report(info):
        divergence, share = float(info.forward_kl), float(info.ess_share)
        print(f"{title:<36} component {int(info.num_components)}   KL {divergence:.3g}, ESS {share:.1%}", flush=True)

    return boost(key, target, callback=report, **options)


def _draw(path: Path, split, feature_names: tuple[str, ...], reverse, forward, seed: int) -> Path:
    """Draw both fits beside draws of an exact sampler."""
    import numpy as np

    from klover.paper import gibbs
    from klover.results.report import comparison_figure

    exact = gibbs.sample_heavy_tailed_regression(np.random.default_rng(seed), split, 4000)
    features = [feature_names.index(name) for name in DEMO_PAIR]
    # The flat point is (log τ, w): weights stand one place later.
    axes = features[0] + 1, features[1] + 1
    titles = DEMO_PAIR[0].replace("_", " "), DEMO_PAIR[1].replace("_", " ")
    figure = comparison_figure(exact["w"][:, features], reverse, forward, axes, titles)
    figure.savefig(path, dpi=150)
    return path
