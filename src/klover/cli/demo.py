"""``klover demo``: a regression on data that ships with the package, by the reverse and by the forward KL."""

import sys
import time
from pathlib import Path

from klover.cli.environment import set_up_jax

DEMO_DATASET, DEMO_SPLIT = "boston", 1
DEMO_PAIR = ("RAD", "TAX")


def run_demo(out: Path, seed: int) -> int:
    """Fit the paper's heavy-tailed regression by reverse and by forward KL, and show what the difference is."""
    started = time.perf_counter()
    set_up_jax()
    import jax
    import numpy as np

    from klover.paper import datasets, gibbs, models
    from klover.results.report import comparison_figure

    dataset = datasets.load(DEMO_DATASET)
    split = datasets.split(dataset, DEMO_SPLIT)
    target = models.heavy_tailed_regression(split, dataset.feature_names)
    rows = len(split.train_target)
    print(f"Linear regression with a heavy-tailed prior on {DEMO_DATASET} ({rows} rows, {target.dim} parameters)\n")
    key_reverse, key_forward = jax.random.split(jax.random.key(seed))
    reverse = _fit("reverse KL, one diagonal Gaussian", key_reverse, target, divergence="reverse", max_components=1)
    forward = _fit(
        "forward KL, Student-t components",
        key_forward,
        target,
        start="forward",
        fitter="em",
        family="student",
        newcomer="lbfgs",
        max_components=2,
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


def _fit(title: str, key, target, max_components: int, **options):
    """Fit with a progress bar, one tick a component."""
    from tqdm import tqdm

    from klover.boosting.boost import boost

    with tqdm(total=max_components, desc=f"{title:<36}", unit="component", file=sys.stdout) as bar:

        def report(info):
            bar.set_postfix_str(f"KL {float(info.forward_kl):.3g}, ESS {float(info.ess_share):.1%}")
            bar.update()

        return boost(key, target, max_components=max_components, callback=report, **options)
