"""The choices that the paper's algorithm leaves open, each under its own name."""

import dataclasses
from typing import Any

from klover.base.checks import check_choice, check_count, check_positive
from klover.boosting.placement import NEWCOMERS
from klover.boosting.sources import SOURCES
from klover.fitting.adam import Rate
from klover.mixtures.components import Family

DIVERGENCES = ("forward", "reverse")
APPROACHES = ("direct", "remainder")
FITTERS = ("adam", "em")
WEIGHTS = ("projected", "em", "newton", "none")
UPDATES = ("newcomer", "all")
DEFAULT_STEPS = {"adam": 1000, "em": 20}


@dataclasses.dataclass(frozen=True)
class Settings:
    r"""Choices of :func:`klover.boost`; the defaults are the paper's.

    Parameters
    ----------
    num_components
        Number K of components in the end.
    divergence
        ``"forward"`` KL(p‖q), or ``"reverse"`` KL(q‖p).
    approach
        ``"direct"``: fit the newcomer f and its weight γ inside the mixture (``eq:mixture_forward_kl``);
        ``"remainder"``: fit f alone to :math:`p/q_{i-1}`, then find its weight.
    draws
        Where the draws of the forward KL come from: ``"previous"``, ``"current"`` or ``"newcomer"``.
    fitter
        ``"adam"``, or ``"em"`` in closed form (forward only).
    newcomer
        How a newcomer begins: ``"ascent"`` (the paper), ``"lbfgs"`` or ``"gain"``.
    weights
        Fully corrective weights after each round: ``"projected"``, ``"em"``, ``"newton"`` or ``"none"``. The reverse KL
        has the projected gradient only.
    update
        ``"newcomer"``: earlier components stay as they are; ``"all"``: EM over all of them ends each round.
    family
        Family of the components; :func:`klover.boost` also takes names such as ``"normal-diagonal"`` or ``"student"``.
    num_steps
        Steps of the fitter for each component; ``None`` means 1000 of Adam or 20 of EM.
    num_draws
        Draws that a round makes at a time: those of the previous mixture, which stay as they are while the newcomer is
        fitted to them; those of each EM step where draws are made anew; those for the weights and for measuring.
    num_draws_per_step
        Draws of each Adam step, where these are made anew (the paper tuned it between 25 and 200).
    learning_rate_location, learning_rate_scale
        Adam's rates; the second one serves the weight γ and the degrees of freedom too.
    initial_scale
        σ of the paper's initial standard deviations, which are drawn from N(0, σ²).
    log_epsilon
        log ε of the paper's smoothed residual (it used -10); ``None`` switches the smoothing off.
    prior
        Weight of the covariance prior in EM: it counts like ``prior * (d + 1)`` effective draws.
    """

    num_components: int = 3
    divergence: str = "forward"
    approach: str = "direct"
    draws: str = "previous"
    fitter: str = "adam"
    newcomer: str = "ascent"
    weights: str = "projected"
    update: str = "newcomer"
    family: Family = Family("normal", "diagonal")
    num_steps: int | None = None
    num_draws: int = 2000
    num_draws_per_step: int = 100
    learning_rate_location: Rate = 0.01
    learning_rate_scale: Rate = 0.01
    initial_scale: Rate = 0.01
    log_epsilon: float | None = None
    prior: float = 1.0

    def __post_init__(self):
        check_choice("divergence", self.divergence, DIVERGENCES)
        check_choice("approach", self.approach, APPROACHES)
        check_choice("draws", self.draws, SOURCES)
        check_choice("fitter", self.fitter, FITTERS)
        check_choice("newcomer", self.newcomer, NEWCOMERS)
        check_choice("weights", self.weights, WEIGHTS)
        check_choice("update", self.update, UPDATES)
        check_count("num_components", self.num_components, 1, "A mixture has one component at the least.")
        if self.num_steps is not None:
            check_count("num_steps", self.num_steps, 1)
        for name in ("num_draws", "num_draws_per_step"):
            check_count(name, getattr(self, name), 2, "Weights need two draws at the least; 100 or more is sensible.")
        for name in ("learning_rate_location", "learning_rate_scale", "initial_scale"):
            check_positive(name, getattr(self, name))
        if not self.prior >= 0:
            raise ValueError(f"prior must be 0 or more, got {self.prior!r}. 0 switches the prior off.")
        self._check_combinations()

    @classmethod
    def of(cls, **choices: Any) -> "Settings":
        """Make settings from choices by name, the family as a string or a :class:`klover.Family`."""
        names = [field.name for field in dataclasses.fields(cls)]
        for name in choices:
            if name not in names:
                raise TypeError(f"there is no choice {name!r}; the choices are {', '.join(names)}.")
        if "family" in choices:
            choices["family"] = Family.parse(choices["family"])
        return cls(**choices)

    @property
    def steps(self) -> int:
        """Number of steps of the fitter."""
        return self.num_steps or DEFAULT_STEPS[self.fitter]

    def _check_combinations(self):
        if self.divergence == "reverse" and self.fitter == "em":
            raise ValueError("fitter='em' fits the forward KL only; use fitter='adam' with divergence='reverse'.")
        if self.divergence == "reverse" and self.weights in ("em", "newton"):
            raise ValueError(
                f"weights={self.weights!r} solves the forward problem only; use weights='projected' or 'none' with "
                "divergence='reverse'."
            )
        if self.approach == "remainder" and self.draws == "current":
            raise ValueError(
                "approach='remainder' fits the newcomer alone, so there is no current mixture to draw from; use "
                "draws='previous' or 'newcomer'."
            )
        if self.update == "all" and self.fitter != "em":
            raise ValueError("update='all' is done by EM; use it with fitter='em'.")
        if self.log_epsilon is not None and self.fitter == "em":
            raise ValueError(
                "log_epsilon changes the loss, which EM cannot follow; use fitter='adam', or leave it None."
            )
