"""The log density to be covered, and where it comes from.

``target`` is the log density itself (``positions``: flat points and pytrees; ``check``: what can be wrong with it),
``evaluator`` calls it from the host and counts (``blocks`` of points, on several ``cores``; ``journal`` keeps them in a
file, and ``change`` tells whether it is that of another), ``model_info`` carries what a modelling language knows beside
it, ``loaded`` is the target of a fit that was loaded without it, ``approximations`` reads what users bring as a start,
and ``adapters`` turns other people's models into targets.
It imports ``base`` alone; every room above may import it.
"""
