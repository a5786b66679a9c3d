"""Models of other tools as targets, one module for each tool, imported where it is first asked for.

``numpyro``, ``pymc``, ``stan`` (with ``stan_program``, which compiles) and ``callback`` (any Python function) know
nothing of each other; ``host`` is what those share whose density JAX cannot trace.
"""
