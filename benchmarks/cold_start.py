"""Time from nothing to an answer: fresh processes that import, compile, fit, summarise, draw and average.

    python -m benchmarks cold_start [--repeats 5] [--cpu]        (needs the extra `numpyro`)

The ten lines of README.md as they stand there, and a logistic regression (n = 1000, d = 25) and non-centred eight
schools with the same lines after `refine`: cut off after `refine`, from a plain log density, and from a NumPyro model;
beside NumPyro's NUTS (4 chains of 1000 + 1000, vectorised). All in double precision. Runs are interleaved, and the
fastest of each is reported, because noise only ever adds. With `--cpu` they are CPU seconds of all threads, with their
medians: on a machine with other work the clock tells nothing. klover's bytecode is made first, as an installation does,
and no compiled program is taken from JAX's persistent cache. A second table says where the seconds go until `refine`
has answered: the main thread is looked at a thousand times a second.
"""

import argparse
import collections
import compileall
import json
import os
import pathlib
import re
import resource
import signal
import statistics
import subprocess
import sys
import time
import types

import klover

README = pathlib.Path(__file__).parents[1] / "README.md"

START = """
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
"""
NUMPYRO = """
import numpyro, numpyro.distributions as dist
"""
LOGISTIC = """
generator = np.random.default_rng(0)
features = generator.normal(size=(1000, 25))
labels = (generator.uniform(size=1000) < 1 / (1 + np.exp(-features @ generator.normal(size=25) / 2))).astype(float)
"""
LOGISTIC_DENSITY = """
example = {"weights": np.zeros(25)}
def log_density(position):
    logits = features @ position["weights"]
    return jnp.sum(labels * logits - jnp.logaddexp(0.0, logits)) - 0.5 * jnp.sum((position["weights"] / 2.5) ** 2)
"""
LOGISTIC_MODEL = """
def model():
    weights = numpyro.sample("weights", dist.Normal(0, 2.5).expand([25]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=features @ weights), obs=labels)
"""
SCHOOLS = """
effects = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
errors = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
"""
SCHOOLS_DENSITY = """
example = {"mu": 0.0, "log_tau": 0.0, "eta": np.zeros(8)}
def log_density(position):
    mu, log_tau, eta = position["mu"], position["log_tau"], position["eta"]
    tau = jnp.exp(log_tau)
    prior = -0.5 * (mu / 5) ** 2 + log_tau - jnp.log1p((tau / 5) ** 2) - 0.5 * jnp.sum(eta**2)
    return prior - 0.5 * jnp.sum(((effects - mu - tau * eta) / errors) ** 2)
"""
SCHOOLS_MODEL = """
def model():
    mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
    eta = numpyro.sample("eta", dist.Normal(0, 1).expand([8]).to_event(1))
    numpyro.sample("y", dist.Normal(mu + tau * eta, errors), obs=effects)
"""
FROM_DENSITY = """
import klover
fit = klover.refine(0, klover.Target(log_density, example))
"""
FROM_MODEL = """
import klover
fit = klover.refine(0, klover.from_numpyro(model))
"""
TWO_MODES = """
modes = np.array([[-3.0, 0.0], [3.0, 1.0]])
def model():
    x = numpyro.sample("x", dist.ImproperUniform(dist.constraints.real_vector, (), (2,)))
    numpyro.factor("p", jax.nn.logsumexp(-0.5 * jnp.sum((x - modes) ** 2, axis=1)))
"""
NUTS = """
from numpyro.infer import MCMC, NUTS
mcmc = MCMC(NUTS(model), num_warmup=1000, num_samples=1000, num_chains=4, chain_method="vectorized", progress_bar=False)
mcmc.run(jax.random.key(0))
mcmc.print_summary()
posterior = mcmc.get_samples()
value = np.sum(np.asarray(posterior["NAME"]) ** 2, axis=1).mean()
"""


def readme_lines() -> tuple[str, str]:
    """Return README's ten lines: up to `refine`, and after it."""
    (lines,) = re.findall(r"## Ten lines\n+```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    lines = lines.splitlines(keepends=True)
    last = next(number for number, line in enumerate(lines) if "klover.refine" in line) + 1
    return "".join(lines[:last]), "".join(lines[last:])


def programs() -> dict[str, dict[str, str]]:
    """Return what is run, by target and column."""
    refine, results = readme_lines()
    found = {
        "README": {"refine": refine, "ten lines": refine + results, "NUTS": START + NUMPYRO + TWO_MODES + _nuts("x")}
    }
    for target, name, data, density, model in (
        ("logistic", "weights", LOGISTIC, LOGISTIC_DENSITY, LOGISTIC_MODEL),
        ("schools", "eta", SCHOOLS, SCHOOLS_DENSITY, SCHOOLS_MODEL),
    ):
        own = results.replace("lambda x: jnp.sum(x**2)", f"lambda at: jnp.sum(at['{name}'] ** 2)")
        assert own != results, "README's function has changed"
        begun = START + data + density + FROM_DENSITY
        of_model = START + NUMPYRO + data + model
        columns = {"refine": begun, "ten lines": begun + own, "from a model": of_model + FROM_MODEL + own}
        found[target] = columns | {"NUTS": of_model + _nuts(name)}
    return found


def _nuts(name: str) -> str:
    return NUTS.replace("NAME", name)


def seconds(code: str, is_cpu: bool) -> float:
    """Run code in a fresh process, and return how long it took, or its CPU seconds, the start of Python included."""
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    began, spent = time.perf_counter(), _cpu_seconds()
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=environment)
    return _cpu_seconds() - spent if is_cpu else time.perf_counter() - began


