r"""Radon in houses, centred and not, through PyMC, NumPyro and Stan, beside nutpie and NumPyro's NUTS.

    python -m benchmarks radon [--front-ends pymc,numpyro,stan] [--peers nutpie,nuts] [--seeds 3] [--out radon.jsonl]

The regression of :mod:`benchmarks.reach` with 85 counties and 850 rows, d = 89, with its priors and its exact answer;
it is written as a user of each tool would. Every run is a process of its own, imports and compilation included, one
after the other, tools in turn; seconds are those of all its threads. Stan's C++ is compiled before (``--seeds 0`` says
how long that takes where it has not been). nutpie samples the PyMC model with its defaults and four chains.
"""

import argparse
import json
import pathlib
import resource
import sys
import tempfile
import time

import numpy as np

from benchmarks.processes import collect, run_one
from benchmarks.reach import PRIOR_SD, SIGMA_SCALE, TAU_SCALE, hierarchy, make_data

NUM_COUNTIES = 85
FORMS = ("centred", "noncentred")
STAN = """
data {{ int J; int N; array[N] int county; vector[N] floor; vector[N] y; }}
parameters {{ real mu; real<lower=0> tau; real<lower=0> sigma; real slope; vector[J] effect; }}
model {{
  mu ~ normal(0, {prior}); tau ~ cauchy(0, {tau}); sigma ~ normal(0, {sigma}); slope ~ normal(0, {prior});
  effect ~ normal({parameters});
  y ~ normal({level} + slope * floor, sigma);
  target += 2 * log2();
}}
"""
"""With the constants of the two priors that are cut in half, so that the evidence is that of the others."""


def pymc_model(is_centred):
    import pymc

    county, floor, y = make_data(NUM_COUNTIES)
    with pymc.Model() as model:
        mu, tau = pymc.Normal("mu", 0, PRIOR_SD), pymc.HalfCauchy("tau", TAU_SCALE)
        sigma, slope = pymc.HalfNormal("sigma", SIGMA_SCALE), pymc.Normal("slope", 0, PRIOR_SD)
        effect = pymc.Normal("effect", *((mu, tau) if is_centred else (0, 1)), shape=NUM_COUNTIES)
        level = effect if is_centred else mu + tau * effect
        pymc.Normal("y", level[county] + slope * floor, sigma, observed=y)
    return model


def numpyro_model(is_centred):
    import numpyro
    from numpyro import distributions as dist

    county, floor, y = make_data(NUM_COUNTIES)

    def model():
        mu = numpyro.sample("mu", dist.Normal(0, PRIOR_SD))
        tau = numpyro.sample("tau", dist.HalfCauchy(TAU_SCALE))
        sigma = numpyro.sample("sigma", dist.HalfNormal(SIGMA_SCALE))
        slope = numpyro.sample("slope", dist.Normal(0, PRIOR_SD))
        with numpyro.plate("counties", NUM_COUNTIES):
            effect = numpyro.sample("effect", dist.Normal(*((mu, tau) if is_centred else (0, 1))))
        level = effect if is_centred else mu + tau * effect
        numpyro.sample("y", dist.Normal(level[county] + slope * floor, sigma), obs=y)

    return model


def stan_target(is_centred):
    import klover

    county, floor, y = make_data(NUM_COUNTIES)
    parameters, level = ("mu, tau", "effect[county]") if is_centred else ("0, 1", "mu + tau * effect[county]")
    code = STAN.format(prior=PRIOR_SD, tau=TAU_SCALE, sigma=SIGMA_SCALE, parameters=parameters, level=level)
    return klover.from_stan(code, {"J": NUM_COUNTIES, "N": len(y), "county": county + 1, "floor": floor, "y": y})


def in_order(values):
    """Return draws of the variables as rows, in the order and on the scales of the exact answer."""
    columns = [np.asarray(values["mu"]), np.log(values["tau"]), np.log(values["sigma"]), np.asarray(values["slope"])]
    return np.column_stack([*columns, np.asarray(values["effect"])])


def solve_by_klover(front_end, is_centred, seed):
    import jax

    import klover

    if front_end == "pymc":
        target = klover.from_pymc(pymc_model(is_centred))
    elif front_end == "numpyro":
        target = klover.from_numpyro(numpyro_model(is_centred))
    else:
        target = stan_target(is_centred)
    fit = klover.refine(seed, target, progress=False)
    draws, weight = in_order(jax.vmap(target.position)(fit.draws.x)), np.exp(np.asarray(fit.draws.log_weight))
    mean = weight @ draws
    found = {"verdict": fit.verdict.status.name.lower(), "ess": float(fit.ess), "evaluations": fit.num_evaluations}
    evidence = {"log_evidence": float(fit.log_evidence), "log_evidence_se": float(fit.log_evidence_se)}
    return found | evidence, mean, np.sqrt(weight @ (draws - mean) ** 2)


