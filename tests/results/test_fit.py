import csv

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from helpers import compilations, judged, linear_regression, needs
from klover.importance import psis
from klover.importance.draws import sample_importance, weigh
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.results.fit import Fit, load
from klover.results.summary import weighted_quantile
from klover.targets.target import Target

COLUMNS = ["mean", "sd", "5%", "95%", "mcse", "ess", "pareto_k"]


def make_fit(target: Target, mean, covariance, num_draws: int = 3000) -> Fit:
    components = Family("student", df=5.0).components(jnp.asarray(mean)[None], jnp.asarray(covariance)[None])
    mixture = Mixture.of(components).with_capacity(2)
    draws = sample_importance(jax.random.key(0), target, mixture, num_draws)
    return Fit(target, mixture, draws, {}, judged(draws, mixture))


@pytest.fixture(scope="module")
def known():
    return linear_regression()


@pytest.fixture(scope="module")
def fit(known):
    return make_fit(known.target, known.mean + 0.02, 1.3 * known.covariance)


def test_columns_are_what_they_say(fit):
    columns = fit.summary().columns
    assert list(columns) == COLUMNS
    weight, x = np.exp(np.asarray(fit.draws.log_weight)), np.asarray(fit.draws.x)
    for place in range(3):
        value = x[:, place]
        mean = np.average(value, weights=weight)
        variance = np.average((value - mean) ** 2, weights=weight)
        error = np.sqrt(np.sum((weight * (value - mean)) ** 2))
        order = np.argsort(value)
        cumulative = np.cumsum(weight[order])
        tail = psis.pareto_k(np.asarray(fit.draws.log_ratio) + np.log(np.abs(value - mean)))
        expected = {
            "mean": mean,
            "sd": np.sqrt(variance),
            "5%": value[order][np.argmax(cumulative >= 0.05)],
            "95%": value[order][np.argmax(cumulative >= 0.95)],
            "mcse": error,
            "ess": variance / error**2,
            "pareto_k": tail,
        }
        for name in COLUMNS:
            np.testing.assert_allclose(columns[name][place], expected[name], rtol=1e-8, err_msg=name)


def test_columns_agree_with_the_posterior(fit, known):
    columns, scale = fit.summary().columns, np.sqrt(np.diagonal(known.covariance))
    assert np.all(np.abs(columns["mean"] - known.mean) < 5 * columns["mcse"])
    assert np.all(np.abs(columns["sd"] / scale - 1) < 5 / np.sqrt(fit.ess))
    for level, name in ((0.05, "5%"), (0.95, "95%")):
        z = scipy.stats.norm.ppf(level)
        error = scale * np.sqrt(level * (1 - level) / fit.ess) / scipy.stats.norm.pdf(z)
        assert np.all(np.abs(columns[name] - (known.mean + z * scale)) < 5 * error)


def test_columns_are_on_the_constrained_scale():
    # x is Normal(0.5, 0.3), so its exponential is log-normal.
    target = Target(
        lambda position: -0.5 * ((position["log_rate"] - 0.5) / 0.3) ** 2,
        {"log_rate": 0.0},
        constrain=lambda position: {"rate": jnp.exp(position["log_rate"])},
    )
    summary = make_fit(target, [0.5], [[0.09]]).summary()
    law = scipy.stats.lognorm(0.3, scale=np.exp(0.5))
    assert summary.names == ("rate",)
    assert abs(summary.columns["mean"][0] - law.mean()) < 5 * summary.columns["mcse"][0]
    for level, name in ((0.05, "5%"), (0.95, "95%")):
        error = np.sqrt(level * (1 - level) / summary.figures["ess"]) / law.pdf(law.ppf(level))
        assert abs(summary.columns[name][0] - law.ppf(level)) < 5 * error


def test_figures_and_text(fit):
    summary = fit.summary()
    assert summary.names == ("intercept", "slope[0]", "slope[1]")
    assert summary.figures == {
        "kind": "importance",
        "log_evidence": fit.log_evidence,
        "log_evidence_se": fit.log_evidence_se,
        "ess": fit.ess,
        "ess_share": fit.ess / 3000,
        "num_draws": 3000,
        "pareto_k": fit.pareto_k,
        "num_components": 1,
    }
    lines = str(summary).split("\n")
    assert lines[0].split() == ["quantity", *COLUMNS]
    for line, name, mean in zip(lines[1:4], summary.names, summary.columns["mean"], strict=True):
        assert line.split()[0] == name
        assert float(line.split()[1]) == pytest.approx(mean, rel=1e-3)
    assert len({len(line) for line in lines[:4]}) == 1
    assert lines[-1] == f"verdict        {fit.verdict}"
    assert "trusted" in lines[-1]
    assert f"{fit.log_evidence:.3f} ± {fit.log_evidence_se:.3f}" in str(summary)
    assert repr(fit) == "Fit(dim=3, num_components=1, trusted)"


