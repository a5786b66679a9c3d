"""The reliability factory: klover's promise, "an answer is right or it is refused", on thousands of random targets."""

ARMS = ("known", "sbc", "adversarial")
SETS = ("dev", "validation", "release", "release2", "release3")
"""Sets of seeds, which share no case."""
PEERS = {
    "nuts": "numpyro-nuts",
    "nutpie": "nutpie",
    "pathfinder": "blackjax-pathfinder",
    "svi": "numpyro-svi",
    "smc": "blackjax-smc",
    "dynesty": "dynesty",
}
"""Other tools, by their names here and in ``benchmarks/peers``."""
TRUST = {
    "klover": "its verdict",
    "nuts": "R-hat < 1.01, ESS ≥ 400, no divergence",
    "nutpie": "R-hat < 1.01, ESS ≥ 400, no divergence",
    "pathfinder": "Pareto k < 0.7",
    "svi": "Pareto k < 0.7",
    "smc": "the last temperature is reached",
    "dynesty": "its own rule of stopping is met",
}
"""When the users of a tool believe it."""
