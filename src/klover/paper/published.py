"""The numbers that the paper prints (``data/published.json``): what the tables of this package stand beside.

A table without importance weights has the suffix ``-noIS``; in the paper these are in the appendix. ``EXACT`` is not
the paper's: it comes from a Gibbs sampler on the same twenty splits.
"""

import json

from klover.paper.datasets import read_shipped

DISPLAY = {
    "hmc": "HMC",
    "hmc3": "HMC 3 chains",
    "nuts": "NUTS",
    "is-prior": "IS from the prior",
    "is-laplace": "IS from Laplace",
    "adaptive-is": "adaptive IS",
    "rkl-vi": "RKL VI",
    "rkl-vb2": "RKL VB 2",
    "rkl-vb3": "RKL VB 3",
    "fkl-vi": "FKL VI",
    "fkl-vb2": "FKL VB 2",
    "fkl-vb3": "FKL VB 3",
    "fkl-remainder": "FKL remainder",
    "fkl-hmc": "FKL + HMC",
    "fkl-em": "FKL by EM",
    "refine": "refine",
}
"""What a table calls each method, in the order of its rows."""

CHAINS = ("hmc", "hmc3", "nuts")
"""Methods that sample the target itself, and so have no importance weights."""

_NUMBERS = json.loads(read_shipped("published.json"))

PUBLISHED = {
    table: {method: dict(zip(_NUMBERS["columns"], map(tuple, row), strict=True)) for method, row in rows.items()}
    for table, rows in _NUMBERS["tables"].items()
}
"""Mean and standard error by table, method and data set."""

FIVE_SPLITS = frozenset((table, "hmc3", "power") for table in ("blr-noIS", "bnn-noIS", "heavy-noIS"))
"""Entries (table, method, data set) that the paper marks with an asterisk: 5 splits, where all others have 20."""

EXACT = _NUMBERS["exact"]
"""Means over the twenty splits under the exact posterior, by table, metric and data set."""

WALL_CLOCK = _NUMBERS["wall_clock"]
"""Seconds for one component and 200 gradient steps, Boston neural net, eight cores of a Xeon at 2.20 GHz."""

FAILURE_MODES = _NUMBERS["failure_modes"]
"""What the paper's comparison of techniques (``tab:comp``) ticks; it does not explain its asterisk at the last one."""
