import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from helpers import needs
from klover.boosting.settings import Settings
from klover.boosting.sources import BoostState, Draws
from klover.paper import figure_data, figures, simulations

pytestmark = needs("matplotlib")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Make the runs small: few components, draws and steps, and coarse grids."""
    for name, settings in vars(figure_data).copy().items():
        if isinstance(settings, Settings):
            chosen = {"max_components": min(settings.max_components, 3)}
            chosen["num_round_draws"] = min(settings.num_round_draws, 2000)
            chosen["num_steps"] = min(settings.steps, 200 if settings.divergence == "reverse" else 5)
            monkeypatch.setattr(figure_data, name, dataclasses.replace(settings, **chosen))
    monkeypatch.setattr(figure_data, "NUM_QUADRATURE_POINTS", 1001)
    monkeypatch.setattr(figure_data, "LOGPDF_ROUNDS", (1, 3))
    monkeypatch.setattr(figure_data, "RESIDUAL_ROUNDS", (1, 3))
    monkeypatch.setattr(figure_data, "RESIDUAL_GRID", 20)
    monkeypatch.setattr(figures, "DPI", 30)


def made_runs(name, settings, seeds):
    """Return states that nobody fitted, in place of runs that take long to compile: K components of growing width."""
    make, (lower, _) = figure_data.TARGETS[name]
    target, generator = make(), np.random.default_rng(0)
    states = []
    for number in range(1, settings.max_components + 1):
        variance = np.repeat(np.geomspace(1.0, 300.0, number)[:, None] ** 2, len(lower), axis=1)
        components = settings.family.components(np.zeros(variance.shape), variance)
        mixture = klover.Mixture.of(components)
        x = generator.normal(size=(50, len(lower)))
        log_p, log_q = np.asarray(target.log_prob(x)), np.asarray(mixture.log_prob(x))
        state = BoostState(mixture, Draws(x, log_p, log_q, log_q), mixture)
        states.append(jax.tree.map(lambda leaf: np.stack([np.asarray(leaf)] * len(seeds)), state))
    return states


def read(name, out):
    paths = figures.draw(name, out, seed=1, num_seeds=2)
    assert [path.name for path in paths] == [f"{name}.png", f"{name}.pdf", f"{name}.json"]
    assert sorted(out.iterdir()) == sorted(paths)
    assert all(path.stat().st_size > 0 for path in paths)
    numbers = json.loads(paths[-1].read_text(encoding="utf-8"))
    leaves = [leaf for leaf in jax.tree.leaves(numbers) if not isinstance(leaf, str)]
    assert np.isfinite(leaves).all()
    assert "seed" in numbers["caption"].lower()
    return numbers


@pytest.mark.parametrize("name", figures.FIGURES)
def test_each_figure_is_written_with_its_numbers(name, tmp_path, monkeypatch):
    monkeypatch.setattr(figure_data, "runs", made_runs)
    numbers = read(name, tmp_path / "made")
    if name.startswith("cauchy"):
        assert "[-1000, 1000]" in numbers["caption"]
    if name == "cauchy-boosting":
        assert "infinite" in numbers["caption"]
        # All seeds are the same run here: the band is as thin as the line.
        np.testing.assert_allclose(numbers["forward, Gaussians"]["low"], numbers["forward, Gaussians"]["high"])
    if name == "cauchy-logpdf":
        residual = np.array(numbers["log p"]) - numbers["K = 3"]["log q"]
        np.testing.assert_allclose(residual, numbers["K = 3"]["log p/q"], atol=1e-12)
    if name == "gmm20-residual":
        # Where both densities are next to nothing, the file has null.
        residual = np.array(numbers["K = 1"]["log p/q"], float)
        assert np.nanmax(np.abs(residual)) <= figure_data.RESIDUAL_LIMIT
    if name == "gmm20-moments":
        # One Gaussian at zero with unit variances: the error of its second moment is known.
        _, second = simulations.twenty_mode_moments()
        error = numbers["forward"]["moments of q"]["second moment"]["median"][0]
        assert error == pytest.approx(np.mean((1.0 - second) ** 2))


def test_forward_divergence_falls_as_components_are_added():
    # Only the newcomer is fitted: half as much to compile.
    settings = dataclasses.replace(figure_data.CAUCHY_FORWARD, weights="none", update="newcomer", draws="previous")
    states = figure_data.runs("cauchy", settings, range(2))
    values = np.array([figure_data.cut_forward_kl(state.mixture) for state in states])
    assert values.shape == (3, 2)
    assert (np.diff(values, axis=0) < 0).all()
    # One Gaussian: the best has the variance of the cut density, 636, and KL 2.125 by quadrature.
    np.testing.assert_allclose(values[0], 2.125, atol=0.03)


@pytest.mark.slow
def test_reverse_sits_on_a_mode_and_forward_covers_both(tmp_path):
    numbers = read("kl-comparison", tmp_path)
    # The forward Gaussian has the moments of the target: mean 0, variance 3² + 0.7².
    assert numbers["forward"]["mean"] == pytest.approx(0.0, abs=0.5)
    assert numbers["forward"]["sd"] == pytest.approx(np.sqrt(9.49), rel=0.1)
    assert abs(numbers["reverse"]["mean"]) == pytest.approx(3.0, abs=0.2)
    assert numbers["forward"]["KL(p|q)"] < numbers["reverse"]["KL(p|q)"]
    assert numbers["reverse"]["KL(q|p)"] < numbers["forward"]["KL(q|p)"]


@pytest.mark.slow
def test_cauchy_figures_show_forward_below_reverse(tmp_path):
    numbers = read("cauchy-boosting", tmp_path)
    student, forward, reverse = (
        np.array(numbers[name]["median"]) for name in ("forward, Student-t", "forward, Gaussians", "reverse, Gaussians")
    )
    assert (np.diff(forward) < 0).all()
    assert (student < forward).all()
    assert (forward < reverse).all()


@pytest.mark.slow
def test_twenty_mode_figures_show_forward_below_reverse(tmp_path):
    panels = read("gmm20-residual", tmp_path / "residual")
    assert panels["K = 3"]["KL(p|q)"] < panels["K = 1"]["KL(p|q)"]
    numbers = read("gmm20-moments", tmp_path / "moments")
    forward, reverse = (np.array(numbers[name]["KL(p|q)"]["median"]) for name in ("forward", "reverse"))
    assert forward[-1] < forward[0]
    assert (forward < reverse).all()


def test_twenty_mode_divergence_has_the_closed_form():
    variance = jnp.array([[6.0, 9.0]])
    mixture = klover.Mixture.of(klover.Family("normal", "diagonal").components(jnp.array([[4.0, 5.0]]), variance))
    first, second = simulations.twenty_mode_moments()
    distance = second - 2 * first * np.array([4.0, 5.0]) + np.array([16.0, 25.0])
    cross_entropy = np.sum(0.5 * np.log(2 * np.pi * np.asarray(variance[0])) + 0.5 * distance / np.asarray(variance[0]))
    x = np.asarray(simulations.TWENTY_MODE_LOCATIONS)[:, None] + 0.1 * np.random.default_rng(0).normal(
        size=(20, 5000, 2)
    )
    log_p = np.asarray(simulations.twenty_modes().log_prob(x.reshape(-1, 2)))
    error = log_p.std() / np.sqrt(log_p.size)
    assert float(simulations.twenty_mode_forward_kl(mixture)) == pytest.approx(
        log_p.mean() + cross_entropy, abs=5 * error
    )


def test_reverse_divergence_is_the_gaussian_one():
    target = klover.Target(lambda x: -0.5 * jnp.sum(x**2) - 0.5 * jnp.log(2 * jnp.pi), jnp.zeros(1))
    mixture = klover.Mixture.of(klover.Family("normal").components(jnp.array([[0.5]]), jnp.array([[0.25]])))
    # KL(N(m, s²) ‖ N(0, 1)) = -log s + (s² + m²) / 2 - 1/2.
    expected = np.log(2) + (0.25 + 0.25) / 2 - 0.5
    assert simulations.reverse_kl_by_quadrature(target, mixture, -9.0, 9.0) == pytest.approx(expected, rel=1e-8)


def test_bad_input_is_refused_at_once(tmp_path):
    with pytest.raises(
        ValueError, match="'kl-comparison', 'cauchy-boosting', 'cauchy-logpdf', 'gmm20-residual', 'gmm20-moments'"
    ):
        figures.draw("cauchy", tmp_path)
    with pytest.raises(ValueError, match="num_seeds"):
        figures.draw("cauchy-logpdf", tmp_path, num_seeds=0)
    assert not list(tmp_path.iterdir())
