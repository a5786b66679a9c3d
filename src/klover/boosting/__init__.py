"""The paper's algorithm, each of its choices an option of ``boost``.

``settings`` holds the options, ``sources`` makes the draws of a round, ``placement`` says where a newcomer begins,
``newcomer`` fits it, ``rounds`` is the loop, ``boost`` the door, and ``blackjax`` gives it the shape of that library.
It imports ``results`` and what lies below; ``paper`` and ``cli`` may import it, and ``refinement`` is its neighbour.
"""
