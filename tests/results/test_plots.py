import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from helpers import gaussian, gaussian_mixture, judged
from klover.importance.islands import ParticleDraws
from klover.mixtures.algebra import marginal
from klover.results import plots, report
from klover.results.interest import interests
from klover.results.plots.posterior import SMALLEST_WEIGHT

plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(scope="module")
def two_modes():
    return klover.refine(jax.random.key(0), gaussian_mixture().target, num_draws=4000)


@pytest.fixture(scope="module")
def positive():
    """Return a fit of a positive quantity beside a plain one."""

    def logdensity(position):
        return -0.5 * position["a"] ** 2 + position["scale"] - jnp.exp(position["scale"])

    target = klover.Target(
        logdensity,
        {"a": 0.0, "scale": 0.0},
        constrain=lambda position: {"a": position["a"], "scale": jnp.exp(position["scale"])},
    )
    return klover.refine(jax.random.key(0), target, num_draws=4000)


@pytest.fixture
def axes():
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


PICTURES = {
    "marginal": lambda axes, fit: plots.plot_marginal(axes, fit, 0),
    "pair": lambda axes, fit: plots.plot_pair(axes, fit, 0, 1),
    "tail": plots.plot_tail,
    "weights": plots.plot_weights,
    "shares": lambda axes, fit: plots.plot_weight_shares(axes, fit, plots.FORWARD, "fit"),
    "residual": lambda axes, fit: plots.plot_residual(axes, fit, 0, 1),
    "quantities": plots.plot_quantity_tails,
    "plane": plots.plot_main_plane,
    "round": lambda axes, fit: plots.plot_history(axes, fit, "log_evidence"),
    "evaluations": lambda axes, fit: plots.plot_history(axes, fit, "pareto_k", "num_evaluations"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_returns_its_axes(two_modes, axes, name):
    assert PICTURES[name](axes, two_modes) is axes
    axes.figure.canvas.draw()
    assert axes.has_data()


@pytest.mark.parametrize("family", ["normal", "student", "student-diagonal", "normal-low-rank"])
def test_marginal_is_the_density_of_fewer_coordinates(family):
    covariance = gaussian(4).covariance
    components = klover.Family.parse(family).components(
        np.arange(8.0).reshape(2, 4), np.stack([covariance, covariance])
    )
    mixture = klover.Mixture.of(jax.tree.map(np.asarray, components))
    part = marginal(mixture, [2, 0])
    # The marginal of two coordinates, integrated over the second, is the marginal of the first.
    grid = np.linspace(-400, 400, 160_001)
    point = 1.3
    density = np.exp(part.log_prob(np.stack([np.full_like(grid, point), grid], axis=1)))
    expected = np.exp(marginal(mixture, [2]).log_prob(np.array([[point]])))[0]
    np.testing.assert_allclose(np.trapezoid(density, grid), expected, rtol=1e-5)


def test_ellipses_hold_half_of_their_component(axes):
    components = klover.Family("student", "full").components(
        np.array([[1.0, -1.0]]), np.array([[[2.0, 0.9], [0.9, 1.0]]])
    )
    mixture = klover.Mixture.of(jax.tree.map(np.asarray, components))
    x = mixture.draw(np.random.default_rng(0), 20_000)
    plots.plot_pair(axes, weighted(x, mixture, gaussian(2).target), 0, 1)
    (ellipse,) = axes.patches
    # A patch's path is the unit circle before its transform, and points go the same way back.
    unit = ellipse.get_patch_transform().inverted().transform(x)
    share = np.mean(np.sum(unit**2, axis=1) < 1)
    assert abs(share - 0.5) < 5 * np.sqrt(0.25 / len(x))


def test_light_components_are_left_out(two_modes, axes):
    plots.plot_pair(axes, two_modes, 0, 1)
    assert len(axes.patches) == np.sum(np.asarray(two_modes.mixture.weights) >= SMALLEST_WEIGHT)


def test_histogram_is_a_density(two_modes, axes):
    plots.plot_marginal(axes, two_modes, 0)
    (stairs,) = axes.patches
    values, edges, _ = stairs.get_data()
    np.testing.assert_allclose(np.sum(values * np.diff(edges)), 1.0, atol=0.01)


def test_tail_names_the_verdicts_number(two_modes, axes):
    plots.plot_tail(axes, two_modes)
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert f"fitted Pareto tail, k̂ = {two_modes.pareto_k:.2f}" in labels
    fitted = axes.lines[0]
    survival = axes.collections[0].get_offsets()[:, 1]
    assert fitted.get_ydata()[0] >= survival.max()


def test_residual_is_small_where_the_fit_is_good(two_modes, axes):
    plots.plot_residual(axes, two_modes, 0, 1)
    values = axes.collections[0].get_array().compressed()
    assert np.median(np.abs(values)) < 0.3


def test_residual_counts_draws_outside_the_support(two_modes, axes):
    draws = two_modes.draws
    draws = dataclasses.replace(draws, log_p=np.where(np.arange(draws.num_draws) % 2 == 0, draws.log_q, -np.inf))
    plots.plot_residual(axes, dataclasses.replace(two_modes, draws=draws), 0, 1)
    # Half of the draws have no weight and half have twice the mean: in every large cell the ratio is about one.
    values = axes.collections[0].get_array().compressed()
    assert abs(np.median(values)) < 0.2


def test_labels_say_what_is_not_on_the_readers_scale(positive, tmp_path):
    assert plots.label_of(positive, 0) == "a"
    assert plots.label_of(positive, 1) == "scale (unconstrained)"
    positive.save(tmp_path / "fit.klover")
    loaded = klover.load(tmp_path / "fit.klover")
    assert [plots.label_of(loaded, index) for index in range(2)] == ["a", "scale (unconstrained)"]


def test_history_names_what_it_can_show(two_modes, axes):
    with pytest.raises(ValueError, match="quantity must be one of 'ess_share'"):
        plots.plot_history(axes, two_modes, "drift")
    with pytest.raises(ValueError, match="against must be one of 'round'"):
        plots.plot_history(axes, two_modes, "ess_share", "seconds")


def test_figures_depend_on_what_there_is(two_modes):
    history = list(plots.HISTORY) if len(two_modes.history["round"]) > 1 else []
    made = report.figures(two_modes)
    assert list(made) == ["pairs", "tail", "quantities", "weights", "residual", *history]
    line = klover.refine(jax.random.key(0), klover.Target(lambda x: -0.5 * x**2, 0.0), num_draws=1000, budget=4000)
    made |= {f"{name} of a line": each for name, each in report.figures(line).items()}
    assert "residual of a line" not in made
    for figure, caption in made.values():
        assert caption.endswith(".")
        figure.canvas.draw()
        plt.close(figure)


def weighted(x, mixture, target):
    """Return a fit of draws whose weights are equal."""
    log_q = mixture.log_prob(x)
    weight, nothing = np.full(len(x), -np.log(len(x))), np.asarray(0)
    draws = klover.WeightedDraws(x, log_q, log_q, weight, np.asarray(0.0), nothing, nothing, target)
    return klover.Fit(target, mixture, draws, {}, judged(draws, mixture))


@pytest.fixture(scope="module")
def remarkable():
    """Return a fit whose coordinates are: dull, two peaks (and few draws), skewed, correlated, dull."""
    generator, num = np.random.default_rng(0), 4000
    x = generator.normal(size=(num, 6))
    x[:, 1] += 3 * generator.choice([-1, 1], num)
    x[:, 2] = generator.exponential(size=num)
    x[:, 4] = 0.9 * x[:, 3] + np.sqrt(1 - 0.81) * x[:, 4]
    centres = np.array([[0, -3, 1, 0, 0, 0], [0, 3, 1, 0, 0, 0.0]])
    components = klover.Family("normal", "diagonal").components(centres, np.ones((2, 6)))
    mixture = klover.Mixture.of(jax.tree.map(np.asarray, components))
    return weighted(x, mixture, klover.Target(lambda x: -0.5 * jnp.sum(x**2), np.zeros(6)))


def test_the_remarkable_comes_first(remarkable):
    found = interests(remarkable)
    words = {each.coordinate: each.words for each in found}
    assert {each.coordinate for each in found[:4]} == {1, 2, 3, 4}
    assert words[1] == "x[1] (two peaks)"
    assert words[2] == "x[2] (skewed to the right)"
    assert words[3].startswith("x[3] (correlation 0.8")
    assert words[3].endswith("with x[4])")
    assert {words[0], words[5]} == {"x[0]", "x[5]"}


def test_the_main_plane_shows_components_apart(remarkable, axes):
    plots.plot_main_plane(axes, remarkable)
    # The components differ in one coordinate; in units of its standard deviation they are 6 / sqrt(10) apart.
    assert axes.get_xlabel() == "1.00 x[1]"
    centres = sorted(float(ellipse.get_center()[0]) for ellipse in axes.patches)
    np.testing.assert_allclose(centres, [-3 / np.sqrt(10), 3 / np.sqrt(10)], atol=0.1)


def test_quantities_beyond_the_limit_stand_out(remarkable, axes):
    plots.plot_quantity_tails(axes, remarkable)
    names = [label.get_text() for label in axes.get_yticklabels()]
    order = np.argsort(-remarkable.summary().columns["pareto_k"], kind="stable")
    assert names[::-1] == [f"x[{place}]" for place in order]


def test_particles_have_no_weights_to_draw(two_modes):
    shared = {field.name: getattr(two_modes.draws, field.name) for field in dataclasses.fields(two_modes.draws)}
    shared["log_weight"] = np.full(two_modes.draws.num_draws, -np.log(two_modes.draws.num_draws))
    draws = ParticleDraws(**shared, island_log_evidence=np.array([0.1, 0.2]), drift=np.asarray(0.0))
    made = report.figures(dataclasses.replace(two_modes, draws=draws))
    assert "pairs" in made
    assert not {"tail", "weights", "residual"} & set(made)
    plt.close("all")


def test_report_is_one_page_for_all_screens(remarkable, tmp_path):
    path = report.write_report(tmp_path / "report.html", remarkable, "a <model>", "klover fit 'a b.py:model'")
    text = path.read_text(encoding="utf-8")
    assert "a &lt;model&gt;" in text
    assert remarkable.verdict.reason in text
    assert "klover fit &#x27;a b.py:model&#x27;" in text
    assert 'name="viewport"' in text
    assert "prefers-color-scheme: dark" in text
    assert all(source.startswith("data:image/png") for source in re.findall(r'src="([^"]{20})', text))
    assert not re.search(r"https?:|@import|url\(|<script|<link", text)
    names = {image.stem for image in (tmp_path / "figures").glob("*.png")}
    assert {"pairs", "marginals", "plane", "tail", "quantities", "weights", "residual"} == names
    assert "The posterior of 6 unknown numbers" in text
    assert "5 of 6 coordinates: x[" in text
    assert set(re.findall(r'href=["\']#(\w+)["\']', text)) <= set(re.findall(r'id="(\w+)"', text))
    for word in report.WORDS:
        assert f"<dt>{word}</dt>" in text


def test_draws_outside_the_support_are_drawn(tmp_path):
    target = klover.Target(lambda x: jnp.where(x[0] > 0, -0.5 * jnp.sum(x**2), -jnp.inf), jnp.ones(2))
    fit = klover.refine(jax.random.key(0), target, num_draws=2000)
    assert (tmp_path / "a.html") == report.write_report(tmp_path / "a.html", fit, "half a plane", "none")