def test_numbers_of_the_fit_are_those_of_its_draws(fit, known):
    assert fit.log_evidence == float(fit.draws.log_evidence)
    assert fit.log_evidence_se == float(fit.draws.log_evidence_se)
    assert fit.ess == float(fit.draws.ess)
    assert fit.pareto_k == float(fit.draws.pareto_k)
    assert abs(fit.log_evidence - known.log_evidence) < 5 * fit.log_evidence_se


def test_more_draws(fit, known, getkey):
    key = getkey()
    draws = fit.importance(key, 5000)
    assert draws.num_draws == 5000
    assert abs(draws.log_evidence - known.log_evidence) < 5 * draws.log_evidence_se
    np.testing.assert_array_equal(draws.x, fit.importance(key, 5000).x)
    assert not np.any(np.isin(draws.x, fit.draws.x))
    with pytest.raises(ValueError, match="num_draws must be a whole number of at least 2"):
        fit.importance(key, 1)


@pytest.fixture(scope="module")
def rates():
    """Return a fit of a log-normal rate and of two weights."""
    target = Target(
        lambda at: -0.5 * (((at["log_rate"] - 0.5) / 0.3) ** 2 + jnp.sum(at["weight"] ** 2)),
        {"log_rate": 0.0, "weight": np.zeros(2)},
        constrain=lambda at: {"rate": jnp.exp(at["log_rate"]), "weight": at["weight"]},
    )
    spread = np.array([[0.1, 1.2, 1.2]])
    mixture = Mixture.of(Family("normal").components(np.array([[0.5, 0.0, 0.0]]), spread))
    draws = sample_importance(0, target, mixture, 4000)
    return Fit(target, mixture, draws, {}, judged(draws, mixture))


def test_posterior_draws_are_named_and_constrained(rates):
    values = rates.posterior(2000)
    assert {name: array.shape for name, array in values.items()} == {"rate": (2000,), "weight": (2000, 2)}
    assert all(isinstance(array, np.ndarray) for array in values.values())
    law = scipy.stats.lognorm(0.3, scale=np.exp(0.5))
    assert abs(values["rate"].mean() - law.mean()) < 5 * law.std() * np.sqrt(1 / 2000 + 1 / rates.ess)
    for key in (0, jax.random.key(0)):
        np.testing.assert_array_equal(rates.posterior(2000, key)["rate"], values["rate"])
    assert np.any(rates.posterior(2000, 1)["rate"] != values["rate"])
    assert len(rates.posterior()["rate"]) == 4000


DRAWING = {
    "importance": lambda fit, key: fit.importance(key, 50).x,
    "resample": lambda fit, key: fit.draws.resample(key, 50)["rate"],
    "resample_unconstrained": lambda fit, key: fit.draws.resample_unconstrained(key, 50),
    "initial_positions": lambda fit, key: fit.draws.initial_positions(key, 4)["weight"],
    "posterior": lambda fit, key: fit.posterior(50, key)["weight"],
    "to_pandas": lambda fit, key: fit.to_pandas(50, key).to_numpy(),
    "to_datatree": lambda fit, key: fit.to_datatree(50, key)["posterior"]["rate"].to_numpy(),
    "sample": lambda fit, key: fit.mixture.sample(key, 5),
    "sample_and_log_prob": lambda fit, key: fit.mixture.sample_and_log_prob(key, 5)[1],
}


@needs("pandas", "xarray")
@pytest.mark.parametrize("draw", DRAWING.values(), ids=DRAWING)
def test_a_whole_number_is_a_key_wherever_there_is_one(rates, draw):
    expected = draw(rates, jax.random.key(5))
    for seed in (5, np.int64(5)):
        np.testing.assert_array_equal(draw(rates, seed), expected)
    assert np.any(np.asarray(draw(rates, 6)) != np.asarray(expected))


def test_posterior_draws_as_a_table(rates):
    pandas = pytest.importorskip("pandas")
    table = rates.to_pandas(500, key=3)
    assert isinstance(table, pandas.DataFrame)
    assert list(table.columns) == list(rates.target.names) == ["rate", "weight[0]", "weight[1]"]
    values = rates.posterior(500, key=3)
    np.testing.assert_array_equal(table["rate"], values["rate"])
    np.testing.assert_array_equal(table["weight[1]"], values["weight"][:, 1])


def test_posterior_draws_of_a_fit_that_was_loaded_without_its_target(rates, tmp_path):
    rates.save(tmp_path / "fit.klover")
    again = load(tmp_path / "fit.klover")
    np.testing.assert_array_equal(again.posterior(100, 2)["weight"], rates.posterior(100, 2)["weight"])
    np.testing.assert_array_equal(again.posterior(100, 2)["rate"], rates.posterior(100, 2)["rate"])


