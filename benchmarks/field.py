"""What a tool's answer is worth: its errors, and when it is wrong.

An answer is *wrong* if a mean is off by more than 0.2 standard deviations or a standard deviation by more than 20 %
(where 4000 exact draws would tell it to 4 %, which they do not for the wide coordinates of a funnel), if a mode's
weight is off by more than 0.05, or if log Z, where the tool gives it, is off by more than 0.05 and 5 of its standard
errors (0.2 where it gives none). It is wrong *in silence* if the tool's own diagnostics (the verdict, k̂, R-hat and
divergences) did not complain. A task that a tool cannot be asked to solve (a nested sampler needs a box) counts neither
for it nor against it.
"""

import numpy as np

MEAN_LIMIT, SD_LIMIT, MODE_LIMIT, LOG_Z_LIMIT, NUM_ERRORS = 0.2, 0.2, 0.05, 0.05, 5
BARE_LOG_Z_LIMIT = 0.2
"""For a tool that states no error."""
PREFIXES = np.geomspace(1 / 64, 1, 13)
"""Parts of a chain whose error is measured, for the time that it takes to a given error."""


def errors(task, x: np.ndarray, log_weight: np.ndarray | None) -> dict:
    """Compare draws (draw, dim) with what is known."""
    log_weight = np.zeros(len(x)) if log_weight is None else log_weight
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    found = {}
    if task.mean is not None and task.sd is not None:
        quantity = task.quantities(x)
        mean = weight @ quantity
        sd = np.sqrt(weight @ (quantity - mean) ** 2)
        found["mean_error"] = float(np.max(np.abs(mean - task.mean) / task.sd))
        found["sd_error"] = float(np.max(np.abs(sd / task.sd - 1) * task.has_spread))
    if task.modes is not None:
        nearest = np.argmin(((x[:, None] - task.modes) ** 2).sum(-1), axis=1)
        masses = np.bincount(nearest, weight, len(task.modes))
        found["mode_error"] = float(np.abs(masses - task.mode_weights).max())
        found["num_modes"] = int(np.sum(masses > 0.5 * task.mode_weights))
    return found


def effective(answer) -> float:
    """Effective number of draws: of the weights, or of the chain that mixes worst."""
    if answer.x.ndim == 3:
        from klover.paper.chains import effective_draws

        return float(effective_draws(answer.x))
    if answer.log_weight is None:
        return float(len(answer.x))
    log_weight = answer.log_weight - answer.log_weight.max()
    return float(np.exp(log_weight).sum() ** 2 / np.exp(2 * log_weight).sum())


def progress(task, answer, seconds: float) -> list[tuple[float, float]]:
    """Seconds and errors of the means along chains; half of their time is taken to be warm-up."""
    if answer.x.ndim < 3 or task.mean is None or task.sd is None:
        return []
    found = []
    for part in PREFIXES:
        kept = answer.x[:, : max(int(part * answer.x.shape[1]), 1)].reshape(-1, task.dim)
        found.append((0.5 * (1 + part) * seconds, errors(task, kept, None)["mean_error"]))
    return found


def is_wrong(run: dict) -> bool:
    """Whether the answer is wrong by the rule above."""
    error = run.get("log_z_se")
    log_z_limit = max(NUM_ERRORS * error, LOG_Z_LIMIT) if error else BARE_LOG_Z_LIMIT
    limits = {"mean_error": MEAN_LIMIT, "sd_error": SD_LIMIT, "mode_error": MODE_LIMIT}
    is_log_z_wrong = abs(run.get("log_z_error", 0.0)) > log_z_limit
    return is_log_z_wrong or any(not run[name] <= limit for name, limit in limits.items() if name in run)
