"""The automatic engine: draw, measure, decide, act, until the answer is good or is refused.

``refine`` is the door, ``preparation`` what is settled before the first round, ``start`` the first mixture, ``kept``
that of an update. ``rounds`` is the loop,
``stages`` decides, ``state`` is what one round hands to the next. A round draws from ``defence`` and keeps
its draws in ``pool``; ``exploration`` sends particles, ``chains`` and ``profile`` supply draws where weights cannot,
``coordinates`` and ``whitening`` choose where it all happens. ``answer`` is the end, ``completion`` its search for what
was missed, ``escalation`` the particles that take over, ``aim`` a proposal for one expectation. ``frugality`` fits the
work to a budget, ``thrift`` to a goal of effective draws, ``surrogate`` (with ``surrogate_model``) to the most
expensive densities. ``progress`` tells.

The numbers are in :mod:`klover.tuning`. It imports ``results`` and what lies below; ``boosting`` is its neighbour, and
``uses``, ``paper`` and ``cli`` may import it.
"""
