"""Every way a fit can end, in words: the reason and the remedy in a line each, what it means, and what to try.

Braces hold the fit's own numbers; the verdict fills in the first two texts, ``klover.explain`` the others.
"""

import enum

MORE_WORK = "Give more work: budget= in Python; on the command line a larger --budget together with --journal."
START = (
    "Start from draws of another sampler: start= in Python, --start draws.nc on the command line. A short NUTS run "
    "is enough; klover corrects it."
)
COORDINATES = (
    "Write the model in better coordinates: non-centred where groups share a scale, covariates standardised, "
    "positive quantities by their logarithm."
)
NON_CENTRE = (
    "The means or widths of other parameters depend on {lead}: non-centre them, that is, compute them from standard "
    "Normal ones (theta = mu + exp(log_tau) * eta, with eta in place of theta, where {lead} is such a log_tau)."
)
"""Before the remedy, where such a parameter was seen."""
NUTS = (
    "NUTS may do better, from these starts: init_params=fit.draws.initial_positions(0, 4); klover.explain(fit) has the "
    "whole call."
)
"""After the remedy, where there are gradients."""
BOX = "Say roughly where the posterior lies: klover.Target(..., box=(lower, upper)). Searches then begin all over it."
CHECK = "Run target.check(key): it evaluates the density and its gradient near the example, and says what is wrong."
SEED = "Fit again with another seed, and compare."