def test_summaries_and_draws_of_a_positive_quantity_share_one_program(rates):
    jax.clear_caches()
    key = jax.random.key(0)
    with compilations() as programs:
        rates.summary()
        rates.posterior(100, key)
        rates.posterior(1500, key)
        rates.draws.initial_positions(key, 3, constrained=True)
    assert programs == ["jit(_positions)"]


def standard_normal_fit(target: Target, num_draws: int = 100) -> Fit:
    """Weight draws of a standard Normal, made by NumPy: only the weighting is compiled."""
    mixture = Mixture.of(Family("normal").components(np.zeros((1, target.dim)), np.ones((1, target.dim))))
    x = np.random.default_rng(0).normal(size=(num_draws, target.dim))
    draws = weigh(target, x, mixture.log_prob(x))
    return Fit(target, mixture, draws, {}, judged(draws, mixture))


def test_long_tables_are_cut():
    text = str(standard_normal_fit(Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(45))).summary())
    assert "x[39] " in text
    assert "x[40]" not in text
    assert "\n... and 5 more\n" in text


def test_notebooks_show_the_table_and_the_verdict(fit):
    summary = fit.summary()
    page = summary._repr_html_()
    for text in ("intercept", "slope[1]", *COLUMNS, "<b>trusted</b>", fit.verdict.reason, f"{fit.log_evidence:.3f}"):
        assert text in page
    assert page.count("<tr>") == 4
    assert "background" not in page


def test_notebooks_show_names_as_they_are():
    target = Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(45), names=["<script>"] + [f"x{i}" for i in range(44)])
    page = standard_normal_fit(target).summary()._repr_html_()
    assert "&lt;script&gt;" in page
    assert "<script>" not in page
    assert "and 5 more" in page


def test_csv_holds_everything(tmp_path):
    target = Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(45), names=['a,"b"'] + [f"x{i}" for i in range(44)])
    summary = standard_normal_fit(target).summary()
    summary.to_csv(tmp_path / "table.csv")
    with open(tmp_path / "table.csv", newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert header == ["quantity", *COLUMNS]
    assert [row[0] for row in rows] == list(summary.names)
    written = np.array([row[1:] for row in rows], float)
    np.testing.assert_array_equal(written.T, list(summary.columns.values()))


def test_fit_without_support():
    fit = standard_normal_fit(Target(lambda x: jnp.where(x[0] > 1e6, 0.0, -jnp.inf), jnp.full(2, 2e6)))
    summary = fit.summary()
    assert list(summary.columns) == COLUMNS
    assert all(np.all(np.isnan(column)) and column.shape == (2,) for column in summary.columns.values())
    assert summary.figures["ess"] == 0
    text = str(summary)
    assert "REFUSED: the log density was finite at none of the 100 draws" in text
    assert "x[1]" in text
    assert repr(fit) == "Fit(dim=2, num_components=1, refused)"


@pytest.mark.parametrize("num_inside", [1, 2, 30])
def test_fit_with_few_draws_in_the_support(num_inside):
    x = np.sort(np.random.default_rng(0).normal(size=100))
    edge = x[-num_inside] - 1e-9
    target = Target(lambda y: jnp.where(y[0] >= edge, -0.5 * y[0] ** 2, -jnp.inf), jnp.full(1, edge + 1.0))
    summary = standard_normal_fit(target).summary()
    # The proposal is the target where that is positive: equal weights.
    inside = x[-num_inside:]
    np.testing.assert_allclose(summary.columns["mean"], inside.mean(), rtol=1e-6)
    np.testing.assert_allclose(summary.columns["sd"], inside.std(), rtol=1e-6, atol=1e-9)
    assert np.all(np.isfinite(summary.columns["ess"]))
    assert "REFUSED" in str(summary)


@given(
    values=st.lists(st.integers(-50, 50), min_size=1, max_size=20),
    copies=st.lists(st.integers(0, 5), min_size=20, max_size=20),
    level=st.sampled_from([0.0503, 0.2507, 0.5011, 0.9491, 1.0]),
)
def test_weighted_quantile_is_that_of_repeated_values(values, copies, level):
    copies = np.array(copies[: len(values)]) + (np.arange(len(values)) == 0)
    values = np.array(values, float)
    repeated = np.repeat(values, copies)
    columns = np.stack([values, -values], axis=1)
    result = weighted_quantile(columns, copies / copies.sum(), [level])
    expected = [
        np.quantile(repeated, level, method="inverted_cdf"),
        np.quantile(-repeated, level, method="inverted_cdf"),
    ]
    np.testing.assert_array_equal(result[0], expected)


def test_weighted_quantiles_come_in_rows():
    result = weighted_quantile(
        np.arange(10.0)[:, None] * np.array([1.0, 2.0, -1.0]), np.full(10, 0.1), (0.05, 0.55, 0.95)
    )
    np.testing.assert_array_equal(result, [[0, 0, -9], [5, 10, -4], [9, 18, 0]])
