"""The tools that klover is compared with: one module each, a few lines around the tool's own calls.

A module has ``prepare(task, **setting)``, which returns a function from a seed to an :class:`Answer`; the function
called a second time compiles nothing, unless the tool compiles in each call. ``SETTINGS`` holds the tool's documented
defaults, where it has any, and one setting that its users would choose for these tasks.
"""

import dataclasses
import importlib

import numpy as np

MODULES = {
    "klover": "klover_refine",
    "klover-reverse": "klover_reverse",
    "numpyro-nuts": "numpyro_nuts",
    "nutpie": "nutpie_nuts",
    "blackjax-nuts": "blackjax_nuts",
    "blackjax-pathfinder": "blackjax_pathfinder",
    "blackjax-smc": "blackjax_smc",
    "numpyro-svi": "numpyro_svi",
    "pymc-advi": "pymc_advi",
    "pypmc": "pypmc_pmc",
    "nautilus": "nautilus_nested",
    "dynesty": "dynesty_nested",
    "pyvbmc": "pyvbmc_variational",
    "gpry": "gpry_surrogate",
}


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a tool says.

    Attributes
    ----------
    x
        Draws (draw, dim), or chains (chain, draw, dim).
    log_weight
        Their log weights, up to a constant; None if they are equal.
    log_evidence, log_evidence_se
        log Z and its standard error, where the tool gives them.
    num_evaluations, num_gradients
        Of the log density; a value with its gradient counts as a gradient.
    complaint
        What the tool's own diagnostics say against the answer; empty if nothing.
    """

    x: np.ndarray
    log_weight: np.ndarray | None = None
    log_evidence: float | None = None
    log_evidence_se: float | None = None
    num_evaluations: int = 0
    num_gradients: int = 0
    complaint: str = ""


def load(peer: str):
    """Return the module of a peer and one of its settings; ``"dynesty:tuned"`` names one that is not the default."""
    name, _, setting = peer.partition(":")
    module = importlib.import_module(f"benchmarks.peers.{MODULES[name]}")
    return module, module.SETTINGS[setting or "default"]


def judge_chains(x: np.ndarray, num_divergent: int) -> str:
    """Say what the usual diagnostics of chains (chain, draw, dim) say: split R-hat, and divergences."""
    from numpyro.diagnostics import split_gelman_rubin

    largest = float(np.max([split_gelman_rubin(x[:, :, place]) for place in range(x.shape[-1])]))
    parts = [f"R-hat {largest:.3f}"] if not largest < 1.01 else []
    parts += [f"{num_divergent} divergences"] if num_divergent else []
    return ", ".join(parts)


def judge_weights(log_ratio: np.ndarray) -> tuple[np.ndarray, str]:
    """Smooth log ratios, and say what the Pareto diagnostic says."""
    from klover.importance import psis

    log_weight, pareto_k = psis.smooth(np.asarray(log_ratio))
    return np.asarray(log_weight), f"k {float(pareto_k):.2f}" if not pareto_k < 0.7 else ""
