"""The paper's algorithm, each of its choices an argument.

``settings`` names the choices, ``sources`` makes the draws of a round, ``start`` places a newcomer, ``newcomer`` fits
it, ``boost`` is the loop, and ``blackjax`` gives it the shape of that library. It imports ``results`` and what lies
below; ``refinement`` is its neighbour.
"""
