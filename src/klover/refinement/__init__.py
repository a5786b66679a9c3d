"""The automatic engine: draw, measure, decide, act, until the answer is good or is refused.

``refine`` is the door; ``rounds`` is the loop, ``stages`` decides, ``state`` is what one round hands to the next;
``start``, ``defence``, ``pool``, ``exploration``, ``completion``, ``escalation`` and ``aim`` are the acts;
``frugality`` fits them to a budget; ``progress`` tells, ``checkpoint`` stores. The numbers are in
:mod:`klover.tuning`. It imports ``results`` and what lies below; ``boosting`` is its neighbour, and ``paper`` and
``cli`` may import it.
"""
