"""How a mixture is fitted to weighted draws, or to a divergence.

``em`` maximises the weighted likelihood in closed form (the forward KL), ``adam`` descends any of ``divergences``,
``simplex`` finds the best weights of fixed components, and ``growth`` (with ``splits``) splits and deletes components
as held-out draws (``sample``) confirm. It imports ``importance`` and what lies below; ``search`` and ``sampling`` are
its neighbours, and every room from ``verdict`` upwards may import it.
"""
