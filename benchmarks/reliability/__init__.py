"""The reliability factory: klover's promise, "an answer is right or it is refused", on thousands of random targets."""

ARMS = ("known", "sbc", "adversarial")
SETS = ("dev", "validation", "release")
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
