"""The log density to be covered, and where it comes from.

``target`` is the log density itself, ``evaluator`` calls it from the host and counts, ``model_info`` carries what a
modelling language knows beside the density, ``loaded`` stands in for a target whose functions were not stored,
``approximations`` reads what users bring as a start, and ``adapters`` turns other people's models into targets.
It imports ``base`` alone; every room above may import it.
"""
