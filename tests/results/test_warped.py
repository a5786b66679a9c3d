"""A fit behind a warp can do all that a fit can do."""

import os
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from helpers import damage, needs
from klover.base.checks import DamagedFile
from klover.results import plots, report
from klover.warps.warped import WarpedMixture

DIM, SCALE = 5, 3.0


def logdensity(position):
    """Return that of a funnel; its log evidence is 0."""
    v, x = position["v"], position["x"]
    log_lead = jax.scipy.stats.norm.logpdf(v, 0.0, SCALE)
    return log_lead + jax.scipy.stats.norm.logpdf(x, 0.0, jnp.exp(0.5 * v)).sum()


def make_target():
    return klover.Target(logdensity, {"v": 0.0, "x": np.zeros(DIM - 1)})


@pytest.fixture(scope="module")
def fit():
    fit = klover.refine(0, make_target())
    assert isinstance(fit.mixture, WarpedMixture)
    return fit


@pytest.fixture
def axes():
    plt = pytest.importorskip("matplotlib.pyplot")
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


def test_the_answer_is_right(fit):
    assert fit.verdict.trusted
    assert abs(fit.log_evidence) < 5 * fit.log_evidence_se
    value, error = fit.draws.expectation(lambda position: jnp.stack([position["v"], position["v"] ** 2]))
    np.testing.assert_array_less(np.abs(np.asarray(value) - [0.0, SCALE**2]), 5 * np.asarray(error))


def test_stored_densities_are_those_of_the_proposal(fit):
    x = np.asarray(fit.draws.x)
    np.testing.assert_allclose(fit.mixture.log_prob(x), fit.draws.log_q, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("has_target", [True, False])
def test_it_comes_back_from_a_file(fit, has_target, tmp_path):
    path = tmp_path / "fit.klover"
    fit.save(path)
    assert os.listdir(tmp_path) == ["fit.klover"]
    again = klover.load(path, fit.target if has_target else None)
    assert isinstance(again.mixture, WarpedMixture)
    assert str(again.summary()) == str(fit.summary())
    assert jax.tree.structure(again.mixture) == jax.tree.structure(fit.mixture)
    for leaf, expected in zip(jax.tree.leaves(again.mixture), jax.tree.leaves(fit.mixture), strict=True):
        np.testing.assert_array_equal(leaf, expected)
    x = np.asarray(fit.draws.x)
    np.testing.assert_array_equal(again.mixture.log_prob(x), fit.mixture.log_prob(x))


def test_damaged_files_are_refused_or_read_as_they_were(fit, tmp_path):
    path = tmp_path / "fit.klover"
    fit.save(path)
    expected, num_refused = str(fit.summary()), 0
    for changed in damage(path.read_bytes(), 60):
        path.write_bytes(changed)
        try:
            again = klover.load(path)
        except DamagedFile:
            num_refused += 1
            continue
        assert str(again.summary()) == expected
        for leaf, other in zip(jax.tree.leaves(again.mixture), jax.tree.leaves(fit.mixture), strict=True):
            np.testing.assert_array_equal(leaf, other)
    assert num_refused > 30


def test_it_can_be_pickled(fit):
    again = pickle.loads(pickle.dumps(fit.mixture))
    x = np.asarray(fit.draws.x[:50])
    np.testing.assert_array_equal(again.log_prob(x), fit.mixture.log_prob(x))


@pytest.mark.parametrize("key", [1, jax.random.key(1)], ids=["number", "key"])
def test_more_draws_have_the_same_evidence(fit, key):
    draws = fit.importance(key, 4000)
    assert draws.num_draws == 4000
    assert abs(float(draws.log_evidence)) < 5 * float(draws.log_evidence_se)
    np.testing.assert_allclose(draws.log_p, jax.vmap(fit.target.log_prob)(jnp.asarray(draws.x)), rtol=1e-9, atol=1e-9)


def test_more_draws_can_be_made_in_a_compiled_function(fit):
    draws = jax.jit(lambda key: fit.importance(key, 2000))(jax.random.key(1))
    assert abs(float(draws.log_evidence)) < 5 * float(draws.log_evidence_se)


def test_a_fit_goes_on_from_it(fit):
    again = klover.refine(1, make_target(), start=fit)
    assert again.verdict.trusted
    assert abs(again.log_evidence) < 5 * again.log_evidence_se
    # It begins where the other one ended: the first round is good already.
    assert again.history["ess_share"][0] > 0.5
    assert again.num_evaluations < fit.num_evaluations
    if len(again.history["round"]) == 1:
        jax.tree.map(np.testing.assert_array_equal, again.mixture.warp, fit.mixture.warp)


def test_a_fit_goes_on_from_one_that_was_read(fit, tmp_path):
    fit.save(tmp_path / "fit.klover")
    direct, stored = (
        klover.refine(1, make_target(), start=each) for each in (fit, klover.load(tmp_path / "fit.klover"))
    )
    np.testing.assert_array_equal(stored.draws.x, direct.draws.x)


def test_boosting_does_not_go_on_from_it(fit):
    with pytest.raises(TypeError, match="start must be a mixture, got one behind a warp"):
        klover.boost(0, make_target(), start=fit)


def test_it_is_summed_up(fit):
    text = str(fit.summary())
    assert text.splitlines()[1].startswith("v ")
    assert "trusted" in text
    assert f"components     {int(fit.mixture.num_components)}" in text
    assert "Trusted" in str(klover.explain(fit))
    posterior = fit.posterior(500)
    assert {name: values.shape for name, values in posterior.items()} == {"v": (500,), "x": (500, DIM - 1)}


@needs("xarray")
def test_it_becomes_a_tree(fit):
    tree = fit.to_datatree(200)
    assert tree.attrs["verdict"] == "trusted"
    assert tree.attrs["num_components"] == int(fit.mixture.num_components)
    assert tree["posterior"]["x"].shape == (1, 200, DIM - 1)


def test_marginals_of_the_proposal_are_those_of_its_draws(fit, axes):
    plots.plot_marginal(axes, fit, 0)
    posterior, proposal = (patch.get_data() for patch in axes.patches)
    np.testing.assert_array_equal(posterior.edges, proposal.edges)
    width = np.diff(proposal.edges)
    assert 0.95 < proposal.values @ width <= 1.0
    # The proposal is near the posterior: half of the absolute difference is small.
    assert 0.5 * np.abs(proposal.values - posterior.values) @ width < 0.15


def test_pairs_have_lines_instead_of_ellipses(fit, axes):
    plots.plot_pair(axes, fit, 0, 1)
    assert not axes.patches
    *_, contours = axes.collections
    half, most = sorted(contours.get_paths(), key=lambda path: np.ptp(path.vertices[:, 0]))
    # What holds 95 % reaches further than what holds half, and is wide where the funnel is.
    assert np.ptp(half.vertices[:, 0]) < np.ptp(most.vertices[:, 0])
    right, left = (most.vertices[most.vertices[:, 0] * sign > 3.0, 1] for sign in (1.0, -1.0))
    assert np.abs(left).max() < 0.5 * np.abs(right).max()


def test_a_report_says_what_its_lines_are(fit, tmp_path):
    pytest.importorskip("matplotlib")
    text = report.write_report(tmp_path / "fit.html", fit, "a funnel", "none").read_text()
    assert "its lines hold half and 95 % of its mass: it is a mixture behind a warp" in text
    assert "ellipse" not in text
