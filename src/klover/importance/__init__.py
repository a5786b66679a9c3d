"""Importance sampling: from log-ratios to weights, expectations, the evidence and the tail index.

``ratios`` holds the formulas, ``psis`` computes k̂ and smooths weights, ``control_variates`` sharpens the evidence,
``resampling`` makes equally weighted draws, ``draws`` and ``islands`` are the records that answers rest on.
It imports ``base``, ``targets`` and ``mixtures``; every room from ``fitting`` upwards may import it.
"""
