r"""A control variate for the evidence: what the proposal's own components explain of the ratios.

Under q itself the responsibility :math:`\rho_k=\lambda_kf_k/q` has the mean :math:`\lambda_k`, exactly. What a
combination of them explains of the ratios r = p̂/q is then known without error, and only the rest is left to chance
(Owen & Zhou 2000). With the least-squares coefficients b of :math:`r/\bar r` on them,

.. math:: c_s=\sum_kb_k(\rho_k(\theta_s)-\lambda_k),\qquad \hat Z=\bar r\,\Big(1-\frac1S\sum_sc_s\Big).

On the regressions of the paper and on its twenty modes this halves the standard error of the log evidence, as four
times the draws would; over 120 answers the true errors were as large as the stated ones. It knows nothing of ratios
that no draw has shown: on ten independent Cauchys the true errors are 1.4 times the stated ones (1.04 times without c,
where the stated ones are larger).
"""

from klover.base.arrays import logsumexp, namespace, over_blocks
from klover.base.linalg import solve_positive
from klover.base.shapes import PerDraw, Points
from klover.warps.warped import Proposal

FEWEST_DRAWS = 20
"""A component with fewer expected draws than this is left out of the fit: it could only fit their noise."""
LARGEST_MEAN = 0.5
"""The true mean of c is 0: where its mean over the draws is larger than this, it is not used."""


def control(mixture: Proposal, x: Points, log_q: PerDraw, log_p: PerDraw) -> PerDraw:
    """Fit the control variate c at draws of a mixture; zero where it cannot be fitted."""
    xp = namespace(x, log_q, log_p, mixture.log_weights)
    num_draws = x.shape[0]
    # Divided by the roots of their weights all have means of squares below one, and solving loses no digits.
    root = xp.where(num_draws * mixture.weights >= FEWEST_DRAWS, xp.sqrt(mixture.weights), 0.0)[:, None]

    def of_block(points, log_density):
        return xp.exp(mixture.component_log_prob(points) - log_density)

    # Of a slot that is not used the density may be anything.
    relative = xp.concatenate(over_blocks(of_block, x, log_q), axis=1)
    explaining = xp.where(root > 0, root * relative, 0.0)
    log_ratio = log_p - log_q
    total = logsumexp(log_ratio)
    ratio = num_draws * xp.exp(log_ratio - xp.where(total > -xp.inf, total, 0.0))
    ridge = xp.sqrt(xp.finfo(explaining.dtype).eps) * xp.eye(mixture.capacity, dtype=explaining.dtype)
    product, right = explaining @ explaining.T / num_draws, explaining @ ratio / num_draws
    coefficient = solve_positive(product + ridge, right[:, None])[:, 0]
    found = coefficient @ (explaining - root)
    return xp.where(xp.abs(xp.mean(found)) < LARGEST_MEAN, found, 0.0)
