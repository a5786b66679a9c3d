"""Every number of the engine says what it is for, is used, and is seen by who passes another one."""

import dataclasses
import pathlib
import re

import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover import tuning
from klover.tuning import Tuning
from klover.verdict.status import Status

PARTS = {field.name: getattr(Tuning(), field.name) for field in dataclasses.fields(Tuning)}
NUMBERS = {
    f"{part}.{field.name}": (field, getattr(record, field.name))
    for part, record in PARTS.items()
    for field in dataclasses.fields(record)
}
SOURCE = pathlib.Path(tuning.__file__)
REST = "\n".join(path.read_text() for path in SOURCE.parent.rglob("*.py") if path != SOURCE)

EACH = pytest.mark.parametrize("path", NUMBERS)


def changed(**parts) -> Tuning:
    """Return a tuning with numbers replaced: ``changed(rounds={"first_draws": 1})``."""
    return Tuning(**{name: dataclasses.replace(PARTS[name], **numbers) for name, numbers in parts.items()})


@EACH
def test_every_number_has_a_unit_a_purpose_and_an_origin(path):
    field, value = NUMBERS[path]
    assert set(field.metadata) == {"unit", "purpose", "chosen"}
    assert all(isinstance(text, str) and text.strip() == text != "" for text in field.metadata.values())
    entries = value if isinstance(value, tuple) else (value,)
    assert all(type(entry) in (int, float) and np.isfinite(entry) for entry in entries)
    assert value == field.default


@EACH
def test_every_number_says_how_it_was_chosen(path):
    assert re.match(r"(theory|measured|habit|guess)\b", NUMBERS[path][0].metadata["chosen"])


@EACH
def test_annotations_are_the_types_of_the_numbers(path):
    field, value = NUMBERS[path]
    assert type(value) is {int: int, float: float}.get(field.type, tuple)


@EACH
def test_no_number_is_left_over(path):
    part, name = path.split(".")
    assert re.search(rf"\.{name}\b", REST), f"nothing outside of tuning.py reads {path}"


def test_names_are_paths_that_lead_to_one_number():
    assert len(NUMBERS) == sum(len(dataclasses.fields(record)) for record in PARTS.values())
    # A part is named after its class, so that a path can be read off an annotation.
    assert {name: type(record).__name__.lower() for name, record in PARTS.items()} == {name: name for name in PARTS}
    assert set(PARTS) == {name.lower() for name, value in vars(tuning).items() if dataclasses.is_dataclass(value)} - {
        "tuning"
    }


def test_all_is_frozen_and_can_be_compared():
    for record in (Tuning(), *PARTS.values()):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, dataclasses.fields(record)[0].name, 1)
    assert Tuning() == Tuning()
    assert hash(Tuning()) == hash(Tuning())
    assert changed(rounds={"first_draws": 7}) != Tuning()


@EACH
def test_one_number_can_be_replaced_alone(path):
    part, name = path.split(".")
    value = NUMBERS[path][1]
    other = changed(**{part: {name: tuple(2 * entry for entry in value) if isinstance(value, tuple) else 2 * value}})
    differing = [
        f"{each}.{field.name}"
        for each in PARTS
        for field in dataclasses.fields(PARTS[each])
        if getattr(getattr(other, each), field.name) != getattr(PARTS[each], field.name)
    ]
    assert differing == [path]


@pytest.mark.parametrize(
    ("bounds", "lower", "upper"),
    [
        (("missed.smallest_mode", "answer.largest_hidden", "answer.largest_invalid"), 0.0, 1.0),
        (("rounds.least_ess", "rounds.fair_ess", "rounds.good_explored_ess", "rounds.good_ess"), 0.0, 1.0),
        (("rounds.good_pareto_k", "rounds.fair_pareto_k"), 0.0, 0.7),
        (("rounds.first_draws", "rounds.most_draws", "answer.most_draws"), 1, np.inf),
        (("rounds.tiled_dim", "search.full_dim"), 1, np.inf),
        (("exploration.num_probes", "exploration.num_particles"), 1, np.inf),
    ],
)
def test_numbers_that_are_compared_with_each_other_ascend(bounds, lower, upper):
    values = [NUMBERS[path][1] for path in bounds]
    assert lower < values[0]
    assert values[-1] <= upper
    assert values == sorted(values)


def test_shares_are_shares():
    shares = {path: value for path, (field, value) in NUMBERS.items() if field.metadata["unit"] == "share"}
    assert len(shares) > 10
    assert all(0 < value < 1 for value in shares.values())


def refined(budget=None, **parts):
    target = klover.Target(lambda x: -0.5 * jnp.sum(x**2) - x[0] ** 4, jnp.ones(2))
    return klover.refine(0, target, budget=budget, tuning=changed(**parts))


@pytest.mark.parametrize("first_draws", [300, 1000])
def test_the_size_of_the_first_round_is_seen_by_refine(first_draws):
    fit = refined(rounds={"first_draws": first_draws, "draws_growth": 2.0})
    assert fit.history["num_draws"].tolist()[:2] == [first_draws, 2 * first_draws][: len(fit.history["num_draws"])]


@pytest.mark.parametrize(
    ("parts", "measure"),
    [
        ({"search": {"num_starts": 4}}, lambda fit: fit.history["num_evaluations"][0]),
        ({"start": {"copies": (1.1,), "copy_weights": (1.0,)}}, lambda fit: fit.history["num_components"][0]),
        ({"start": {"broad_share": 0.6}}, lambda fit: fit.history["ess_share"][0]),
        ({"growth": {"em_steps": 1}}, lambda fit: fit.history["ess_share"][1]),
        ({"growth": {"split_rounds": 0}}, lambda fit: fit.history["num_components"][1]),
        ({"moves": {"num_leapfrogs": 2}}, lambda fit: fit.num_evaluations),
        ({"rounds": {"most_draws": 1000}}, lambda fit: fit.history["num_draws"].tolist()),
        ({"answer": {"fewest_draws": 9000}}, lambda fit: fit.draws.num_draws),
        ({"rounds": {"good_ess": 0.99}}, lambda fit: len(fit.history["round"])),
        ({"defence": {"share": 0.5}}, lambda fit: fit.ess / fit.draws.num_draws),
        ({"exploration": {"num_probes": 32}}, lambda fit: fit.num_evaluations),
        ({"answer": {"wanted_ess": 20_000}}, lambda fit: fit.draws.num_draws),
        ({"answer": {"fewest_effective": 10**6}}, lambda fit: fit.verdict.status is Status.FEW_EFFECTIVE_DRAWS),
        ({"answer": {"largest_width": 0.1}}, lambda fit: fit.verdict.status is Status.IMPROPER),
    ],
    ids=lambda value: (
        "-".join(f"{part}.{name}" for part, numbers in value.items() for name in numbers)
        if isinstance(value, dict)
        else ""
    ),
)
def test_another_number_is_seen_by_refine(parts, measure, plain):
    assert measure(refined(**parts)) != measure(plain)


@pytest.fixture(name="plain", scope="module")
def _plain():
    return refined()


def test_the_default_is_the_default():
    np.testing.assert_array_equal(refined().draws.x, klover.refine(0, refined().target).draws.x)