def solve_by_chains(peer, is_centred, seed):
    if peer == "nutpie":
        import nutpie  # pyright: ignore[reportMissingImports]

        compiled = nutpie.compile_pymc_model(pymc_model(is_centred))
        trace = nutpie.sample(compiled, chains=4, seed=seed, progress_bar=False, save_warmup=True)
        values = {name: trace.posterior[name].values for name in ("mu", "tau", "sigma", "slope", "effect")}
        num_gradients = sum(int(trace[part]["n_steps"].sum()) for part in ("sample_stats", "warmup_sample_stats"))
        num_divergent = int(trace.sample_stats["diverging"].sum())
    else:
        import jax
        from numpyro.infer import MCMC, NUTS

        chains = MCMC(NUTS(numpyro_model(is_centred)), num_warmup=1000, num_samples=1000, num_chains=4,
                      chain_method="sequential", progress_bar=False)  # fmt: skip
        chains.run(jax.random.key(seed), extra_fields=("num_steps", "diverging"))
        values, fields = chains.get_samples(group_by_chain=True), chains.get_extra_fields()
        num_gradients, num_divergent = int(fields["num_steps"].sum()), int(fields["diverging"].sum())
    from arviz import ess, rhat

    draws = np.stack([in_order({name: each[chain] for name, each in values.items()}) for chain in range(4)])
    # ArviZ's own words for a variable of several dimensions.
    smallest = float(np.asarray(ess({"x": draws})["x"]).min())
    worst = float(np.asarray(rhat({"x": draws})["x"]).max())
    complaint = f"{num_divergent} divergent" if num_divergent else "" if worst < 1.01 else f"R-hat {worst:.3f}"
    flat = draws.reshape(-1, draws.shape[-1])
    return (
        {"verdict": complaint or "converged", "ess": smallest, "evaluations": num_gradients},
        flat.mean(0),
        flat.std(0),
    )


def run(tool, form, seed, is_single):
    """Solve once, and print what was found and what it took as a line of JSON."""
    started = time.perf_counter()
    import jax

    jax.config.update("jax_enable_x64", not is_single)
    by = solve_by_chains if tool in ("nutpie", "nuts") else solve_by_klover
    found, mean, sd = by(tool, form == "centred", seed)
    wall, used = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
    truth = hierarchy(NUM_COUNTIES, form == "centred")
    found |= {"worst_mean": float(np.max(np.abs(mean - truth.mean) / truth.sd))}
    found |= {"worst_sd": float(np.max(np.abs(sd / truth.sd - 1)))}
    if "log_evidence" in found:
        found["log_evidence_error"] = found.pop("log_evidence") - truth.log_evidence
    seconds = {"cpu_seconds": round(used.ru_utime + used.ru_stime, 2), "wall_seconds": round(wall, 2)}
    print(json.dumps({"tool": tool, "form": form, "seed": seed} | seconds | found))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--front-ends", default="pymc,numpyro,stan")
    parser.add_argument("--peers", default="nutpie,nuts")
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--single", action="store_true", help="JAX's own precision, float32")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        run(options.one[0], options.one[1], int(options.one[2]), options.single)
        return
    forms = options.forms.split(",")
    if "stan" in options.front_ends:
        for form in forms:
            started = time.perf_counter()
            stan_target(form == "centred")
            print(f"Stan's program, {form}: {time.perf_counter() - started:.1f} s", file=sys.stderr)
    tools = [name for name in f"{options.front_ends},{options.peers}".split(",") if name]
    plan = [(tool, form, str(seed)) for seed in range(options.seeds) for form in forms for tool in tools]
    extra = ("--single",) if options.single else ()
    with tempfile.TemporaryDirectory() as folder:
        path = options.out or pathlib.Path(folder, "radon.jsonl")
        results = collect(path, plan, lambda part: run_one("radon", "--one", *part, *extra))
    for result in sorted(results, key=lambda each: (each["form"], each["tool"], each["seed"])):
        print("  ".join(f"{name} {value:.3g}" if isinstance(value, float) else str(value)
                        for name, value in result.items()))  # fmt: skip


if __name__ == "__main__":
    main()