def _cpu_seconds() -> float:
    """Return the CPU seconds of all processes that have ended here."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def compare(repeats: int, is_cpu: bool) -> None:
    """Print the fastest times of all columns (with medians if they are CPU seconds), and how they compare."""
    columns, unit = ("refine", "ten lines", "from a model", "NUTS"), "CPU s" if is_cpu else "s"
    print("| target |", " | ".join(f"{column}, {unit}" for column in columns), "| ten lines / refine | NUTS / klover |")
    print("|---|---|---|---|---|---|---|")
    for target, runs in programs().items():
        times = {column: [] for column in runs}
        for _ in range(repeats):
            for column, code in runs.items():
                times[column].append(seconds(code, is_cpu))
        fastest = {column: min(found) for column, found in times.items()}
        middle = {column: f" ({statistics.median(found):.2f})" if is_cpu else "" for column, found in times.items()}
        cells = [f"{fastest[column]:.2f}{middle[column]}" if column in runs else "" for column in columns]
        ratio = fastest["ten lines"] / fastest["refine"]
        own = [fastest[column] for column in ("ten lines", "from a model") if column in runs]
        others = ", ".join(f"{fastest['NUTS'] / time:.1f}" for time in own)
        print(f"| {target} | {' | '.join(cells)} | {ratio:.2f} | {others} |", flush=True)


PARTS = {
    "import klover": r"klover/__init__\.py:(<module>|__getattr__) ",
    "import jax": r"importlib\._bootstrap",
    "start XLA": r"jax/_src/xla_bridge\.py",
    "compile the gradient": r"evaluator\.py:values_and_gradients .*jax/_src/compiler\.py",
    "compile the values, or wait for it": r"evaluator\.py:values .*(threading\.py:join|jax/_src/compiler\.py)",
    "compile anything else": r"jax/_src/compiler\.py",
    "trace and lower": r"jax/_src/interpreters/(partial_eval|mlir)\.py|jaxpr\.py:signature|evaluator\.py:_is_diff",
    "evaluate the target": r"evaluator\.py:(values|values_and_gradients) ",
    "search for modes": r"klover/search/",
    "final draws": r"draws\.py:weigh_on_host ",
    "verdict": r"klover/verdict/",
    "rounds": r"klover/refinement/",
}
"""What the main thread is at, by the files and functions on its stack, the outermost first; the first that fits."""


def watch(code: str, is_cpu: bool) -> dict[str, float]:
    """Run code here, and return the seconds in each part."""
    parts, clock = collections.Counter(), time.process_time if is_cpu else time.perf_counter
    last = clock()

    def look(_: int, frame: types.FrameType | None) -> None:
        nonlocal last
        stack = []
        while frame is not None:
            stack.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name} ")
            frame = frame.f_back
        words = "".join(reversed(stack))
        part = next((part for part, pattern in PARTS.items() if re.search(pattern, words)), "anything else")
        now = clock()
        parts[part] += now - last
        last = now

    # A look that falls into foreign code waits for its end, and counts for all of it.
    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    exec(code, {})
    signal.setitimer(signal.ITIMER_REAL, 0)
    return dict(parts)


def explain(repeats: int, is_cpu: bool) -> None:
    """Print where the seconds go until `refine` has answered, for the fastest of some processes."""
    found = {}
    for target in programs():
        command = [sys.executable, __file__, "--watch", target, *(["--cpu"] if is_cpu else [])]
        runs = [json.loads(subprocess.check_output(command).splitlines()[-1]) for _ in range(repeats)]
        found[target] = min(runs, key=lambda run: sum(run.values()))
    unit = "CPU s" if is_cpu else "s"
    print("| part |", " | ".join(f"{target}, {unit}" for target in found), "|\n|---|---|---|---|")
    for part in (*PARTS, "anything else"):
        print(f"| {part} |", " | ".join(f"{run.get(part, 0.0):.3f}" for run in found.values()), "|")
    print("| together |", " | ".join(f"{sum(run.values()):.3f}" for run in found.values()), "|")


def main() -> None:
    """Measure everything side by side, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cpu", action="store_true", help="CPU seconds instead of the clock's")
    parser.add_argument("--watch", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.watch is not None:
        print(json.dumps(watch(programs()[options.watch]["refine"], options.cpu)))
        return
    compileall.compile_dir(next(iter(klover.__path__)), quiet=1)
    compare(options.repeats, options.cpu)
    print()
    explain(options.repeats, options.cpu)


if __name__ == "__main__":
    main()
