"""The proposal: mixtures of Normal or Student-t components.

``scale`` writes down covariance matrices, ``components`` adds locations and tails, ``mixture`` adds weights, and
``algebra`` makes mixtures out of mixtures (joined, inflated, widened, marginal). It imports ``base`` alone;
every room from ``importance`` upwards may import it.
"""
