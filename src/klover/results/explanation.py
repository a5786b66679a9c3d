"""What a verdict means for a fit, in words for a statistician and with the fit's own numbers, and what to try."""

import dataclasses
import textwrap
from typing import Any

import numpy as np

from klover.importance.psis import reliable_k
from klover.results.fit import Fit
from klover.verdict.judge import FEWEST_EFFECTIVE_DRAWS
from klover.verdict.status import Status

WIDTH = 100

MORE_WORK = "Give more work: budget= in Python; on the command line a larger --budget together with --resume."
START = (
    "Start from draws of another sampler: start= in Python, --start draws.nc on the command line. A short NUTS run "
    "is enough; klover corrects it."
)
COORDINATES = (
    "Write the model in better coordinates: non-centred where groups share a scale, covariates standardised, "
    "positive quantities by their logarithm."
)
BOX = "Say roughly where the posterior lies: klover.Target(..., box=(lower, upper)). Searches then begin all over it."
CHECK = "Run target.check(key): it evaluates the density and its gradient near the example, and says what is wrong."
SEED = "Fit again with another seed, and compare."

TEXTS: dict[Status, tuple[str, tuple[str, ...]]] = {
    Status.TRUSTED: (
        "The proposal was judged on {num_draws} fresh draws that it was not fitted to. Their weights have a light "
        "tail (k̂ = {pareto_k:.2f}, and up to {limit:.2f} will do), so weighted means, intervals and the evidence "
        "obey the usual laws, and their standard errors can be taken at their word. Where there are gradients to "
        "climb by, searches from far-flung points found no mode that the proposal misses. That is evidence, not a "
        "proof: a mode whose basin no search began in goes unseen.",
        (
            "Use the table as it is; mcse is the Monte Carlo error of each mean.",
            "For more digits draw more: fit.importance(key, {four_times}) halves the errors.",
            "If you expect modes far from each other, say where they may lie (box=), and fit with a second seed.",
        ),
    ),
    Status.NO_SUPPORT: (
        "The log density was finite at none of the {num_draws} draws ({num_nan} were NaN, {num_infinite} were +inf). "
        "There is nothing to average, and no number of this fit means anything.",
        (
            CHECK,
            "Choose an example inside the support, and look for a logarithm or a square root of a negative number.",
        ),
    ),
    Status.NOT_A_NUMBER: (
        "The log density was NaN at {num_nan} and +inf at {num_infinite} of {num_draws} draws. Such draws get weight "
        "zero, as if they lay outside the support. If they do not, the part of the posterior where they fell is "
        "missing from every mean, and the evidence is too small; nothing in the weights would show it.",
        (
            CHECK,
            "Return -inf where the density is zero, and a number everywhere else; take log-sum-exp and log1p instead "
            "of logarithms of small numbers.",
            "Use float64: jax.config.update('jax_enable_x64', True).",
        ),
    ),
    Status.HEAVY_WEIGHTS: (
        "Somewhere the proposal is so much lower than the posterior that a few draws carry too much of the weight. "
        "The tail of the weights has index k̂ = {pareto_k:.2f}; above {limit:.2f}, means converge so slowly in the "
        "number of draws that {num_draws} say little, and the standard errors, which are made of the same weights, "
        "are too small. The mixture of {components} in {dimensions} does not have the posterior's "
        "shape.",
        (
            COORDINATES,
            MORE_WORK,
            START,
            "Use heavier tails (family='student') and full covariances, if you have chosen others.",
            "Check the priors: an improper posterior looks like this too.",
        ),
    ),
    Status.FEW_EFFECTIVE_DRAWS: (
        "The weights are well-behaved, but the proposal is far from the posterior: only {ess:.0f} of {num_draws} "
        "draws count ({ess_share:.2%}), fewer than the {minimum} that a mean and its error need.",
        (
            "Draw more: at this rate fit.importance(key, {needed}) holds about {wanted} effective draws.",
            MORE_WORK,
            COORDINATES,
        ),
    ),
    Status.UNCOVERED_MODE: (
        "The weights look good (k̂ = {pareto_k:.2f}, {ess:.0f} effective draws), but they know only what was "
        "visited. A search climbed to a mode where the proposal has next to nothing: one draw there would outweigh "
        "all {num_draws} together. The means are those of a part of the posterior, and the evidence is too small.",
        (MORE_WORK, BOX, "Start from draws that hold the mode (start=), or from a wide mixture (klover.diffuse)."),
    ),
    Status.DRIFTING_PARTICLES: (
        "Particles that began as draws of the answer were moved by Markov steps that leave the posterior unchanged. "
        "Were the answer right, they would stay where they are on average; they went on to places where the proposal "
        "of {components} is all but absent. The {ess:.0f} effective draws stand for a part of the "
        "posterior.",
        (MORE_WORK, COORDINATES, BOX, START),
    ),
    Status.UNSTABLE_EVIDENCE: (
        "The log evidence of the {num_draws} last draws, {log_evidence:.3f} ± {log_evidence_se:.3f}, and that of the "
        "round before differ by more than their errors allow. Rare draws with large weights do this: some of them "
        "came the one time, and not the other.",
        (
            SEED,
            "Draw more: fit.importance(key, {four_times}).",
            "Check the priors: an improper posterior looks like this too.",
        ),
    ),
    Status.IMPROPER: (
        "The proposal followed the posterior outwards without coming to an end. A posterior whose mass does not end "
        "has no evidence, no means and no intervals; whatever the table says depends on when the work was stopped.",
        (
            "Give the coordinate that the verdict names a proper prior. A flat prior is proper only if the data "
            "bound it: think of groups without observations, and of separated classes in a logistic regression.",
            "If the prior is proper and meant to be as wide as that, rescale the parameter.",
        ),
    ),
    Status.UNFINISHED: (
        "The work was stopped after {spent}, before the engine itself was "
        "content. The weights of what there is are good (k̂ = {pareto_k:.2f}, {ess:.0f} effective draws of "
        "{num_draws}), so the means are right for all that was found; the looks for what was not found are missing.",
        (MORE_WORK, "In Python: refine(..., checkpoint=PATH) goes on from the file where it stopped."),
    ),
    Status.COARSE_NUMBERS: (
        "A number of single precision has seven digits. Where a parameter is large and its uncertainty small, or the "
        "log density is huge, the digits that matter are lost, and the {num_draws} draws describe the grid of the "
        "numbers rather than the posterior. Weights do not show it: they are right for the density as it was computed.",
        (
            "Use float64: jax.config.update('jax_enable_x64', True), before the target is made.",
            "Measure the parameter from near its value, in units of its uncertainty.",
        ),
    ),
    Status.TARGET_RAISED: (
        "The log density raised an error at some points. They get weight zero, as if they lay outside the support; "
        "if they do not, a part of the posterior is missing from every mean, and the evidence is too small.",
        (
            "Call the density where it failed, and let it return -inf where it cannot be computed.",
            "Bound the parameters to where the density is defined, by a transformation.",
        ),
    ),
    Status.PARTICLES: (
        "No mixture of this size gives usable importance weights in {dimensions} (k̂ = {pareto_k:.2f}). So "
        "{num_draws} particles were carried from a wide distribution to the posterior by tempering and Markov steps, "
        "in {num_islands} islands that know nothing of each other. They agree on the evidence (their log evidences "
        "have a standard deviation of {spread:.2f}), and they have stopped moving. Errors come from the scatter of "
        "the islands.",
        (
            "Use the table as it is; compare a few means with a NUTS run if much depends on them.",
            "Draws of the mixture (fit.importance) are not to be used here; fit.draws holds the particles.",
        ),
    ),
    Status.PARTICLES_MISS_MODE: (
        "No mixture of this size gives usable importance weights in {dimensions} (k̂ = {pareto_k:.2f}). The "
        "{num_draws} particles that took over agree with each other, but they began in one place: a search has climbed "
        "to a mode with a part of the posterior that none of them is on, and they cannot tell how large that part is.",
        (START, BOX, "Use the particles as draws of the posterior around their own mode at most."),
    ),
    Status.UNCONVERGED_PARTICLES: (
        "No mixture of this size gives usable importance weights in {dimensions} (k̂ = {pareto_k:.2f}), and the "
        "particles that took over have not settled: the log evidences of {num_islands} islands scatter with a "
        "standard deviation of {spread:.2f} (below 1 is wanted), and their mean log density still moved by "
        "{drift:.1f} standard errors (below 3 is wanted). They lie near the posterior, but their spread and the "
        "evidence are not to be used.",
        (MORE_WORK, COORDINATES, START, "Use the particles for predictions at most, checked on data held out."),
    ),
}
"""What each way to end means, and what to try; numbers of the fit go into the braces."""


