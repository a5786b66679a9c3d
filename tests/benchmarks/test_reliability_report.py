"""Counts, bounds, ranks and figures of made-up lines."""

import json
import types

import numpy as np
import pytest
from benchmarks.reliability import calibration, case, report, statistics
from scipy import stats

from helpers import needs

ABOUT = {"arm": "known", "family": "mixture", "dim": 3, "unimodal": True, "in_reach": True, "kind": "importance"}
ABOUT |= {"wrong_by": [], "status": "TRUSTED", "evaluations": 100, "seconds": 1.0, "cpu_seconds": 1.0}
ABOUT |= {"log_z_error": 0.01, "log_z_se": 0.01, "log_z_score": 1.0, "mean_error": 0.1, "mean_scores": [1.0, -1.0]}


def line(number, outcome, **changes):
    return {"id": f"known/dev/mixture/{number}", "outcome": outcome} | ABOUT | changes


LINES = [
    line(0, "trusted right"),
    line(1, "trusted right", dim=30, in_reach=False, unimodal=False),
    line(
        2,
        "trusted wrong",
        wrong_by=["log_z"],
        log_z_error=-0.7,
        weights=[0.4, 0.6],
        masses=[0.0, 1.0],
        sd_ratio=0.5,
        inside_envelope=False,
        missed=[{"weight": 0.4, "mass": 0.67, "width": 0.1, "distance": 7.3, "inside": False}],
    ),
    line(3, "refused", status="HEAVY_WEIGHTS"),
    {"id": "known/dev/mixture/4", "arm": "known", "family": "mixture", "outcome": "unfinished", "reason": "killed"},
    line(5, "raised", status="LinAlgError", reason="no convergence"),
]


@pytest.mark.parametrize(("count", "total"), [(0, 7), (7, 7), (3, 10), (1, 1000)])
def test_bounds_are_exact(count, total):
    expected = stats.binomtest(count, total).proportion_ci(0.95, method="exact")
    assert statistics.clopper_pearson(count, total) == pytest.approx((expected.low, expected.high))


def test_nothing_says_nothing():
    assert statistics.clopper_pearson(0, 0) == (0.0, 1.0)
    assert statistics.scores([]) == "none"


def test_a_report_counts(tmp_path):
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    first.write_text("".join(json.dumps(each) + "\n" for each in [line(0, "refused"), *LINES[1:]]))
    second.write_text(json.dumps(LINES[0]) + "\n")
    text = report.text(report.read([first, second]))
    assert "all: 6 fits" in text
    assert "trusted     3 of 6 (50.00%; 11.81% to 88.19%)" in text
    assert "wrong       1 of 3" in text
    assert "refused     1 of 6" in text
    assert "refused although right: 1 of 1" in text
    assert "in reach: 4 fits" in text
    assert "1 HEAVY_WEIGHTS" in text
    assert "known/dev/mixture/2, d = 3, importance, log_z, log Z -0.700 ± 0.010" in text
    assert "missed 1 of 2 parts, weight 0.40 (0.10 × as wide at 7 sd), outside of the envelope" in text
    assert "wrong, inside the stated envelope 0 of 3" in text
    assert "known/dev/mixture/5: LinAlgError: no convergence" in text
    assert "importance, right: log Z 2: sd 0.00" in text


def test_totals_name_no_case():
    text = report.text(LINES, totals_only=True)
    assert "trusted     3 of 6" in text
    assert "known/dev" not in text
    assert "mixture" not in text


def test_tools_are_compared_on_what_both_were_given():
    theirs = [
        LINES[0] | {"peer": "nuts", "outcome": "trusted wrong"},
        LINES[1] | {"peer": "nuts", "outcome": "unsuited"},
    ]
    rows = report.comparison([*LINES, *theirs, line(77, "refused", peer="nuts")]).splitlines()
    assert rows[2].startswith(
        "| nuts | R-hat < 1.01, ESS ≥ 400, no divergence | 1 | 0 | 1 | 2.5% to 100.0% | 0 | 0 | 0 |"
    )
    assert rows[3].startswith("| klover there | its verdict | 1 | 1 | 0 | 0.0% to 97.5% | 0 | 0 | 0 |")
    assert report.comparison(LINES) == ""


def ranked(number, ranks, pits=None):
    return line(number, "trusted", arm="sbc", ranks=ranks, pits=pits or {}, id=f"sbc/dev/linear/{number}")