class Status(enum.Enum):
    """How far an answer can be believed; each member holds its four texts."""

    TRUSTED = (
        "k̂ = {pareto_k:.2f} and {ess:.0f} effective draws of {num_draws}: the proposal covers the target.",
        "",
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
    )
    NO_SUPPORT = (
        "the log density was finite at none of the {num_draws} draws ({num_nan} NaN, {num_infinite} +inf).",
        "Run target.check(key) to see what the density returns, and choose an example inside the support.",
        "The log density was finite at none of the {num_draws} draws ({num_nan} were NaN, {num_infinite} were +inf). "
        "There is nothing to average, and no number of this fit means anything.",
        (
            CHECK,
            "Choose an example inside the support, and look for a logarithm or a square root of a negative number.",
        ),
    )
    NOT_A_NUMBER = (
        "the log density was NaN at {num_nan} and +inf at {num_infinite} of {num_draws} draws; they were treated as "
        "outside the support, which may hide a part of the posterior.",
        "Make the density return -inf outside its support and a number inside; float64 often cures overflow.",
        "The log density was NaN at {num_nan} and +inf at {num_infinite} of {num_draws} draws. Such draws get weight "
        "zero, as if they lay outside the support. If they do not, the part of the posterior where they fell is "
        "missing from every mean, and the evidence is too small; nothing in the weights would show it.",
        (
            CHECK,
            "Return -inf where the density is zero, and a number everywhere else; take log-sum-exp and log1p instead "
            "of logarithms of small numbers.",
            "Use float64: jax.config.update('jax_enable_x64', True).",
        ),
    )
    HEAVY_WEIGHTS = (
        "k̂ = {pareto_k:.2f} is above {limit:.2f}, the limit for {num_draws} draws: the weights are too heavy-tailed "
        "for expectations and the evidence to settle.",
        "Use heavier tails (family='student'), more components or draws, a full covariance, a better first "
        "approximation, or other coordinates (scaled, non-centred). An improper posterior looks like this too: check "
        "the priors.",
        "Somewhere the proposal is so much lower than the posterior that a few draws carry too much of the weight. "
        "The tail of the weights has index k̂ = {pareto_k:.2f}; above {limit:.2f}, means converge so slowly in the "
        "number of draws that {num_draws} say little, and the standard errors, which are made of the same weights, "
        "are too small. The mixture of {components} in {dimensions} does not have the posterior's shape.",
        (
            COORDINATES,
            MORE_WORK,
            START,
            "Use heavier tails (family='student') and full covariances, if you have chosen others.",
            "Check the priors: an improper posterior looks like this too.",
        ),
    )
    FEW_EFFECTIVE_DRAWS = (
        "only {ess:.0f} of {num_draws} draws are effective; {minimum} are needed.",
        "Draw more with fit.importance(key, num_draws), or improve the proposal: more components, a full covariance.",
        "The weights are well-behaved, but the proposal is far from the posterior: only {ess:.0f} of {num_draws} "
        "draws count ({ess_share:.2%}), fewer than the {minimum} that a mean and its error need.",
        (
            "Draw more: at this rate fit.importance(key, {needed}) holds about {wanted} effective draws.",
            MORE_WORK,
            COORDINATES,
        ),
    )
    POOR_COVER = (
        "only {ess_share:.2%} of the draws are effective ({ess:.0f} of {num_draws}): of what so poor a proposal has "
        "not visited its weights say nothing.",
        "Give more work (budget, more components), or use other coordinates (scaled, non-centred).",
        "{ess:.0f} draws of {num_draws} count ({ess_share:.2%}). That would do for means and their errors, if these "
        "draws were from all of the posterior. But where so few draws count the proposal lies mostly beside the "
        "posterior, and a neck or a tail that it does not reach leaves no trace in k̂ and in the errors.",
        (COORDINATES, MORE_WORK, START),
    )
    DOMINATED = (
        "one draw carries {top:.1%} of the raw weight, and {share:.1%} of the draws are effective where the last round "
        "had {before:.1%}: the proposal is too low somewhere.",
        "Give more work (budget, more components), or a box; fit again with another seed.",
        "One of the {num_draws} fresh draws fell where the proposal is far too low. Smoothing has cut its weight, so "
        "that k̂ = {pareto_k:.2f} looks good, but that one draw stands for a part of the posterior that the others do "
        "not know: a narrow mode, or a scale that is missing. Means and evidence may be those of a part.",
        (MORE_WORK, BOX, SEED),
    )
    NOISY = (
        "the log density gave two values at one point, {difference:.3g} apart: it is random, or remembers.",
        "Make the density a function of its argument alone: fix the seed of what is simulated, keep no state.",
        "Some points were evaluated twice, and the log density differed. Weights then reward lucky values: the "
        "evidence comes out too large, and the posterior too wide.",
        (
            "Fix the random numbers inside the density, so that it is the same function at every call.",
            "Average more simulations; a pseudo-marginal sampler is made for such densities.",
        ),
    )
    UNCOVERED_MODE = (
        "the target has a mode, {mode}, that the proposal does not cover: one draw there would outweigh all "
        "{num_draws}.",
        "Allow more components (max_components), say where the posterior may lie (box=), or start from draws near "
        "that mode or from a diffuse mixture (start=klover.diffuse(lower, upper)).",
        "The weights look good (k̂ = {pareto_k:.2f}, {ess:.0f} effective draws), but they know only what was visited."
        " A search climbed to a mode where the proposal has next to nothing: one draw there would outweigh all "
        "{num_draws} together. The means are those of a part of the posterior, and the evidence is too small.",
        (MORE_WORK, BOX, "Start from draws that hold the mode (start=), or from a wide mixture (klover.diffuse)."),
    )
    HIDDEN_MODES = (
        "several modes are known, and the search would have found one of them with a probability of {recall:.0%} only: "
        "others like it may be hidden.",
        "Say where the posterior may lie (box=), begin with draws on all modes (start=), or search harder "
        "(search='thorough').",
        "The weights look good (k̂ = {pareto_k:.2f}, {ess:.0f} effective draws), and a search found nothing more. But "
        "the search was tested on the modes that are known: each was left out in turn, and one of them would most "
        "likely not have been found. It was found by luck, and others may not have been.",
        (BOX, START, "Search harder: refine(..., search='thorough').", SEED),
    )
    UNEVEN_MODES = (
        "{num} modes are known, the narrowest {ratio:.2f} times as wide as the widest, and a search in so many "
        "dimensions finds further ones from {scale:.2f} on only: others may be hidden.",
        "Say where the posterior may lie (box=), begin with draws on all modes (start=), or search harder "
        "(search='thorough').",
        "The weights look good (k̂ = {pareto_k:.2f}, {ess:.0f} effective draws), and a search found nothing more. But "
        "the modes that are known differ in width by more than the search can bridge: beside a wide one it would most "
        "likely have missed a narrow one. About one in three such answers was found to lack a mode.",
        (BOX, START, "Search harder: refine(..., search='thorough').", SEED),
    )
    DRIFTING_PARTICLES = (
        "particles that began as draws of the answer still move to where the proposal is all but absent ({drift:.1f} "
        "standard errors): a part of the posterior is not covered.",
        "Give more evaluations (budget), a box (klover.Target(..., box=...)), draws of another sampler (start), or "
        "write the model in other coordinates (non-centred, scaled).",
        "Particles that began as draws of the answer were moved by Markov steps that leave the posterior unchanged. "
        "Were the answer right, they would stay where they are on average; they went on to places where the proposal "
        "of {components} is all but absent. The {ess:.0f} effective draws stand for a part of the posterior.",
        (MORE_WORK, COORDINATES, BOX, START),
    )
    UNSTABLE_EVIDENCE = (
        "the log evidence of the last draws, {log_evidence:.3f}, differs by {difference:.3f} from that of the rounds "
        "before them, which is {ratio:.1f} standard errors.",
        "Run again with another key and with more draws; heavy tails or an improper posterior look like this.",
        "The log evidence of the {num_draws} last draws, {log_evidence:.3f} ± {log_evidence_se:.3f}, and that of the "
        "round before differ by more than their errors allow. Rare draws with large weights do this: some of them "
        "came the one time, and not the other.",
        (
            SEED,
            "Draw more: fit.importance(key, {four_times}).",
            "Check the priors: an improper posterior looks like this too.",
        ),
    )
    IMPROPER = (
        "the proposal spread to a width of {width:.1g} in {name}, and there is no end of it: the posterior looks "
        "improper, so that there is no evidence and there are no moments.",
        "Give {name} a proper prior; if it is proper and as wide as that, rescale it.",
        "The proposal followed the posterior outwards without coming to an end. A posterior whose mass does not end "
        "has no evidence, no means and no intervals; whatever the table says depends on when the work was stopped.",
        (
            "Give the coordinate that the verdict names a proper prior. A flat prior is proper only if the data bound"
            " it: think of groups without observations, and of separated classes in a logistic regression.",
            "If the prior is proper and meant to be as wide as that, rescale the parameter.",
        ),
    )
    UNFINISHED = (
        "the refinement was stopped ({cause}) before its own criteria were met; k̂ = {pareto_k:.2f}, {ess:.0f} "
        "effective draws of {num_draws}.",
        "Give a larger budget (budget=, evaluations or a datetime.timedelta), with the same journal= if there was one.",
        "The work was stopped after {spent}, before the engine itself was content. The weights of what there is are "
        "good (k̂ = {pareto_k:.2f}, {ess:.0f} effective draws of {num_draws}), so the means are right for all that "
        "was found; the looks for what was not found are missing.",
        (MORE_WORK, "In Python: refine(..., journal=PATH) evaluates nothing twice that is in the file."),
    )
    COARSE_NUMBERS = (
        "numbers of the precision {precision} are too coarse for {what}.",
        "Use double precision (jax.config.update('jax_enable_x64', True) before the target is made), or measure the "
        "parameter from near its value, in units of its uncertainty.",
        "A number of single precision has seven digits. Where a parameter is large and its uncertainty small, or the "
        "log density is huge, the digits that matter are lost, and the {num_draws} draws describe the grid of the "
        "numbers rather than the posterior. Weights do not show it: they are right for the density as it was "
        "computed.",
        (
            "Use float64: jax.config.update('jax_enable_x64', True), before the target is made.",
            "Measure the parameter from near its value, in units of its uncertainty.",
        ),
    )
    TARGET_RAISED = (
        "the log density raised an error at {num_raised} points; they were treated as outside the support, which may "
        "hide a part of the posterior.",
        "Make the density return -inf where it cannot be computed.",
        "The log density raised an error at some points. They get weight zero, as if they lay outside the support; if"
        " they do not, a part of the posterior is missing from every mean, and the evidence is too small.",
        (
            "Call the density where it failed, and let it return -inf where it cannot be computed.",
            "Bound the parameters to where the density is defined, by a transformation.",
        ),
    )
    PARTICLES = (
        "importance sampling cannot work here (k̂ = {pareto_k:.2f}), so {num_draws} particles were carried to the "
        "target; {num_islands} independent islands agree on the evidence (standard deviation of its logarithm "
        "{spread:.2f}), the particles no longer drift, and those from narrow and from wide starts have ended alike.",
        "",
        "No mixture of this size gives usable importance weights in {dimensions} (k̂ = {pareto_k:.2f}). So "
        "{num_draws} particles were carried from a wide distribution to the posterior by tempering and Markov steps, "
        "in {num_islands} islands that know nothing of each other. They agree on the evidence (their log evidences "
        "have a standard deviation of {spread:.2f}), they have stopped moving, and nothing tells those that began "
        "narrow from those that began wide. Errors come from the scatter of the islands.",
        (
            "Use the table as it is; compare a few means with a NUTS run if much depends on them.",
            "Draws of the mixture (fit.importance) are not to be used here; fit.draws holds the particles.",
        ),
    )
    PARTICLES_MISS_MODE = (
        "importance sampling cannot work here (k̂ = {pareto_k:.2f}), so {num_draws} particles were carried to the "
        "target; the target has a mode, {mode}, that none of them is on.",
        "Begin with draws on all modes (start), or run another sampler from there: how much of the posterior each "
        "mode has is not known.",
        "No mixture of this size gives usable importance weights in {dimensions} (k̂ = {pareto_k:.2f}). The "
        "{num_draws} particles that took over agree with each other, but they began in one place: a search has "
        "climbed to a mode with a part of the posterior that none of them is on, and they cannot tell how large that "
        "part is.",
        (START, BOX, "Use the particles as draws of the posterior around their own mode at most."),
    )
    UNCONVERGED_PARTICLES = (
        "importance sampling cannot work here (k̂ = {pareto_k:.2f}), so {num_draws} particles were carried to the "
        "target, but they have not converged: the log evidences of {num_islands} independent islands scatter with a "
        "standard deviation of {spread:.2f}, the mean log density moved by {drift:.1f} standard errors in the last "
        "sweeps, narrow and wide starts would by chance differ as they do with probability {agreement:.1g}, and "
        "{ess:.0f} draws are effective.",
        "Use the particles for predictions at most, and compare them with another sampler; the evidence is a lower "
        "bound on average.",
        "No mixture of this size gives usable importance weights in {dimensions} (k̂ = {pareto_k:.2f}), and the "
        "particles that took over have not settled: the log evidences of {num_islands} islands scatter with a "
        "standard deviation of {spread:.2f} (below {largest_spread:.2g} is wanted), their mean log density still moved "
        "by {drift:.1f} standard errors (below {largest_drift:.2g} is wanted), and the chance that islands which have "
        "forgotten whether they began narrow or wide differ as they do is {agreement:.1g} ({least_agreement:.2g} and "
        "more is wanted). They lie near the posterior, but their spread and the evidence are not to be used.",
        (MORE_WORK, COORDINATES, START, "Use the particles for predictions at most, checked on data held out."),
    )

    @property
    def reason(self) -> str:
        """Why the answer is trusted or refused."""
        return self.value[0]

    @property
    def remedy(self) -> str:
        """What to do about it; empty where nothing is to be done."""
        return self.value[1]

    @property
    def meaning(self) -> str:
        """What that means for the numbers, for a statistician."""
        return self.value[2]

    @property
    def advice(self) -> tuple[str, ...]:
        """What to try, the best first."""
        return self.value[3]


SHAPELESS = (
    Status.HEAVY_WEIGHTS,
    Status.FEW_EFFECTIVE_DRAWS,
    Status.POOR_COVER,
    Status.DRIFTING_PARTICLES,
    Status.UNFINISHED,
    Status.UNCONVERGED_PARTICLES,
)
"""What says that the posterior's shape was not found: other coordinates, or another sampler, may help."""
