"""The numbers that the paper prints, as data: what the tables of this package stand beside.

A table without importance weights has the suffix ``-noIS``; in the paper these are in the appendix. ``EXACT`` is not
the paper's: it comes from a Gibbs sampler on the same twenty splits.
"""

from klover.paper.datasets import DATASETS

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

# Rows are the paper's, columns those of DATASETS; each pair is a mean and its standard error over the splits.
_ROWS = {
    "blr": {
        "hmc": ((-1.002, 0.012), (-2.923, 0.035), (-3.780, 0.013), (-2.923, 0.006)),
        "rkl-vi": ((-1.013, 0.013), (-2.947, 0.035), (-3.798, 0.013), (-2.921, 0.006)),
        "rkl-vb2": ((-1.014, 0.011), (-2.924, 0.033), (-3.787, 0.014), (-3.067, 0.003)),
        "rkl-vb3": ((-1.007, 0.012), (-2.945, 0.039), (-3.800, 0.015), (-3.073, 0.003)),
        "fkl-vi": ((-0.998, 0.012), (-2.905, 0.036), (-3.775, 0.014), (-2.920, 0.005)),
        "fkl-vb2": ((-0.998, 0.012), (-2.906, 0.036), (-3.762, 0.013), (-2.921, 0.006)),
        "fkl-vb3": ((-0.998, 0.013), (-2.904, 0.036), (-3.762, 0.013), (-2.921, 0.006)),
    },
    "bnn": {
        "hmc": ((-0.990, 0.014), (-2.709, 0.101), (-3.281, 0.017), (-2.817, 0.007)),
        "rkl-vi": ((-0.993, 0.014), (-2.858, 0.020), (-3.230, 0.015), (-2.851, 0.008)),
        "rkl-vb2": ((-0.990, 0.015), (-2.832, 0.018), (-3.253, 0.015), (-2.945, 0.009)),
        "rkl-vb3": ((-0.981, 0.012), (-2.744, 0.011), (-3.255, 0.017), (-3.002, 0.012)),
        "fkl-vi": ((-0.991, 0.015), (-2.677, 0.011), (-3.328, 0.019), (-2.872, 0.012)),
        "fkl-vb2": ((-0.979, 0.017), (-2.779, 0.012), (-3.193, 0.016), (-2.870, 0.008)),
        "fkl-vb3": ((-0.967, 0.014), (-2.801, 0.012), (-3.192, 0.016), (-2.851, 0.009)),
    },
    "heavy": {
        "hmc": ((-1.004, 0.012), (-2.962, 0.033), (-3.808, 0.026), (-2.916, 0.005)),
        "rkl-vi": ((-1.011, 0.013), (-2.924, 0.037), (-3.789, 0.013), (-2.924, 0.006)),
        "rkl-vb2": ((-1.007, 0.014), (-2.944, 0.031), (-3.788, 0.012), (-3.028, 0.003)),
        "rkl-vb3": ((-1.008, 0.012), (-2.940, 0.035), (-3.796, 0.014), (-3.005, 0.004)),
        "fkl-vi": ((-0.993, 0.013), (-2.904, 0.036), (-3.775, 0.014), (-2.940, 0.005)),
        "fkl-vb2": ((-0.973, 0.009), (-2.907, 0.035), (-3.773, 0.015), (-2.921, 0.006)),
        "fkl-vb3": ((-0.975, 0.009), (-2.906, 0.036), (-3.774, 0.015), (-2.922, 0.006)),
    },
    "blr-noIS": {
        "hmc3": ((-1.003, 0.012), (-2.923, 0.035), (-3.781, 0.013), (-2.942, 0.017)),
        "rkl-vi": ((-1.003, 0.012), (-2.924, 0.035), (-3.780, 0.013), (-2.921, 0.006)),
        "rkl-vb2": ((-1.003, 0.012), (-2.923, 0.035), (-3.781, 0.013), (-2.994, 0.004)),
        "rkl-vb3": ((-1.003, 0.012), (-2.924, 0.035), (-3.781, 0.013), (-2.972, 0.005)),
    },
    "bnn-noIS": {
        "hmc3": ((-0.988, 0.014), (-2.706, 0.093), (-3.279, 0.019), (-2.824, 0.017)),
        "rkl-vi": ((-0.991, 0.015), (-2.858, 0.019), (-3.230, 0.015), (-2.850, 0.009)),
        "rkl-vb2": ((-0.990, 0.015), (-2.835, 0.020), (-3.231, 0.015), (-2.943, 0.011)),
        "rkl-vb3": ((-0.983, 0.014), (-2.753, 0.015), (-3.232, 0.015), (-2.997, 0.011)),
    },
    "heavy-noIS": {
        "hmc3": ((-1.008, 0.012), (-3.085, 0.056), (-3.824, 0.023), (-2.942, 0.017)),
        "rkl-vi": ((-1.002, 0.012), (-2.915, 0.034), (-3.780, 0.013), (-2.923, 0.006)),
        "rkl-vb2": ((-1.001, 0.013), (-2.920, 0.034), (-3.780, 0.013), (-2.982, 0.003)),
        "rkl-vb3": ((-1.001, 0.013), (-2.920, 0.034), (-3.781, 0.013), (-2.961, 0.005)),
    },
}

PUBLISHED = {
    table: {method: dict(zip(DATASETS, pairs, strict=True)) for method, pairs in rows.items()}
    for table, rows in _ROWS.items()
}
"""Mean and standard error by table, method and data set."""

FIVE_SPLITS = frozenset((table, "hmc3", "power") for table in ("blr-noIS", "bnn-noIS", "heavy-noIS"))
"""Entries (table, method, data set) that the paper marks with an asterisk: 5 splits, where all others have 20."""

EXACT = {
    "blr": {
        "mean_of_logs": {"wine": -1.0026, "boston": -2.9236, "concrete": -3.7806, "power": -2.9233},
        "log_of_mean": {"wine": -0.9972, "boston": -2.9034, "concrete": -3.7738, "power": -2.9229},
    }
}
"""Means over the twenty splits under the exact posterior, by table, metric and data set."""

WALL_CLOCK = {"fkl-vi": 783.10, "rkl-vi": 862.93}
"""Seconds for one component and 200 gradient steps, Boston neural net, eight cores of a Xeon at 2.20 GHz."""

FAILURE_MODES = {
    "multimodality": {"VI": False, "IS": False, "VB": True, "AIS": True, "Ours": True},
    "heavy tails": {"VI": False, "IS": True, "VB": False, "AIS": True, "Ours": True},
    "covariance estimation": {"VI": False, "IS": True, "VB": False, "AIS": True, "Ours": True},
    "high dimension": {"VI": True, "IS": False, "VB": True, "AIS": False, "Ours": True},
}
"""What the paper's comparison of techniques (``tab:comp``) ticks; it does not explain its asterisk at the last one."""
