"""Markov moves that carry draws of a mixture to the target.

``hamiltonian`` moves particles on the host with a metric for each component, ``tempering`` chooses the temperatures
between a mixture and the target, and ``swarm`` does both under JAX for many islands at once. It imports ``importance``
and what lies below; ``fitting`` and ``search`` are its neighbours, and every room from ``verdict`` upwards may import
it.
"""
