"""klover against the field: every tool on every task, each run in a process of its own, every seed reported.

    python benchmarks/field.py run [--peers klover,numpyro-nuts] [--tasks modes20] [--seeds 5] [--limit 600] --out DIR
    python benchmarks/field.py report DIR

(needs the extra `bench`). ``--cores 2`` gives each run two cores of its own, and makes as many runs at a time as the
machine has cores for; without it one run has the machine to itself. A run solves its task twice in one process. *Cold*
is the time from the start of the process to the first answer, imports and compilation included, less the time in which
the task is built (data, log density, the right answer), which is the same for all tools. *Warm* is the second call;
where the first one took more than half of the limit, or the second one does not end, the first one's own time is taken.
Errors are those of the first answer. What is in ``DIR/runs.jsonl`` is not run again.

An answer is *wrong* if a mean is off by more than 0.2 standard deviations or a standard deviation by more than 20 %
(where 4000 exact draws would tell it to 4 %, which they do not for the wide coordinates of a funnel), if a mode's
weight is off by more than 0.05, or if log Z, where the tool gives it, is off by more than 0.05 and 5 of its standard
errors (0.2 where it gives none). It is wrong *in silence* if the tool's own diagnostics (the verdict, k̂, R-hat and
divergences) did not complain. A task that a tool cannot be asked to solve (a nested sampler needs a box) counts neither
for it nor against it.
"""

import argparse
import json
import os
import pathlib
import queue
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.pool import ThreadPool

import numpy as np

MEAN_LIMIT, SD_LIMIT, MODE_LIMIT, LOG_Z_LIMIT, NUM_ERRORS = 0.2, 0.2, 0.05, 0.05, 5
BARE_LOG_Z_LIMIT = 0.2
"""For a tool that states no error."""
PREFIXES = np.geomspace(1 / 64, 1, 13)
"""Parts of a chain whose error is measured, for the time that it takes to a given error."""


def errors(task, x: np.ndarray, log_weight: np.ndarray | None) -> dict:
    """Compare draws (draw, dim) with what is known."""
    log_weight = np.zeros(len(x)) if log_weight is None else log_weight
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    found = {}
    if task.mean is not None and task.sd is not None:
        quantity = task.quantities(x)
        mean = weight @ quantity
        sd = np.sqrt(weight @ (quantity - mean) ** 2)
        found["mean_error"] = float(np.max(np.abs(mean - task.mean) / task.sd))
        found["sd_error"] = float(np.max(np.abs(sd / task.sd - 1) * task.has_spread))
    if task.modes is not None:
        nearest = np.argmin(((x[:, None] - task.modes) ** 2).sum(-1), axis=1)
        masses = np.bincount(nearest, weight, len(task.modes))
        found["mode_error"] = float(np.abs(masses - task.mode_weights).max())
        found["num_modes"] = int(np.sum(masses > 0.5 * task.mode_weights))
    return found


def effective(answer) -> float:
    """Effective number of draws: of the weights, or of the chain that mixes worst."""
    if answer.x.ndim == 3:
        from klover.paper.chains import effective_draws

        return float(effective_draws(answer.x))
    if answer.log_weight is None:
        return float(len(answer.x))
    log_weight = answer.log_weight - answer.log_weight.max()
    return float(np.exp(log_weight).sum() ** 2 / np.exp(2 * log_weight).sum())


def progress(task, answer, seconds: float) -> list[tuple[float, float]]:
    """Seconds and errors of the means along chains; half of their time is taken to be warm-up."""
    if answer.x.ndim < 3 or task.mean is None or task.sd is None:
        return []
    found = []
    for part in PREFIXES:
        kept = answer.x[:, : max(int(part * answer.x.shape[1]), 1)].reshape(-1, task.dim)
        found.append((0.5 * (1 + part) * seconds, errors(task, kept, None)["mean_error"]))
    return found


def is_wrong(run: dict) -> bool:
    """Whether the answer is wrong by the rule above."""
    error = run.get("log_z_se")
    log_z_limit = max(NUM_ERRORS * error, LOG_Z_LIMIT) if error else BARE_LOG_Z_LIMIT
    limits = {"mean_error": MEAN_LIMIT, "sd_error": SD_LIMIT, "mode_error": MODE_LIMIT}
    is_log_z_wrong = abs(run.get("log_z_error", 0.0)) > log_z_limit
    return is_log_z_wrong or any(not run[name] <= limit for name, limit in limits.items() if name in run)