def uniform_lines(num, power=1.0):
    generator = np.random.default_rng(0)
    pits = generator.uniform(size=(num, 2)) ** power
    names = ("beta[0]", "prediction")
    return [
        ranked(
            number,
            dict(zip(names, (100 * pit).astype(int).tolist(), strict=True)) | {"log_likelihood": 50, "log_joint": 3},
            dict(zip(names, pit.tolist(), strict=True)),
        )
        for number, pit in enumerate(pits)
    ]


def test_uniform_ranks_are_told_from_others():
    assert min(calibration.uniformity(calibration.ranks_of(uniform_lines(400), "parameter"))) > 0.01
    assert max(calibration.uniformity(calibration.ranks_of(uniform_lines(400, 1.5), "parameter"))) < 0.002
    assert calibration.uniformity(np.array([50]))[1] > 0.5


def test_p_values_of_uniform_ranks_are_uniform():
    generator = np.random.default_rng(2)
    found = [calibration.uniformity(generator.integers(100, size=40))[1] for _ in range(300)]
    assert stats.kstest(found, "uniform").pvalue > 1e-3


def test_the_band_holds_95_of_100_uniform_samples():
    generator, num, trials = np.random.default_rng(1), 60, 2000
    lower, upper = calibration.band(num)
    counts = np.cumsum(generator.multinomial(num, np.full(100, 0.01), trials), axis=1)[:, :-1]
    inside = np.mean(((counts >= lower) & (counts <= upper)).all(1))
    # The level itself comes from 1000 simulations, and counts are whole numbers.
    assert inside == pytest.approx(0.95, abs=0.03)


def test_coverage_is_counted():
    text = calibration.rank_text(uniform_lines(1000))
    inside = int(text.partition("50% intervals of a parameter hold it in ")[2].split()[0])
    assert abs(inside - 500) < 5 * np.sqrt(250)
    assert "log_joint        1000 ranks, χ² p = 0.000" in text


PRIOR_SD, NOISE = 2.0, 1.5


def normal_mean(y=None):
    import numpyro
    import numpyro.distributions as dist

    mu = numpyro.sample("mu", dist.Normal(0, PRIOR_SD))
    numpyro.deterministic("prediction", mu**2)
    numpyro.sample("y", dist.Normal(mu, NOISE).expand([4]).to_event(1), obs=y)


def exact_fit(y, generator, num=500):
    """Stand in for a fit by exact posterior draws."""
    variance = 1 / (1 / PRIOR_SD**2 + len(y) / NOISE**2)
    mu = generator.normal(variance * y.sum() / NOISE**2, np.sqrt(variance), size=num)
    values = {"mu": mu, "prediction": mu**2}
    draws = types.SimpleNamespace(log_weight=np.full(num, -np.log(num)), positions=values)
    posterior = lambda count, key: {name: value[:count] for name, value in values.items()}  # noqa: E731
    return types.SimpleNamespace(posterior=posterior, draws=draws)


@pytest.mark.slow
@needs("numpyro")
def test_exact_posteriors_have_uniform_ranks():
    """The whole machine, less klover: data from the model, exact draws, ranks."""
    from benchmarks.reliability import sbc

    generator, lines = np.random.default_rng(0), []
    for number in range(100):
        simulation = sbc.simulate(normal_mean, number)
        lines.append(ranked(number, **sbc.measure(simulation, number, exact_fit(simulation.y, generator))))
    assert set(lines[0]["ranks"]) == {"mu", "prediction", "log_likelihood", "log_joint"}
    for kind in calibration.KINDS:
        ranks = calibration.ranks_of(lines, kind)
        assert len(ranks) == 100
        assert calibration.uniformity(ranks)[1] > 0.005
    inside = [abs(line["pits"]["mu"] - 0.5) < 0.45 for line in lines]
    assert stats.binomtest(sum(inside), 100, 0.9).pvalue > 1e-3


@needs("numpyro")
def test_censored_times_are_simulated_and_conditioned_on():
    made = case.build("sbc/dev/survival/1")
    assert np.isfinite(made.target.log_prob(np.asarray(made.target.start)))


@needs("matplotlib")
def test_figures_are_drawn(tmp_path):
    from benchmarks.reliability import figures

    files = figures.write([*LINES, *uniform_lines(50)], tmp_path)
    assert {path.name for path in files} >= {
        "known_outcomes.png",
        "known_scores.png",
        "known_cost.png",
        "sbc_ranks.png",
    }
    assert all(path.stat().st_size > 5000 for path in files)
