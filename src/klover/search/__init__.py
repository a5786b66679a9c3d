"""Where the tops of the target are.

``climb`` is L-BFGS from many starts at once, ``curvature`` turns the Hessian at a top into a covariance, ``modes``
keeps the distinct tops and decides when enough starts were climbed. It imports ``importance`` and what lies below.
"""
