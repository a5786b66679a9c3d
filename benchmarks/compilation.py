"""Where the first seconds of `refine` go: imports, and every program that is compiled, with its size.

    python -m benchmarks compilation [--repeats 3]

A logistic regression in ten dimensions, in fresh processes; the fastest of them is shown. Programs are compiled in two
threads, so their seconds add up to more than the time that passes. A program's size is its number of HLO instructions
after optimisation.
"""

import argparse
import json
import subprocess
import sys
import time

from benchmarks.processes import ROOT

DIM, NUM_ROWS = 10, 1000
STAGES = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}


def measure() -> dict:
    """Refine twice in this process, and take every stage's time."""
    laps, last = {}, time.perf_counter()

    def lap(name):
        nonlocal last
        now = time.perf_counter()
        laps[name], last = now - last, now

    import jax

    lap("import jax")
    import klover

    lap("import klover")
    events = []

    def listen(name, seconds, **about):
        if name in STAGES:
            program = about.get("fun_name", "?").removeprefix("jit(").removesuffix(")")
            events.append((program, STAGES[name], seconds))

    jax.monitoring.register_event_duration_secs_listener(listen)
    key = jax.random.key(0)
    lap("jax.random.key")
    from benchmarks.overhead import logistic_regression

    last = time.perf_counter()
    target = logistic_regression(DIM, NUM_ROWS)
    lap("Target")
    klover.refine(key, target, progress=False)
    lap("refine, first call")
    num_first = len(events)
    klover.refine(key, target, progress=False)
    lap("refine, second call")
    programs = {}
    for name, stage, seconds in events:
        own = programs.setdefault(name, {"count": 0, "trace": 0.0, "lower": 0.0, "compile": 0.0})
        own[stage] += seconds
        own["count"] += stage == "compile"
    return {"laps": laps, "programs": programs, "late": len(events) - num_first, "sizes": sizes(target)}


def sizes(target) -> dict[str, int]:
    """Count the instructions of the programs of the target."""
    import numpy as np

    from klover.targets import evaluator

    def count(program, num_points):
        text = program.lower(target, np.zeros((num_points, DIM), target.start.dtype)).compile().as_text()
        return sum(" = " in line for line in text.splitlines())

    return {
        "_values": count(evaluator._values, evaluator.VALUE_BLOCK),
        "_values_and_gradients": count(evaluator._values_and_gradients, evaluator.GRADIENT_BLOCKS[0]),
    }


def main() -> None:
    """Measure in fresh processes, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure()))
        return
    command = [sys.executable, "-m", "benchmarks.compilation", "--one"]
    found = [json.loads(subprocess.check_output(command, cwd=ROOT).splitlines()[-1]) for _ in range(arguments.repeats)]
    best = min(found, key=lambda each: sum(each["laps"].values()))
    print("| part | s |\n|---|---|")
    for name, seconds in best["laps"].items():
        print(f"| {name} | {seconds:.3f} |")
    print("\n| program | compiled | trace, s | lower, s | compile, s | instructions |\n|---|---|---|---|---|---|")
    for name, own in sorted(best["programs"].items(), key=lambda item: -item[1]["compile"]):
        if own["count"]:
            times = " | ".join(f"{own[stage]:.3f}" for stage in ("trace", "lower", "compile"))
            print(f"| `{name}` | {own['count']} | {times} | {best['sizes'].get(name, '–')} |")
    print(f"\nThe second call compiled {'nothing' if not best['late'] else 'again: ' + str(best['late']) + ' stages'}.")


if __name__ == "__main__":
    main()