@dataclasses.dataclass(frozen=True)
class Explanation:
    """A verdict in words: the one line, what it means, the fit's numbers, and what to try."""

    verdict: str
    meaning: str
    numbers: tuple[str, ...]
    advice: tuple[str, ...]

    def __str__(self) -> str:
        """Paragraphs for a terminal."""
        wrap = textwrap.TextWrapper(WIDTH, break_long_words=False, break_on_hyphens=False)
        listed = textwrap.TextWrapper(
            WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
        lines = [wrap.fill(self.verdict), "", wrap.fill(self.meaning), "", "The numbers of this fit:"]
        lines += [listed.fill(line) for line in self.numbers]
        return "\n".join([*lines, "", "What to do:", *(listed.fill(line) for line in self.advice)])


def explain(fit: Fit) -> Explanation:
    """Explain a fit's verdict."""
    verdict, facts = fit.verdict, _facts(fit)
    meaning, advice = TEXTS[verdict.status]
    return Explanation(
        f"{'Trusted' if verdict.trusted else 'Refused'}: {verdict.reason}",
        meaning.format(**facts),
        _numbers(fit, facts),
        tuple(line.format(**facts) for line in advice),
    )


def _facts(fit: Fit) -> dict[str, Any]:
    draws = fit.draws
    share = fit.ess / draws.num_draws
    wanted = 4 * FEWEST_EFFECTIVE_DRAWS
    spent = [_count(len(next(iter(fit.history.values()), ())), "round")]
    spent += [_count(fit.num_evaluations, "evaluation")] if fit.num_evaluations is not None else []
    return {
        "num_draws": draws.num_draws,
        "num_nan": int(draws.num_nan),
        "num_infinite": int(draws.num_positive_infinite),
        "pareto_k": fit.pareto_k,
        "limit": reliable_k(draws.num_draws),
        "ess": fit.ess,
        "ess_share": share,
        "minimum": FEWEST_EFFECTIVE_DRAWS,
        "wanted": wanted,
        "needed": _round(wanted / max(share, 1e-9)),
        "four_times": _round(4 * draws.num_draws),
        "log_evidence": fit.log_evidence,
        "log_evidence_se": fit.log_evidence_se,
        "components": _count(int(fit.mixture.num_components), "component"),
        "dimensions": _count(fit.mixture.dim, "dimension"),
        "spent": " and ".join(spent),
        "num_islands": getattr(draws, "num_islands", 0),
        "spread": getattr(draws, "spread", np.nan),
        "drift": float(getattr(draws, "drift", np.nan)),
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
        lines += [
            f"k̂ = {{pareto_k:.2f}}, with a limit of {{limit:.2f}}: {_tail_in_words(fit.pareto_k)}.",
            _distance_in_words(fit),
        ]
    caveat = "" if fit.verdict.trusted else ", which is not to be reported as it stands"
    lines.append(f"log evidence {{log_evidence:.3f}} ± {{log_evidence_se:.3f}}{caveat}.")
    lines.append("{components} in {dimensions}; {spent}.")
    model_info = fit.target.model_info
    if model_info is not None and model_info.improper:
        lines.append(f"The prior of {', '.join(model_info.improper)} is improper, so the evidence means nothing.")
    return (*(line.format(**facts) for line in lines), _least_certain(fit))


def _distance_in_words(fit: Fit) -> str:
    required = float(fit.draws.required_draws)
    distance = f"KL(p‖q) is about {float(fit.draws.forward_kl):.2f}, as far as these draws can tell"
    if required < FEWEST_EFFECTIVE_DRAWS:
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
