"""The choices that the paper's algorithm leaves open, each under its own name."""

import dataclasses

from klover.base.checks import (
    check_choice,
    check_count,
    check_instance,
    check_not_negative,
    check_number,
    check_positive,
)
from klover.boosting.sources import SOURCES
from klover.fitting.adam import Rate
from klover.mixtures.components import Family

CHOICES = {
    "divergence": ("forward", "reverse"),
    "approach": ("direct", "remainder"),
    "draws": SOURCES,
    "fitter": ("adam", "em"),
    "newcomer": ("ascent", "lbfgs", "gain"),
    "weights": ("projected", "em", "newton", "none"),
    "update": ("newcomer", "all"),
}
STARTS = ("reverse", "forward")
"""Divergences by which a first component is fitted."""
DEFAULT_STEPS = {"adam": 1000, "em": 20}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The options of :func:`klover.boost`, which explains them, as one record; the defaults are the paper's."""

    max_components: int = 3
    divergence: str = "forward"
    approach: str = "direct"
    draws: str = "previous"
    fitter: str = "adam"
    newcomer: str = "ascent"
    weights: str = "projected"
    update: str = "newcomer"
    family: Family = Family("normal", "diagonal")
    num_steps: int | None = None
    num_round_draws: int = 2000
    num_draws_per_step: int = 100
    learning_rate_location: Rate = 0.01
    learning_rate_scale: Rate = 0.01
    initial_scale: Rate = 0.01
    log_epsilon: float | None = None
    prior: float = 1.0

    def __post_init__(self):
        for name, names in CHOICES.items():
            check_choice(name, getattr(self, name), names)
        check_count("max_components", self.max_components, 1, "A mixture has at least one component.")
        if self.num_steps is not None:
            check_count("num_steps", self.num_steps, 1)
        for name in ("num_round_draws", "num_draws_per_step"):
            check_count(name, getattr(self, name), 2, "Weights need at least two draws; 100 or more is sensible.")
        for name in ("learning_rate_location", "learning_rate_scale", "initial_scale"):
            check_positive(name, getattr(self, name))
        check_not_negative("prior", self.prior, "0 switches the prior off.")
        check_instance("family", self.family, Family)
        if self.log_epsilon is not None:
            check_number("log_epsilon", self.log_epsilon, "The paper used -10; None switches the smoothing off.")
        self._check_combinations()

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
            raise ValueError("log_epsilon changes the loss, which EM cannot do; use fitter='adam', or leave it None.")


CLOSED_FORM = Settings(
    family=Family("student"), fitter="em", newcomer="gain", draws="current", weights="newton", update="all"
)
"""Everything by EM and Newton's method, nothing by Adam; tails and covariances are fitted, too."""
