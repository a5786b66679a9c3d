"""pypmc: population Monte Carlo with Student-t mixtures, fitted by weighted EM (GPL-2; an optional peer).

pypmc leaves the numbers of components and draws to its users; they are updated as its guide does. A round has as many
draws as the components have need of.
"""

import jax
import numpy as np
import scipy.optimize
from pypmc.density.mixture import create_t_mixture
from pypmc.mix_adapt.pmc import student_t_pmc
from pypmc.sampler.importance_sampling import ImportanceSampler, combine_weights

from benchmarks.peers import Answer, judge_weights

SETTINGS = {
    "default": {"num_components": 20, "num_rounds": 10, "num_draws": 1000},
    "tuned": {"num_components": 40, "num_rounds": 20, "num_draws": 2500},
}
DF, FEWEST_DRAWS, DRAWS_PER_COORDINATE = 5.0, 20, 5


def prepare(task, num_components, num_rounds, num_draws):
    log_p = jax.jit(task.log_prob)
    slope = jax.jit(jax.grad(lambda x: -task.log_prob(x)))

    def begin(seed):
        """Return centres and covariances of the first components, and the height that weights are counted from.

        pypmc's weights are on the linear scale, and over- or underflow without a height near the top.
        """
        starts = task.starts(seed, num_components)
        if task.target.box is not None:
            # As wide as a component's share of the box; narrower ones lost modes.
            spread = np.ptp(task.target.box, axis=0) / num_components ** (1 / task.dim)
            return starts, [np.diag(spread**2)] * num_components, max(float(log_p(start)) for start in starts)
        top = scipy.optimize.minimize(lambda x: -float(log_p(x)), starts[0], jac=lambda x: np.asarray(slope(x)))
        covariance = 0.5 * (top.hess_inv + top.hess_inv.T) + 1e-12 * np.eye(task.dim)
        centres = np.random.default_rng(seed).multivariate_normal(top.x, covariance, num_components)
        return centres, [covariance] * num_components, -float(top.fun)

    def updated(sampler, origin):
        try:
            return student_t_pmc(
                sampler.samples[-1],
                sampler.proposal,
                sampler.weights[-1][:, 0],
                latent=origin,
                mincount=FEWEST_DRAWS,
                copy=True,
            )
        except (ValueError, RuntimeError, np.linalg.LinAlgError):  # it has no use for these draws: go on as before
            return sampler.proposal

    def solve(seed):
        np.random.seed(seed)  # noqa: NPY002 - pypmc draws with NumPy's global generator
        centres, covariances, height = begin(seed)
        weights = np.full(num_components, 1 / num_components)
        proposal = create_t_mixture(centres, covariances, [DF] * num_components, weights)
        sampler = ImportanceSampler(lambda x: float(log_p(x)) - height, proposal)
        num = max(num_draws, DRAWS_PER_COORDINATE * num_components * task.dim)
        proposals = [proposal]
        for number in range(num_rounds):
            origin = sampler.run(num, trace_sort=True)
            if number < num_rounds - 1:
                sampler.proposal = updated(sampler, origin)
                proposals.append(sampler.proposal)
        combined = combine_weights(list(sampler.samples), [each[:, 0] for each in sampler.weights], proposals)
        weight = combined[:][:, 0]
        with np.errstate(divide="ignore"):
            log_weight = np.log(weight)
        return Answer(
            np.concatenate(list(sampler.samples)),
            log_weight,
            float(np.log(weight.mean()) + height),
            num_evaluations=num_rounds * num + num_components,
            complaint=judge_weights(log_weight)[1],
        )

    return solve
