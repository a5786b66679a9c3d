"""Strong and weak scaling of pools with a function that sleeps 20 ms, on 1 to 16 workers.

    OPENBLAS_NUM_THREADS=1 python -m benchmarks pool_scaling [--num 640] --out DIR

A sleep needs no core: sixteen workers can be tried on two cores, and what is measured is what klover and the pool add.
Strong scaling shares 640 points out, weak scaling has 40 for each worker. Efficiency is the time that the points
sleep, over the time of the pool and its workers, in the best of three runs. Writes ``pool_scaling.jsonl`` (what is
there is not run again) and ``pool_scaling.png``.
"""

import argparse
import json
import pathlib

from benchmarks.pools import SECONDS, cheap, pools, seconds_of, slow
from klover.workers.crew import connect
from klover.workers.parcel import Job
from klover.workers.work import OnPoints

WORKERS = (1, 2, 4, 8, 16)
KINDS = {"processes (pool=N)": "C0", "ProcessPoolExecutor": "C1", "Dask": "C2"}


def run(kind: str, num_workers: int, num: int) -> list[dict]:
    """Measure one pool, when its workers have started."""
    pool = pools(num_workers)[kind]()
    workers = connect(pool)
    try:
        seconds_of(workers, Job("cheap", OnPoints(cheap)), 64 * num_workers)
        rows = []
        for scaling, size in (("strong", num), ("weak", num * num_workers // WORKERS[-1])):
            job = Job("slow", OnPoints(slow))
            taken = min(seconds_of(workers, job, size) for _ in range(3))
            efficiency = SECONDS * size / (num_workers * taken)
            known = {"kind": kind, "workers": num_workers, "scaling": scaling, "num": size}
            rows.append(known | {"seconds": taken, "efficiency": efficiency})
        return rows
    finally:
        workers.close()
        for end in ("close", "shutdown"):
            if hasattr(pool, end):
                getattr(pool, end)()
                break


def draw(rows: list[dict], path: pathlib.Path) -> None:
    """Draw the efficiency of each kind of pool."""
    import matplotlib.pyplot as plt

    from klover.paper.figures import DPI, STYLE

    titles = {"strong": "strong: the same points for all", "weak": "weak: the same points for each worker"}
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
        for panel, (scaling, title) in zip(panels, titles.items(), strict=True):
            for kind, colour in KINDS.items():
                own = [row for row in rows if (row["kind"], row["scaling"]) == (kind, scaling)]
                own = sorted(own, key=lambda row: row["workers"])
                numbers = [[row["workers"] for row in own], [100 * row["efficiency"] for row in own]]
                panel.semilogx(*numbers, "o-", color=colour, label=kind)
            panel.axhline(90, color="0.6", linestyle=":", linewidth=1)
            panel.set_xticks(WORKERS, [str(num) for num in WORKERS])
            panel.minorticks_off()
            panel.set(title=title, xlabel="workers", ylim=(0, 105))
        panels[0].set_ylabel("efficiency, %")
        panels[0].legend(loc="lower left")
        figure.savefig(path, dpi=DPI)
        plt.close(figure)


def main() -> None:
    """Run what is missing, print, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num", type=int, default=640, help="points of the strong scaling (640)")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "pool_scaling.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(row["kind"], row["workers"]) for row in rows}
    with path.open("a") as file:
        for num_workers in WORKERS:
            for kind in KINDS:
                if (kind, num_workers) not in done and kind in pools(num_workers):
                    rows += run(kind, num_workers, arguments.num)
                    file.writelines(json.dumps(row) + "\n" for row in rows[-2:])
                    file.flush()
    print("| pool | workers | strong | weak |\n|---|---|---|---|")
    found = {(row["kind"], row["workers"], row["scaling"]): f"{row['efficiency']:.0%}" for row in rows}
    for kind, num_workers in sorted({key[:2] for key in found}):
        print(f"| {kind} | {num_workers} | {found[kind, num_workers, 'strong']} | {found[kind, num_workers, 'weak']} |")
    draw(rows, arguments.out / "pool_scaling.png")


if __name__ == "__main__":
    main()
