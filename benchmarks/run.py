"""klover against the field: every tool on every task, each run in a process of its own, every seed reported.

    python -m benchmarks run [--peers klover,numpyro-nuts] [--tasks modes20] [--seeds 5] [--limit 600] --out DIR
    python -m benchmarks report DIR

(needs the extra `bench`). ``--cores 2`` gives each run two cores of its own, and makes as many runs at a time as the
machine has cores for; without it one run has the machine to itself. A run solves its task twice in one process. *Cold*
is the time from the start of the process to the first answer, imports and compilation included, less the time in which
the task is built (data, log density, the right answer), which is the same for all tools. *Warm* is the second call;
where the first one took more than half of the limit, or the second one does not end, the first one's own time is taken.
Errors are those of the first answer; ``field.py`` says what is wrong. What is in ``DIR/runs.jsonl`` is not run again.
"""

import argparse
import json
import pathlib
import subprocess
import time
from collections.abc import Iterator

import numpy as np

from benchmarks import peers, processes
from benchmarks.field import effective, errors, progress


def solve(peer: str, name: str, seed: int, began: float, limit: float) -> Iterator[dict]:
    """Solve a task, measure, and do it once more; ``began`` is when the process was started."""
    import jax

    jax.config.update("jax_enable_x64", True)
    module, setting = peers.load(peer)
    start = time.time()
    from benchmarks import tasks

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


def run_alone(peer: str, name: str, seed: int, limit: float) -> dict:
    """Run one task in a process of its own; its last answer counts, where it gives any within the limit."""
    try:
        done = processes.run_command("run", "--one", peer, name, str(seed), str(time.time()), str(limit), timeout=limit)
        output, words = done.stdout, processes.last_words(done)
    except subprocess.TimeoutExpired as stopped:
        output, words = stopped.stdout or b"", f"not done after {limit:.0f} s"
    lines = [line for line in output.decode().splitlines() if line.startswith("{")]
    about = {"peer": peer, "task": name, "seed": seed}
    return about | (json.loads(lines[-1]) if lines else {"failure": words})


def run_all(arguments: argparse.Namespace) -> None:
    """Run what is missing, line by line."""
    from benchmarks import tasks

    known = tasks.names()
    chosen = arguments.tasks.split(",") if arguments.tasks else known
    tools = arguments.peers.split(",") if arguments.peers else list(peers.MODULES)
    for given, names, what in ((chosen, known, "task"), (tools, list(peers.MODULES), "peer")):
        wrong = [name for name in given if name.partition(":")[0] not in names]
        if wrong:
            raise SystemExit(f"There is no {what} {', '.join(wrong)}. There are: {', '.join(names)}.")
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "runs.jsonl"
    done = {(run["peer"], run["task"], run["seed"]) for run in processes.read(path)}
    # Seeds change slowest and tools fastest: what is compared is measured at about the same time.
    plan = [(peer, name, seed) for seed in range(arguments.seeds) for name in chosen for peer in tools]
    plan = [part for part in plan if part not in done]
    lanes = processes.share_cores(arguments.cores) if arguments.cores is not None else None
    processes.collect(path, plan, lambda part: run_alone(*part, arguments.limit), lanes)


def main() -> None:
    """Run all, or solve one task."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", default="", help="names, separated by commas; name:tuned for a tuned setting")
    parser.add_argument("--tasks", default="", help="names, separated by commas; all by default")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for both calls of a run (600)")
    parser.add_argument("--cores", type=int, help="cores of each run, many runs at a time (one run with all cores)")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("field"), help="folder of the runs (field)")
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is None:
        run_all(arguments)
        return
    peer, name, seed, began, limit = arguments.one
    for result in solve(peer, name, int(seed), float(began), float(limit)):
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
