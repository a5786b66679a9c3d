"""Every way a fit can end, with the reason and the advice to give."""

import enum


class Status(enum.Enum):
    """How far an answer can be believed: each member holds the reason and the remedy, as format strings."""

    TRUSTED = ("k̂ = {pareto_k:.2f} and {ess:.0f} effective draws of {num_draws}: the proposal covers the target.", "")
    NO_SUPPORT = (
        "the log density was finite at none of the {num_draws} draws ({num_nan} NaN, {num_infinite} +inf).",
        "Run target.check(key) to see what the density returns, and choose an example inside the support.",
    )
    NOT_A_NUMBER = (
        "the log density was NaN at {num_nan} and +inf at {num_infinite} of {num_draws} draws; they were treated as "
        "outside the support, which may hide a part of the posterior.",
        "Make the density return -inf outside its support and a number inside; float64 often cures overflow.",
    )
    HEAVY_WEIGHTS = (
        "k̂ = {pareto_k:.2f} is above {limit:.2f}, the limit for {num_draws} draws: the weights are too heavy-tailed "
        "for expectations and the evidence to settle.",
        "Use heavier tails (family='student'), more components or draws, a full covariance, a better first "
        "approximation, or other coordinates (scaled, non-centred). An improper posterior looks like this too: check "
        "the priors.",
    )
    FEW_EFFECTIVE_DRAWS = (
        "only {ess:.0f} of {num_draws} draws are effective; {minimum} are needed.",
        "Draw more with fit.importance(key, num_draws), or improve the proposal: more components, a full covariance.",
    )
    UNCOVERED_MODE = (
        "the target has a mode, {mode}, that the proposal does not cover: one draw there would outweigh all "
        "{num_draws}.",
        "Add components (num_components), begin with a diffuse mixture (klover.diffuse) or with draws near that mode, "
        "and prefer divergence='forward'.",
    )

    DRIFTING_PARTICLES = (
        "particles that began as draws of the answer still move to where the proposal is all but absent "
        "({drift:.1f} standard errors): a part of the posterior is not covered.",
        "Give more evaluations (budget), a box (klover.Target(..., box=...)), draws of another sampler (start), or "
        "write the model in other coordinates (non-centred, scaled).",
    )
    UNSTABLE_EVIDENCE = (
        "the log evidence of the last draws, {log_evidence:.3f}, differs by {difference:.3f} from that of the rounds "
        "before them, which is {ratio:.1f} standard errors.",
        "Run again with another key and with more draws; heavy tails or an improper posterior look like this.",
    )
    IMPROPER = (
        "the proposal spread to a width of {width:.1g} in {name}, and there is no end of it: the posterior looks "
        "improper, so that there is no evidence and there are no moments.",
        "Give {name} a proper prior; if it is proper and as wide as that, rescale it.",
    )
    UNFINISHED = (
        "the refinement was stopped ({cause}) before its own criteria were met; k̂ = {pareto_k:.2f}, {ess:.0f} "
        "effective draws of {num_draws}.",
        "Give a larger budget, or resume from the checkpoint.",
    )
    COARSE_NUMBERS = (
        "numbers of the precision {precision} are too coarse for {what}.",
        "Use double precision (jax.config.update('jax_enable_x64', True) before the target is made), or measure the "
        "parameter from near its value, in units of its uncertainty.",
    )
    TARGET_RAISED = (
        "the log density raised an error at {num_raised} points; they were treated as outside the support, which may "
        "hide a part of the posterior.",
        "Make the density return -inf where it cannot be computed.",
    )

    PARTICLES = (
        "importance sampling cannot work here (k̂ = {pareto_k:.2f}), so {num_draws} particles were carried to the "
        "target; {num_islands} independent islands agree on the evidence (standard deviation of its logarithm "
        "{spread:.2f}), and the particles no longer drift.",
        "",
    )
    PARTICLES_MISS_MODE = (
        "importance sampling cannot work here (k̂ = {pareto_k:.2f}), so {num_draws} particles were carried to the "
        "target; the target has a mode, {mode}, that none of them is on.",
        "Begin with draws on all modes (start), or run another sampler from there: how much of the posterior each mode "
        "has is not known.",
    )
    UNCONVERGED_PARTICLES = (
        "importance sampling cannot work here (k̂ = {pareto_k:.2f}), so {num_draws} particles were carried to the "
        "target, but they have not converged: the log evidences of {num_islands} independent islands scatter with a "
        "standard deviation of {spread:.2f}, the mean log density moved by {drift:.1f} standard errors in the last "
        "sweeps, and {ess:.0f} draws are effective.",
        "Use the particles for predictions at most, and compare them with another sampler; the evidence is a lower "
        "bound on average.",
    )

    @property
    def reason(self) -> str:
        """Why the answer is trusted or refused."""
        return self.value[0]

    @property
    def remedy(self) -> str:
        """What to do about it; empty where nothing is to be done."""
        return self.value[1]
