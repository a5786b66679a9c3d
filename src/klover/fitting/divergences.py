r"""Divergences between target and mixture, each as a loss to minimise.

With an unnormalised :math:`\hat p` a *loss* differs from the divergence by a constant, which q does not enter:

- forward: the cross-entropy :math:`-\mathrm E_p\log q` is :math:`\mathrm{KL}(p\|q)` less the (negative) entropy of p;
- reverse: :math:`\mathrm E_q[\log q-\log\hat p]=\mathrm{KL}(q\|p)-\log Z`.

The number to report is :func:`klover.importance.ratios.forward_kl`, which does not move when a constant is added to
:math:`\log\hat p`. (The sum in the paper's Eq. 9, read with :math:`\hat p`, is :math:`\mathrm{KL}+\log Z`.)
"""

from klover.base.arrays import constant, namespace
from klover.base.shapes import AnyArray, Float, PerDraw, Scalar
from klover.importance.ratios import normalise

PAPER_LOG_EPSILON = -10.0
"""log ε of the paper's smoothed residual ("Stabilization of likelihood ratios").

Without it the search for a newcomer runs away into the tails of p/q.
"""


def forward_loss(log_ratio: PerDraw, log_q: PerDraw) -> Scalar:
    r"""Cross-entropy of q under self-normalised weights.

    .. math:: -\sum_s w_s\log q(\theta_s),\qquad w_s\propto\hat p(\theta_s)/g(\theta_s),\quad\theta_s\sim g.

    The proposal g is q_{i-1} (Eq. 12, ``eq:old_mixture``), q_i (Eq. 11, ``eq:new_mixture``) or the newcomer f_i. The
    log-ratios :math:`\log\hat p-\log g` are held constant.
    """
    xp = namespace(log_ratio, log_q)
    weight = xp.exp(normalise(constant(log_ratio)))
    return -xp.sum(xp.where(weight > 0, weight * xp.where(weight > 0, log_q, 0.0), 0.0))


def reverse_loss(log_p: PerDraw, log_q: PerDraw) -> Scalar:
    r"""Mean of :math:`\log q-\log\hat p` over draws of q (Eq. 4, ``eq:rkl``), the negative ELBO."""
    return namespace(log_p, log_q).mean(log_q - log_p)


def forward_remainder_loss(log_p: PerDraw, log_previous: PerDraw, log_g: PerDraw, log_f: PerDraw) -> Scalar:
    r"""Cross-entropy of the newcomer under the remainder :math:`r=p/q_{i-1}`, for :math:`\mathrm{KL}(r\|f_i)`.

    Draws of the proposal g carry weights :math:`\hat p/(q_{i-1}\,g)`. The remainder need not be integrable; then the
    loss is what the draws make of it.
    """
    return forward_loss(log_p - log_previous - log_g, log_f)


def reverse_remainder_loss(log_p: PerDraw, log_previous: PerDraw, log_f: PerDraw) -> Scalar:
    r"""Mean of :math:`\log(q_{i-1}/\hat p)+\log f_i` over draws of f: :math:`\mathrm{KL}(f_i\|p/q_{i-1})` up to log Z.

    The second term is the entropy regularisation that other boosting methods add by hand (Eq. 19-21).
    """
    return reverse_loss(log_p - log_previous, log_f)


def smoothed(log_density: Float[AnyArray, "*draw"], log_epsilon: float | None) -> Float[AnyArray, "*draw"]:
    r"""Return :math:`\log(q+\epsilon)` (Eq. 17), or the log density itself where ``log_epsilon`` is None.

    The paper adds ε to p and q in the log-residual. That is biased, and with an unnormalised p̂ it depends on the
    constant; callers normalise p first, so that ε has a meaning.
    """
    if log_epsilon is None:
        return log_density
    return namespace(log_density).logaddexp(log_density, log_epsilon)
