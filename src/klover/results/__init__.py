"""What a user gets: the fit, its table, its files, its pictures and its words.

``fit`` and ``summary`` are what one reads first; ``comparison`` weighs models, ``explanation`` words the verdict,
``datatree`` labels for ArviZ, ``files`` and ``codec`` store, ``plots``, ``html`` and ``report`` show. It imports
``verdict`` and what lies below; ``boosting``, ``refinement``, ``paper`` and ``cli`` may import it.
"""