def solve(peer: str, name: str, seed: int, began: float, limit: float) -> Iterator[dict]:
    """Solve a task, measure, and do it once more; ``began`` is when the process was started."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import peers

    module, setting = peers.load(peer)
    start = time.time()
    import tasks

    task = tasks.load(name)
    built = time.time()
    try:
        run = module.prepare(task, **setting)
    except tasks.Unsuited as reason:
        yield {"unsuited": str(reason)}
        return
    answer = run(seed)
    answered = time.time()
    cold, own = answered - built + start - began, answered - built
    result = {
        "cold": cold,
        "warm": own,
        "num_evaluations": answer.num_evaluations,
        "num_gradients": answer.num_gradients,
        "num_draws": int(np.prod(answer.x.shape[:-1])),
        "ess": effective(answer),
        "complaint": answer.complaint,
        **errors(task, answer.x.reshape(-1, task.dim), answer.log_weight),
        "progress": progress(task, answer, own),
    }
    if answer.log_evidence is not None and task.log_evidence is not None:
        result |= {"log_z_error": answer.log_evidence - task.log_evidence, "log_z_se": answer.log_evidence_se}
    yield result
    if cold < limit / 2:
        again = time.time()
        run(seed + 1000)
        warm = time.time() - again
        yield result | {"warm": warm, "progress": progress(task, answer, warm)}


def run_alone(peer: str, name: str, seed: int, limit: float, cores: set[int] | None = None) -> dict:
    """Run one task in a process of its own, on the given cores."""
    script = str(pathlib.Path(__file__).resolve())
    pinned = ["taskset", "--cpu-list", ",".join(map(str, sorted(cores)))] if cores else []
    command = [*pinned, sys.executable, script, "one", peer, name, str(seed), str(time.time()), str(limit)]
    # No answer may come out of a cache of programs that an earlier run has left.
    environment = {key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"}
    if cores:
        environment |= {"OPENBLAS_NUM_THREADS": str(len(cores)), "OMP_NUM_THREADS": str(len(cores))}
    about = {"peer": peer, "task": name, "seed": seed}
    try:
        done = subprocess.run(command, capture_output=True, timeout=limit, env=environment, check=False)
        output, words = done.stdout, (done.stderr.decode().strip().splitlines() or ["no output"])[-1][:300]
    except subprocess.TimeoutExpired as stopped:
        output, words = stopped.stdout or b"", f"not done after {limit:.0f} s"
    lines = [line for line in output.decode().splitlines() if line.startswith("{")]
    return about | (json.loads(lines[-1]) if lines else {"failure": words})


def read(path: pathlib.Path) -> list[dict]:
    """Read the runs that a file holds; a torn last line does not count."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def share_cores(num_each: int | None) -> queue.SimpleQueue:
    """Share the machine's cores out to runs, so many to each; None lets one run have all."""
    lanes = queue.SimpleQueue()
    if num_each is None:
        lanes.put(None)
        return lanes
    free = sorted(os.sched_getaffinity(0))
    if not 1 <= num_each <= len(free):
        raise SystemExit(f"--cores must lie between 1 and {len(free)}, the cores of this machine, got {num_each}.")
    for number in range(len(free) // num_each):
        lanes.put(set(free[number * num_each : (number + 1) * num_each]))
    return lanes


def run_all(arguments: argparse.Namespace) -> None:
    """Run what is missing, line by line."""
    import peers
    import tasks
    from tqdm import tqdm

    known = tasks.names()
    chosen = arguments.tasks.split(",") if arguments.tasks else known
    tools = arguments.peers.split(",") if arguments.peers else list(peers.MODULES)
    for given, names, what in ((chosen, known, "task"), (tools, list(peers.MODULES), "peer")):
        wrong = [name for name in given if name.partition(":")[0] not in names]
        if wrong:
            raise SystemExit(f"There is no {what} {', '.join(wrong)}. There are: {', '.join(names)}.")
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "runs.jsonl"
    done = {(run["peer"], run["task"], run["seed"]) for run in read(path)}
    # Seeds change slowest and tools fastest: what is compared is measured at about the same time.
    plan = [(peer, name, seed) for seed in range(arguments.seeds) for name in chosen for peer in tools]
    missing = [each for each in plan if each not in done]
    lanes = share_cores(arguments.cores)

    def run_in_lane(each: tuple[str, str, int]) -> dict:
        cores = lanes.get()
        try:
            return run_alone(*each, arguments.limit, cores)
        finally:
            lanes.put(cores)

    with path.open("a") as file, ThreadPool(lanes.qsize()) as pool:
        for run in tqdm(pool.imap_unordered(run_in_lane, missing), total=len(missing), unit="run"):
            file.write(json.dumps(run) + "\n")
            file.flush()


def main() -> None:
    """Run, report, or solve one task."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run every tool on every task")
    run.add_argument("--peers", default="", help="names, separated by commas; name:tuned for a tuned setting")
    run.add_argument("--tasks", default="", help="names, separated by commas; all by default")
    run.add_argument("--seeds", type=int, default=5)
    run.add_argument("--limit", type=float, default=600.0, help="seconds for both calls of a run (600)")
    run.add_argument("--cores", type=int, help="cores of each run, many runs at a time (one run with all cores)")
    run.add_argument("--out", type=pathlib.Path, required=True)
    report = commands.add_parser("report", help="make tables and figures of a folder's runs")
    report.add_argument("out", type=pathlib.Path)
    one = commands.add_parser("one")
    one.add_argument("rest", nargs=5)
    arguments = parser.parse_args()
    if arguments.command == "one":
        peer, name, seed, began, limit = arguments.rest
        for result in solve(peer, name, int(seed), float(began), float(limit)):
            print(json.dumps(result), flush=True)
    elif arguments.command == "run":
        run_all(arguments)
    else:
        import field_report

        field_report.write(arguments.out)


if __name__ == "__main__":
    main()
