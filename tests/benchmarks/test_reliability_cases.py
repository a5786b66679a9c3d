"""Cases by name: the same for ever, and different ones for different names."""

import json
import sys

import jax
import numpy as np
import pytest
from benchmarks.reliability import __main__ as command_line
from benchmarks.reliability import case, densities
from benchmarks.reliability.families import ellipses, warps

from helpers import needs

NAMES = ["known/dev/mixture/1", "known/dev/callback_bounds/2", "adversarial/dev/needle/1"]
NAMES += [pytest.param("sbc/dev/beta_binomial/0", marks=needs("numpyro"))]


def answers(name):
    made = case.build(name)
    known, x = made.truth, np.asarray(made.target.start) + 0.1
    moments = [] if known.mean is None else [*known.mean, *known.sd]
    return [made.target.dim, known.log_evidence, float(made.target.log_prob(x)), *moments]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_all_that_a_case_is_made_of(name):
    assert answers(name) == answers(name)
    arm, _, family, number = name.split("/")
    assert answers(name) != answers(f"{arm}/validation/{family}/{number}")


def test_seeds_do_not_change():
    """Cases that were reported once have to be the same in ten years."""
    assert case.seed_of("known/dev/mixture/17", "case") == 733617845118124343
    assert case.seed_of("known/dev/mixture/17", "fit") != case.seed_of("known/dev/mixture/17", "case")


def test_more_cases_begin_with_fewer():
    names = case.names("known", "dev", 100)
    assert len(set(names)) == 100
    assert names[:30] == case.names("known", "dev", 30)
    families = list(case.families_of("known"))
    assert {name.split("/")[2] for name in names[: len(families)]} == set(families)
    assert case.names("known", "release", 3, ["halo", "gaussian"]) == [
        "known/release/halo/0",
        "known/release/gaussian/0",
        "known/release/halo/1",
    ]


@pytest.mark.parametrize(
    "name", ["known/dev/mixture", "nosuch/dev/mixture/1", "known/dev/nosuch/1", "known/dev/mixture/x"]
)
def test_a_wrong_name_is_told(name):
    with pytest.raises(ValueError, match="got '|there is no"):
        case.build(name)


def test_wrong_families_and_arms_are_told():
    with pytest.raises(ValueError, match="no family 'nosuch'"):
        case.names("known", "dev", 3, ["nosuch"])
    with pytest.raises(ValueError, match="no arm 'nosuch'"):
        case.names("nosuch", "dev", 3)


def test_parts_travel_with_a_map():
    """The shares of a warped mixture are those of its base, and its parts lie where the map puts them."""
    base = ellipses.ellipses([0.3, 0.7], [[-2.0, 0.0], [2.0, 1.0]], np.ones((2, 2)))
    through = warps.Shear(0, np.array([0.0, 0.5]), "parabola")
    moved = densities.push(base, through)
    y = base.sample(np.random.default_rng(0), 50)
    np.testing.assert_allclose(moved.parts.shares(through.forward(y)), base.parts.shares(y), rtol=1e-9)
    np.testing.assert_allclose(moved.parts.locations, through.forward(base.parts.locations))
    # The slope of the parabola at y = ±2 is ±2: var(x_2) = 1 + 2².
    np.testing.assert_allclose(moved.parts.covariances[:, 1, 1], [5.0, 5.0], rtol=1e-5)


@pytest.mark.parametrize(
    "through",
    [
        warps.Shear(1, np.array([0.7, 0.0, -0.3]), "wave"),
        warps.SinhArcsinh(np.array([0.0, 0.5, -0.5]), np.array([1.0, 0.8, 1.3])),
        densities.Affine(
            np.ones(3), np.array([0.1, 1.0, 10.0]), np.linalg.qr(np.arange(9.0).reshape(3, 3) + np.eye(3))[0]
        ),
    ],
)
def test_maps_are_inverted_and_have_their_determinants(through):
    y = np.random.default_rng(0).normal(size=3)
    x = through.forward(y)
    np.testing.assert_allclose(through.inverse(jax.numpy.asarray(x)), y, rtol=1e-9)
    slope = jax.jacfwd(through.inverse)(jax.numpy.asarray(x))
    assert float(through.log_det_inverse(jax.numpy.asarray(x))) == pytest.approx(np.linalg.slogdet(slope)[1], abs=1e-9)


def test_float32_cases_are_float32():
    made = case.build("known/dev/float32/0")
    assert made.is_float32
    with made.precision():
        assert made.target.log_prob(np.asarray(made.target.start)).dtype == np.float32


def test_one_case_is_run_by_its_name(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["reliability", "run", "known/dev/tiny_product/1", "--limit", "600"])
    command_line.main()
    line = json.loads(capsys.readouterr().out)
    assert (line["id"], line["dim"]) == ("known/dev/tiny_product/1", 1)


def test_tools_do_not_share_a_file(monkeypatch, tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text(json.dumps({"id": "known/dev/gaussian/0", "peer": "nuts", "outcome": "refused"}) + "\n")
    monkeypatch.setattr(sys, "argv", ["reliability", "run", "known", "--num", "1", "--out", str(path)])
    with pytest.raises(SystemExit, match="answers of another tool"):
        command_line.main()
