"""Where the tops of the target are, and what a proposal may have missed.

``climb`` is L-BFGS from many starts at once, ``curvature`` turns the Hessian at a top into a covariance, ``region``
says where to begin, ``modes`` keeps the distinct tops. ``missed`` searches for what a proposal does not cover:
``starts``, ``screen``, ``slopes`` and ``ladder`` are its parts, ``envelope`` and ``recall`` say how far to believe it;
``tails`` probes whether the target has an end. It imports ``importance`` and what lies below; ``verdict`` and above may
import it.
"""
