"""What a verdict means for a fit, in words for a statistician and with the fit's own numbers, and what to try."""

import dataclasses
import functools
import textwrap
from typing import Any

import numpy as np

from klover.base.checks import check_instance
from klover.results.fit import Fit
from klover.verdict.judge import figures_of
from klover.verdict.status import NON_CENTRE, NUTS, SHAPELESS

WIDTH = 100
NUTS_IMPORTS = ("import jax", "from numpyro.infer import MCMC, NUTS")
NUTS_OF_MODEL = ("nuts = NUTS(model)",)
NUTS_OF_TARGET = (
    "from jax.flatten_util import ravel_pytree",
    "nuts = NUTS(potential_fn=lambda x: -fit.target.log_prob(ravel_pytree(x)[0]))",
)
NUTS_CHAINS = 'mcmc = MCMC(nuts, num_warmup=1000, num_samples=1000, num_chains=4, chain_method="vectorized")'
NUTS_STARTS = "init_params=fit.draws.initial_positions(0, 4)"
NUTS_RUN = (
    (NUTS_CHAINS, f"mcmc.run(jax.random.key(1), {NUTS_STARTS})"),
    (NUTS_CHAINS, f"mcmc.run(jax.random.key(1), *data, {NUTS_STARTS})  # model and data: as in from_numpyro"),
)
"""Of a target, and of a model."""


@dataclasses.dataclass(frozen=True)
class Explanation:
    """A verdict in words: the one line, what it means, the fit's numbers, and what to try."""

    verdict: str
    meaning: str
    numbers: tuple[str, ...]
    advice: tuple[str, ...]
    code: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Paragraphs for a terminal."""
        fill = functools.partial(textwrap.fill, width=WIDTH, break_long_words=False, break_on_hyphens=False)
        listed = functools.partial(fill, initial_indent="- ", subsequent_indent="  ")
        lines = [fill(self.verdict), "", fill(self.meaning), "", "The numbers of this fit:"]
        lines += [*map(listed, self.numbers), "", "What to do:", *map(listed, self.advice)]
        return "\n".join([*lines, "", "NUTS from these starts:", "", *self.code] if self.code else lines)


def explain(fit: Fit) -> Explanation:
    """Explain a fit's verdict."""
    check_instance("fit", fit, Fit)
    verdict, facts = fit.verdict, _facts(fit)
    lead = None if verdict.status not in SHAPELESS else getattr(getattr(fit.mixture, "warp", None), "lead", None)
    coordinates = () if lead is None else (NON_CENTRE.format(lead=fit.target.coordinate_name(lead)),)
    return Explanation(
        f"{'Trusted' if verdict.trusted else 'Refused'}: {verdict.reason}",
        verdict.status.meaning.format(**facts),
        _numbers(fit, facts),
        (*coordinates, *(line.format(**facts) for line in verdict.status.advice)),
        _nuts(fit) if NUTS in verdict.remedy else (),
    )


def _nuts(fit: Fit) -> tuple[str, ...]:
    """Return the lines that run NUTS from draws of a fit: of a NumPyro model, or of any density that JAX can trace."""
    is_numpyro = fit.target.model_info is not None and fit.target.model_info.name == "numpyro"
    return (*NUTS_IMPORTS, *(NUTS_OF_MODEL if is_numpyro else NUTS_OF_TARGET), *NUTS_RUN[is_numpyro])


def _facts(fit: Fit) -> dict[str, Any]:
    draws = fit.draws
    share = fit.ess / draws.num_draws
    figures = figures_of(draws)
    wanted = 4 * figures["minimum"]
    spent = [_count(len(next(iter(fit.history.values()), ())), "round")]
    spent += [_count(fit.num_evaluations, "evaluation")] if fit.num_evaluations is not None else []
    return figures | {
        "ess_share": share,
        "wanted": wanted,
        "needed": _round(wanted / max(share, 1e-9)),
        "four_times": _round(4 * draws.num_draws),
        "log_evidence": fit.log_evidence,
        "log_evidence_se": fit.log_evidence_se,
        "components": _count(int(fit.mixture.num_components), "component"),
        "dimensions": _count(fit.mixture.dim, "dimension"),
        "spent": " and ".join(spent),
    }


def _round(number: float | int) -> str:
    """Round up to two digits, and write as Python reads it."""
    unit = 10 ** max(int(np.log10(number)) - 1, 0)
    return f"{int(np.ceil(number / unit)) * unit:_}"


def _numbers(fit: Fit, facts: dict[str, Any]) -> tuple[str, ...]:
    if facts["ess"] == 0:
        return ("{num_draws} draws, none of them in the support.".format(**facts),)
    lines = ["{ess:.0f} effective draws of {num_draws} ({ess_share:.1%})."]
    if fit.kind == "importance":
        lines.append(f"k̂ = {{pareto_k:.2f}}, with a limit of {{limit:.2f}}: {_tail_in_words(fit.pareto_k)}.")
        lines.append(_distance_in_words(fit, facts["minimum"]))
    caveat = "" if fit.verdict.trusted else ", which is not to be reported as it stands"
    lines.append(f"log evidence {{log_evidence:.3f}} ± {{log_evidence_se:.3f}}{caveat}.")
    lines.append("{components} in {dimensions}; {spent}.")
    model_info = fit.target.model_info
    if model_info is not None and model_info.improper:
        lines.append(f"The prior of {', '.join(model_info.improper)} is improper, so the evidence means nothing.")
    return (*(line.format(**facts) for line in lines), _least_certain(fit))


def _distance_in_words(fit: Fit, minimum: int) -> str:
    required = float(fit.draws.required_draws)
    distance = f"KL(p‖q) is about {float(fit.draws.forward_kl):.2f}, as far as these draws can tell"
    if required < minimum:
        return f"{distance}."
    return f"{distance}; at that distance means ask for {_round(required)} draws at the very least."


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _tail_in_words(pareto_k: float) -> str:
    if not pareto_k < 1:
        return "not even the mean of the weights exists"
    if pareto_k >= 0.7:
        return "the weights have so heavy a tail that means all but fail to converge"
    if pareto_k >= 0.5:
        return "the variance of the weights is infinite, but smoothed means converge"
    return "the weights have a finite variance"


def _least_certain(fit: Fit) -> str:
    """Name the mean with the largest error in units of its standard deviation."""
    summary = fit.summary()
    sd, error = summary.columns["sd"], summary.columns["mcse"]
    relative = np.divide(error, sd, out=np.zeros_like(error), where=sd > 0)
    worst = int(np.argmax(relative))
    return (
        f"The least certain mean is that of {summary.names[worst]}: its error is {relative[worst]:.1%} of its standard "
        "deviation."
    )
