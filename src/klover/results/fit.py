"""The result of a fit: the mixture, how it grew, fresh weighted draws, the verdict, and a table for people."""

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from klover.base import optional
from klover.base.checks import check_path
from klover.base.shapes import KeyLike, PyTree
from klover.importance.draws import WeightedDraws, sample_importance
from klover.results import datatree, files
from klover.results.streamed import StreamedDraws, stream_draws
from klover.results.summary import Summary, summarise
from klover.targets.budget import Budget
from klover.targets.loaded import TargetLike
from klover.targets.target import Target
from klover.verdict.judge import Verdict
from klover.verdict.status import Status
from klover.warps.warped import Proposal

if TYPE_CHECKING:
    from klover.results.nuts import NutsStart
    from klover.uses.elpd import Elpd
    from klover.uses.sensitivity_table import Sensitivity

CURABLE = (Status.HEAVY_WEIGHTS, Status.FEW_EFFECTIVE_DRAWS)
"""Doubts about the draws of a fit that more of them may settle."""


@dataclasses.dataclass(frozen=True)
class Fit:
    """A fitted proposal and what it says about the target.

    ``mixture`` is the final proposal q. ``draws`` are fresh draws of it with their weights (or particles, see
    :attr:`kind`); the verdict and the summary rest on them. ``history`` has what was measured after each round, by
    name: arrays with one entry a round. ``num_evaluations`` and ``evaluation_seconds`` count the evaluations of the
    target in all, and the seconds inside it (compilation included); they are None where they were not counted.
    ``settings`` say how the fit was made: the function, its choices, and the data of the key.
    """

    target: TargetLike
    mixture: Proposal
    draws: WeightedDraws
    history: dict[str, np.ndarray]
    verdict: Verdict
    num_evaluations: int | None = None
    evaluation_seconds: float | None = None
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def kind(self) -> str:
        """What the draws are: ``"importance"``, or ``"particles"`` where importance sampling cannot work."""
        return self.draws.kind

    @property
    def log_evidence(self) -> float:
        """Log of the evidence."""
        return float(self.draws.log_evidence)

    @property
    def log_evidence_se(self) -> float:
        """Standard error of the log evidence."""
        return float(self.draws.log_evidence_se)

    @property
    def pareto_k(self) -> float:
        """Tail index k̂ of the weights."""
        return float(self.draws.pareto_k)

    @property
    def ess(self) -> float:
        """Effective number of the fresh draws."""
        return float(self.draws.ess)

    def importance(self, key: KeyLike, num_draws: int) -> WeightedDraws:
        """Draw more from the proposal, weighted by the target."""
        return sample_importance(key, self.target, self.mixture, num_draws)

    def stream(
        self,
        key: KeyLike,
        num_draws: int,
        functions: dict[str, Callable[[PyTree], PyTree]] | None = None,
        progress: bool | None = None,
        pool: Any = None,
    ) -> StreamedDraws:
        """Draw up to a billion times and more in constant memory: draws are weighed, added up and forgotten.

        What is to be averaged has to be known before: means and standard deviations of all coordinates, and
        ``functions`` of one constrained position by name, as :meth:`klover.WeightedDraws.expectation` takes them (of a
        condition it is the probability). k̂ is exact, and so is the sum: the numbers are the same for any number of
        cores. They run on all cores, or on all accelerators; a density that calls the host runs in this thread. On a
        ``pool``, as of :func:`klover.map_fits`, other processes or machines draw: on equal devices the same numbers.

        ``progress`` prints a line a second; a terminal has it unless it is False. Ctrl-C ends the stream with a warning
        and the answer of all draws so far, if there are any. Streams with different keys can be merged
        (:meth:`klover.StreamedDraws.merge`).

        Examples
        --------
        >>> import jax.numpy as jnp, klover
        >>> target = klover.Target(lambda x: -0.5 * x**2, 0.0)
        >>> fit = klover.refine(0, target)
        >>> draws = fit.stream(1, 100_000, functions={"far": lambda x: x > 2})
        >>> probability, error = draws.expectation("far")
        >>> bool(abs(probability - 0.02275) < 5 * error)
        True
        >>> draws.verdict.trusted, draws.merge(fit.stream(2, 100_000, {"far": lambda x: x > 2})).num_draws
        (True, 200000)
        """
        is_curable = self.verdict.trusted or self.verdict.status in CURABLE
        doubt = None if is_curable else self.verdict
        return stream_draws(key, self.target, self.mixture, num_draws, functions, progress, doubt, pool)

    def update(
        self,
        target: Target,
        key: KeyLike = 0,
        *,
        min_ess: int | None = None,
        budget: Budget = None,
        search: str = "auto",
        progress: bool | None = None,
    ) -> "Fit":
        """Fit other data, or another prior, of the same parameters; the old proposal is used first.

        Its draws are weighted under the new target. As long as these weights are fair, draws are all that is evaluated
        beside the last search and the checks of the verdict, which are those of :func:`klover.refine`; if hardly any
        draw is effective, the work begins with the old mixture and a search for modes. A refused fit may be updated,
        with a warning; so may one that was loaded without its target.

        About 1000 effective draws are enough, and the search for other modes is as large as usual. Where evaluations
        are expensive, give the ``min_ess`` that is: the search then shrinks too, as that of :func:`klover.refine`. A
        ``budget``, ``search`` and ``progress`` are those of :func:`klover.refine`.

        Examples
        --------
        >>> import jax.numpy as jnp, numpy as np, klover
        >>> def posterior(data):  # of a mean, with known errors
        ...     return klover.Target(lambda x: -0.5 * jnp.sum((data - x) ** 2) - 0.5 * x**2, 0.0)
        >>> data = np.array([0.5, 1.5, 1.0, 2.0])
        >>> first = klover.refine(0, posterior(data[:2]))
        >>> second = first.update(posterior(data))
        >>> second.verdict.trusted, second.num_evaluations < first.num_evaluations / 2
        (True, True)
        """
        from klover.uses.update import update

        return update(self, target, key, min_ess=min_ess, budget=budget, search=search, progress=progress)

    def loo(
        self,
        log_likelihood: Callable[[PyTree], Any] | None = None,
        *,
        groups: Sequence[Any] | np.ndarray | None = None,
        key: KeyLike = 0,
        min_ess: int | None = None,
        pool: Any = None,
    ) -> "Elpd":
        """Leave-one-out cross-validation: the expected log predictive density of each row of the data.

        The draws of the proposal are re-weighted without each row. Where the k̂ of these weights is too high, or fewer
        than 400 are effective, the target is fitted without that row (:meth:`update`), with a verdict and an error.
        With ``groups``, one label for each row, whole groups are left out, and the density is that of all their rows.

        The log likelihoods of rows are those of the model, where the target comes from a modelling language (Stan's has
        to generate ``log_lik``), or ``log_likelihood``: a function from one constrained position to an array of them.
        It has to be a part of the log density, term by term. ``min_ess`` is that of :meth:`update`. On a ``pool``,
        as of :func:`klover.map_fits`, refits are made side by side, with the same numbers. A refused fit gives a
        warning, and a refused answer. ``to_arviz()`` of the answer is for ``az.compare``.

        Examples
        --------
        >>> import jax.numpy as jnp, klover
        >>> data = jnp.array([-1.0, 0.0, 0.5, 1.5])
        >>> rows = lambda x: -0.5 * (data - x) ** 2 - 0.5 * jnp.log(2 * jnp.pi)
        >>> fit = klover.refine(0, klover.Target(lambda x: jnp.sum(rows(x)) - 0.5 * x**2, 0.0))
        >>> loo = fit.loo(rows)
        >>> round(loo.elpd, 1), loo.trusted  # the truth is -6.16
        (-6.2, True)
        """
        from klover.uses.loo import loo

        return loo(self, log_likelihood, groups=groups, key=key, min_ess=min_ess, pool=pool)

    def kfold(
        self,
        num_folds: int = 10,
        log_likelihood: Callable[[PyTree], Any] | None = None,
        *,
        key: KeyLike = 0,
        min_ess: int | None = None,
        pool: Any = None,
    ) -> "Elpd":
        """K-fold cross-validation: folds of rows, drawn with the key, are left out one after the other.

        As :meth:`loo`: draws are re-weighted where they can be, and the target is fitted without the fold where not.
        Each row is predicted by itself.
        """
        from klover.uses.loo import kfold

        return kfold(self, num_folds, log_likelihood, key=key, min_ess=min_ess, pool=pool)

    def summary(self) -> Summary:
        """Weighted mean, sd, interval, Monte Carlo error, ESS and k̂ of every quantity."""
        return summarise(self.draws, self.verdict, int(self.mixture.num_components))

    def sensitivity(
        self, names: Sequence[str] | None = None, *, powers: Sequence[float] = (0.8, 1.25), key: KeyLike = 0
    ) -> "Sensitivity":
        """Say how much the answer rests on the prior and on the likelihood, by raising them to powers.

        Prior and likelihood come from the model (NumPyro, PyMC; Stan programs that have ``lprior`` and ``log_lik``).
        The sensitivity of a quantity, defined as by ``psense`` of arviz-stats, is how fast its posterior changes with
        the binary logarithm of the power: from 0.05 on it counts, and the table says what it means. ``names`` are
        variables or quantities; all by default. Each of ``powers`` is a step of its own, with means, errors and k̂: the
        draws of the fit are weighted anew, and where the weights are bad the scaled posterior is fitted with this fit
        as a start and ``key``. A refused fit may be asked, with a warning.

        Examples
        --------
        >>> import klover
        >>> from klover.targets.model_info import ModelInfo
        >>> parts = {"log_prior": lambda x: {"x": -2 * x**2}, "log_likelihood": lambda x: {"y": -2 * (x - 3) ** 2}}
        >>> model_info = ModelInfo("by hand", **parts)
        >>> target = klover.Target(lambda x: -2 * x**2 - 2 * (x - 3) ** 2, 0.0, model_info=model_info)
        >>> klover.refine(0, target).sensitivity().diagnosis
        ('potential prior-data conflict',)
        """
        from klover.uses.sensitivity import sensitivity

        return sensitivity(self, names, powers, key)

    def nuts_start(self, key: KeyLike, num_chains: int = 4, *, dense: bool = False) -> "NutsStart":
        """Return distinct positions, an inverse mass matrix and a step size for chains of NUTS.

        The matrix is the posterior's variances, or with ``dense`` covariances, in the unconstrained coordinates. What
        is left of a warm-up is the step size, for which some ten draws do (with 20 or 25 NumPyro's windows spoil it).
        For NumPyro (``NUTS(inverse_mass_matrix=..., step_size=...)``, ``init_params``) and blackjax the record is
        as they take it; ``in_order`` is for PyMC, and ``save_metric`` writes CmdStan's file. A refused fit may be
        asked, with a warning.

        Examples
        --------
        >>> import jax.numpy as jnp, klover
        >>> target = klover.Target(lambda x: -0.5 * jnp.sum((x / jnp.array([1.0, 20.0])) ** 2), jnp.zeros(2))
        >>> start = klover.refine(0, target).nuts_start(1)
        >>> is_close = abs(start.inverse_mass_matrix / [1, 400] - 1) < 0.2
        >>> start.positions.shape, is_close.tolist(), round(start.step_size, 1)
        ((4, 2), [True, True], 1.2)
        """
        from klover.results.nuts import nuts_start

        return nuts_start(self, key, num_chains, dense)

    def posterior(self, num_draws: int = 4000, key: KeyLike = 0) -> dict[str, np.ndarray]:
        """Return equally weighted posterior draws by name: constrained values, as arrays of shape (draw, ...).

        As :meth:`klover.WeightedDraws.resample` of the fit's own draws; more of them than are effective (``ess``)
        repeat what is there. The key is one of JAX, or a whole number as its seed.
        """
        return {name: np.asarray(values) for name, values in self.draws.resample(key, num_draws).items()}

    def to_pandas(self, num_draws: int = 4000, key: KeyLike = 0) -> Any:
        """Return the draws of :meth:`posterior` as a ``pandas.DataFrame``: a row a draw, a column a quantity."""
        x = np.asarray(self.draws.resample_unconstrained(key, num_draws))
        return optional.pandas().DataFrame(np.asarray(self.target.flat_position(x)), columns=list(self.target.names))

    def to_datatree(self, num_draws: int = 4000, key: KeyLike = 0, predictive: bool = False) -> Any:
        """Return labelled results in ArviZ's groups, as an ``xarray.DataTree``.

        As :func:`klover.results.datatree.to_datatree` of the draws; the verdict with reason and remedy, the number of
        components and the settings (as JSON) are attributes too.
        """
        tree = datatree.to_datatree(self.draws, num_draws, key, predictive)
        tree.attrs |= {
            "verdict": "trusted" if self.verdict.trusted else "refused",
            "verdict_status": self.verdict.status.name,
            "verdict_reason": self.verdict.reason,
            "verdict_remedy": self.verdict.remedy,
            "num_components": int(self.mixture.num_components),
            "settings": json.dumps(self.settings),
        }
        return tree

    def to_arviz(self, num_draws: int = 4000, key: KeyLike = 0, predictive: bool = False) -> Any:
        """Return :meth:`to_datatree` as the installed ArviZ has it: a DataTree, or InferenceData before ArviZ 1."""
        return datatree.to_arviz(self.to_datatree(num_draws, key, predictive))

    def predict(self, *args: Any, num_draws: int = 4000, key: KeyLike = 0, **kwargs: Any) -> Any:
        """Return predictions for new inputs in ArviZ's groups, as an ``xarray.DataTree``.

        ``predictions`` has new observations, one for each of ``num_draws`` posterior draws of equal weight, and
        ``predictions_constant_data`` the new inputs. Of a NumPyro model give its arguments, with None for what is
        observed; of a PyMC model a dict of new values of its ``pm.Data``, and ``coords=`` for axes that change; of a
        Stan program a dict of data that change: new observations ``y`` are its generated quantities ``y_rep``. A
        refused fit may be asked, with a warning.
        """
        from klover.results.predictions import predict

        return predict(self, args, kwargs, num_draws, key)

    def save(self, path: str | os.PathLike) -> None:
        """Write all but the target's functions to one file, which :func:`klover.load` reads."""
        files.save(check_path("path", path), self)

    def __repr__(self) -> str:
        """Return a one-line description."""
        state = "trusted" if self.verdict.trusted else "refused"
        return f"Fit(dim={self.target.dim}, num_components={int(self.mixture.num_components)}, {state})"


def load(path: str | os.PathLike, target: Target | None = None) -> Fit:
    """Read a fit that :meth:`Fit.save` has written, with its target, built as before.

    Without the target, what was stored can be read (draws, their constrained positions, summary, verdict, history), and
    the log density cannot be evaluated. Constrained positions in containers other than dicts, lists and tuples are then
    dicts by name.

    Raises
    ------
    klover.base.checks.DamagedFile
        If the file was cut or changed, or is something else; it is a ``ValueError``.
    ValueError
        If the file was written by a newer klover, or belongs to another target.
    """
    return Fit(**files.load(check_path("path", path, is_read=True), target))
