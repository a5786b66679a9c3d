"""Draws of a model's prior, among the starts of the search: made once, when they are asked for or ahead in a thread."""

import threading
import warnings

import jax
import numpy as np

from klover.base.checks import as_key
from klover.base.shapes import Float
from klover.targets.positions import ravel_rows
from klover.targets.target import Target

NUM_DRAWS = 256

Points = Float[np.ndarray, "draw dim"]


class PriorDraws:
    """Draws of the prior of a target's model, unconstrained.

    Parameters
    ----------
    target
        The target; without a model, or where that has no proper prior, there are no draws.
    compilation
        A thread to wait for before anything else is compiled.
    """

    def __init__(self, target: Target, compilation: threading.Thread):
        self._target, self._compilation = target, compilation
        self._draws: Points | None = None
        self._failure = ""
        # Not a daemon: a process that ends must not cut off what is being compiled.
        self._thread = threading.Thread(target=self._draw)

    def begin(self) -> None:
        """Draw while other work is done."""
        if getattr(self._target.model_info, "prior", None) is not None:
            self._thread.start()

    def get(self) -> Points:
        """Return the draws; none where there is no prior that can be drawn from, which is told if it is an error."""
        if self._thread.is_alive():
            self._thread.join()
        elif self._draws is None:
            self._draw()
        if self._failure:
            warnings.warn(
                f"drawing from the model's prior failed with {self._failure}. The search for further modes goes on "
                "without such draws.",
                stacklevel=2,
            )
            self._failure = ""
        assert self._draws is not None
        return self._draws

    def _draw(self) -> None:
        info, dtype = self._target.model_info, self._target.start.dtype
        self._draws = np.zeros((0, self._target.dim))
        if info is None or info.prior is None:
            return
        if self._compilation.is_alive():
            self._compilation.join()
        try:
            with jax.enable_x64(dtype == np.float64):  # a thread does not inherit it
                draws = np.asarray(ravel_rows(info.prior(as_key(0), NUM_DRAWS)), float)
        except NotImplementedError:  # what modelling languages raise for a distribution without a sampler
            return
        except Exception as error:  # of the user's own code, told in the thread that wants the draws
            self._failure = f"{type(error).__name__}: {error}"
            return
        self._draws = draws[np.isfinite(draws).all(axis=1)]
