"""``boost``: the paper's algorithm, every choice of it an option."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from klover.base.checks import as_key, check_choice, check_count, check_finite, check_function, note
from klover.base.shapes import KeyLike, Points, RandomKey
from klover.boosting import rounds
from klover.boosting.rounds import BoostInfo
from klover.boosting.settings import STARTS, Settings
from klover.importance.draws import WeightedDraws, sample_importance
from klover.mixtures.algebra import take
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.results.files import settings_of
from klover.results.fit import Fit
from klover.search.missed import Effort, find_missed
from klover.targets.evaluator import Evaluator
from klover.targets.loaded import as_target
from klover.targets.target import Target
from klover.tuning import Tuning
from klover.verdict.case import Case
from klover.verdict.judge import Verdict, judge
from klover.warps.warped import WarpedMixture, unwarped

NUM_PROBES = 200


def boost(
    key: KeyLike,
    target: Target,
    start: str | Mixture | Fit = "reverse",
    *,
    max_components: int = 3,
    num_draws: int = 10_000,
    family: str | Family = "normal-diagonal",
    divergence: str = "forward",
    approach: str = "direct",
    draws: str = "previous",
    fitter: str = "adam",
    newcomer: str = "ascent",
    weights: str = "projected",
    update: str = "newcomer",
    num_steps: int | None = None,
    num_round_draws: int = 2000,
    num_draws_per_step: int = 100,
    learning_rate_location: float = 0.01,
    learning_rate_scale: float = 0.01,
    initial_scale: float = 0.01,
    log_epsilon: float | None = None,
    prior: float = 1.0,
    callback: Callable[[BoostInfo], None] | None = None,
) -> Fit:
    r"""Grow a mixture that covers the target, by the paper's algorithm, and weigh draws of it.

    Forward-KL boosting minimises :math:`\mathrm{KL}(p\|q_K)` over mixtures :math:`q_K=\sum_k\lambda_kf_k`, one
    component after the other. Round i fits a newcomer :math:`f_i` and its weight γ with :math:`q_{i-1}` held fixed
    (``eq:mixture_forward_kl``), on draws :math:`\theta_s` of a proposal g with self-normalised weights
    (``eq:fkl_snis``), and then all weights λ together:

    .. math:: \max_{f_i,\gamma}\sum_sw_s\log\big((1-\gamma)\,q_{i-1}(\theta_s)+\gamma f_i(\theta_s)\big),\qquad
        w_s\propto\frac{\hat p(\theta_s)}{g(\theta_s)}.

    In the end :math:`q_K` is the proposal of an importance sampler: posterior means, evidence and verdict come from
    fresh draws of it with weights :math:`\hat p/q_K`. :func:`klover.refine` makes all of the choices below by itself.

    Parameters
    ----------
    key
        A typed key, or a whole number as its seed.
    target
        The target.
    start
        The first component: fitted by the ``"reverse"`` KL (the paper: "initialise with RKL, refine with FKL") or by
        the ``"forward"`` KL. Or a :class:`~klover.Mixture` or a :class:`~klover.Fit` to go on from; its components
        count.
    max_components
        Number K of components to grow to.
    num_draws
        Fresh draws of the final mixture, on which verdict and summary rest.
    family
        Family of the components: a name such as ``"normal-diagonal"`` or ``"student"``, or a :class:`~klover.Family`.
    divergence
        ``"forward"`` KL(p‖q), or ``"reverse"`` KL(q‖p) as in Miller et al. (2017).
    approach
        ``"direct"``: fit the newcomer f and its weight γ inside the mixture; ``"remainder"``: fit f alone to
        :math:`p/q_{i-1}`, then find its weight.
    draws
        The proposal g: the ``"previous"`` mixture :math:`q_{i-1}`, the ``"current"`` one :math:`q_i`, or the
        ``"newcomer"`` :math:`f_i`.
    fitter
        ``"adam"``, or ``"em"`` in closed form (forward only).
    newcomer
        Where a newcomer begins: ``"ascent"`` (the paper), ``"lbfgs"`` or ``"gain"`` (:mod:`klover.boosting.placement`).
    weights
        How all weights are optimised after each round: ``"projected"`` gradient, ``"em"``, ``"newton"`` or ``"none"``.
        The reverse KL has the projected gradient only.
    update
        ``"newcomer"``: earlier components stay as they are; ``"all"``: EM over all of them ends each round.
    num_steps
        Steps of the fitter for each component; ``None`` means 1000 of Adam or 20 of EM.
    num_round_draws
        Draws that a round makes at a time: those of the previous mixture, which a newcomer is fitted to; those of each
        EM step where draws are made anew; those for the weights and for measuring.
    num_draws_per_step
        Draws of each step of Adam, where these are made anew (the paper tuned it between 25 and 200).
    learning_rate_location, learning_rate_scale
        Adam's rates; the second one is also that of the weight γ and of the degrees of freedom.
    initial_scale
        σ of the paper's initial standard deviations, which are drawn from N(0, σ²).
    log_epsilon
        log ε of the paper's smoothed residual (it used -10); ``None`` switches the smoothing off.
    prior
        Weight of the covariance prior in EM: it counts like ``prior * (d + 1)`` effective draws.
    callback
        Called after each round with its :class:`~klover.boosting.rounds.BoostInfo`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import klover
    >>> target = klover.Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(2))
    >>> fit = klover.boost(0, target, "forward", max_components=2, family="student", fitter="em", newcomer="lbfgs")
    >>> fit.verdict.trusted
    True
    >>> round(fit.log_evidence, 1)  # the exact value is log 2π = 1.84
    1.8
    """
    # Each field of the record is an argument of the same name and default.
    options: dict[str, Any] = locals() | {"family": Family.parse(family)}
    settings = Settings(**{field.name: options[field.name] for field in dataclasses.fields(Settings)})
    key, target = as_key(key), as_target(target)
    check_count("num_draws", num_draws, 2, "10,000 is a good number.")
    if callback is not None:
        check_function("callback", callback, "what a round has measured (a BoostInfo)")
    key_start, key_rounds, key_final, key_search = jax.random.split(key, 4)
    evaluator = Evaluator(target)
    if not evaluator.has_gradient:
        _check_without_gradient(start, settings)
    given = _checked(start, key_start, target, settings)
    history: list[BoostInfo] = []

    def report(state, info):
        history.append(info)
        if callback is not None:
            with note("callback failed: make it a function of what a round has measured (a BoostInfo)."):
                callback(info)

    mixture = rounds.run(key_start, key_rounds, target, settings, given, report).mixture
    final = sample_importance(key_final, target, mixture, num_draws)
    names = [field.name for field in dataclasses.fields(BoostInfo)]
    columns = {name: np.asarray([getattr(info, name) for info in history]) for name in names}
    verdict = _judge(key_search, evaluator, mixture, final, history)
    made = settings_of("boost", key, start=start, num_draws=num_draws, **dataclasses.asdict(settings))
    return Fit(target, mixture, final, columns, verdict, settings=made)


def _judge(
    key: RandomKey, evaluator: Evaluator, mixture: Mixture, draws: WeightedDraws, history: list[BoostInfo]
) -> Verdict:
    """Search for what the mixture misses, and judge draws of it by all that the rounds have shown."""
    on_host = jax.tree.map(lambda leaf: np.asarray(leaf, float), mixture)
    on_host = take(on_host, np.flatnonzero(on_host.log_weights > -np.inf))
    generator, tuning = np.random.default_rng(np.asarray(jax.random.key_data(key))), Tuning()
    effort = Effort.of(tuning.missed)
    parts, searched = find_missed(generator, evaluator, on_host, on_host, draws.x, draws.log_ratio, effort, tuning)
    # A start may be wider than the support: only later rounds count, which have as many draws each.
    invalid = [(int(info.num_nan), int(info.num_infinite), int(info.num_draws)) for info in history[1:]]
    case = Case(
        draws,
        on_host,
        on_host,
        evaluator,
        generator,
        (float(history[-1].log_evidence), float(history[-1].log_evidence_se)),
        most_invalid=max(invalid, key=sum, default=(0, 0, 1)),
        parts=tuple(parts),
        searched=searched,
        tuning=tuning,
    )
    return judge(case)


def _check_without_gradient(start: str | Mixture | Fit, settings: Settings) -> None:
    """Refuse choices that climb or descend the log density, where it has no gradient."""
    if isinstance(start, str) or settings.divergence == "reverse" or settings.newcomer != "gain":
        raise ValueError(
            "target must have a gradient for these choices, got a log density that JAX cannot differentiate. Pass "
            f"grad= to klover.from_callback, or start=klover.diffuse(lower, upper, {settings.family.name!r}), "
            "newcomer='gain' and divergence='forward', which need values alone."
        )


def _checked(start: str | Mixture | Fit, key: RandomKey, target: Target, settings: Settings) -> str | Mixture:
    """Check where a fit starts; bring a given mixture to the numbers that the target works with."""
    if isinstance(start, Fit) and isinstance(start.mixture, WarpedMixture):
        raise TypeError(
            "start must be a mixture, got one behind a warp, which boost does not have. Let refine go on from it: "
            "klover.refine(key, target, start=fit)."
        )
    if isinstance(start, Fit):
        start = unwarped(start.mixture)
    if not isinstance(start, Mixture):
        check_choice("start", start, STARTS)
        noise = np.random.default_rng(0).standard_normal((NUM_PROBES, target.dim))
        _check_support(target, np.asarray(target.start) + np.concatenate([0 * noise[:1], noise]))
        return start
    if start.dim != target.dim:
        raise ValueError(f"start must have the dimension of the target, {target.dim}, got {start.dim}.")
    given, asked = start.components.family_name, settings.family.name
    if given != asked:
        raise ValueError(
            f"start must be a mixture of {asked!r} components, got {given!r}: a mixture has components of one family. "
            f"Pass family={given!r}, or a start of the other family."
        )
    parameters = (start.components.location, start.components.spread)
    check_finite("start", parameters, "Pass a mixture with finite parameters.")
    if start.capacity > settings.max_components:
        raise ValueError(
            f"max_components must be at least {start.capacity}, the size of the start, got {settings.max_components}."
        )
    given = jax.tree.map(lambda leaf: jnp.asarray(leaf, target.start.dtype), start)
    _check_support(target, given.sample(key, NUM_PROBES))
    return given


def _check_support(target: Target, points: Points) -> None:
    """Fail at once, with a clear message, where the density is finite nowhere."""
    value = np.asarray(jax.jit(Target.log_prob)(target, points))
    if not np.isfinite(value).any():
        raise ValueError(
            f"the log density is finite at none of {value.size} points around the start ({np.isnan(value).sum()} are "
            "NaN), so there is nothing to fit. Run target.check(key), and choose an example or a start inside the "
            "support."
        )
