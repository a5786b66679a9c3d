"""The automatic engine: draw, measure, decide, act, until the answer is good or is refused.

``refine`` is the door; ``rounds`` is the loop, ``stages`` decides, ``tuning`` holds every number, ``state`` is what one
round hands to the next; ``start``, ``defence``, ``pool``, ``exploration``, ``escalation`` and ``aim`` are the acts;
``checkpoint`` stores. It imports ``results`` and what lies below; ``boosting`` is its neighbour.
"""
