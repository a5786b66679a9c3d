"""Warps: invertible maps that make a posterior look like a Normal, each fitted in closed form to weighted draws.

``marginal``, ``linear`` and ``triangular`` are the layers, ``warp`` is their composition, ``warped`` a mixture behind
one. They follow from the forward KL as mixtures do, run on NumPy and under JAX, and have exact inverses and
log-determinants. They know mixtures; importance sampling and all above may use them.
"""
