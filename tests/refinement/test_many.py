"""Many fits: lines, their file, and items that fail."""

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest

import klover
from helpers import compilations
from klover.base.checks import DamagedFile
from klover.refinement.lines import digest
from klover.refinement.many import FitOne
from klover.targets.cores import num_cores
from many_functions import POISON, RAISING, Loads, no_target, normal

MEANS = [0.5, -1.0, 2.0]
OPTIONS = {"min_ess": 100, "key": 3}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return lines of three fits, their file, and the folder of whole fits."""
    folder = tmp_path_factory.mktemp("many")
    lines = klover.map_fits(normal, MEANS, out=folder / "fits.jsonl", save_to=folder / "whole", **OPTIONS)
    return lines, folder / "fits.jsonl", folder / "whole"


@pytest.fixture
def copy(finished, tmp_path):
    path = tmp_path / "fits.jsonl"
    path.write_bytes(finished[1].read_bytes())
    return path


def again(path, items=MEANS, function=normal, **changes):
    return klover.map_fits(function, items, out=path, **OPTIONS | changes)


def refuse(work, task):
    raise AssertionError("fitted again")


def test_a_line_says_what_the_fit_says(finished):
    lines, _, folder = finished
    for line, mean in zip(lines, MEANS, strict=True):
        fit = klover.load(folder / f"{line.index:06}.klover")
        assert line.trusted
        assert line.status == fit.verdict.status.name == "TRUSTED"
        assert (line.log_evidence, line.ess, line.num_evaluations) == (fit.log_evidence, fit.ess, fit.num_evaluations)
        assert abs(line.log_evidence - 0.5 * np.log(2 * np.pi)) < 5 * line.log_evidence_se + 1e-3
        assert abs(line.mean["x"] - mean) < 5 / np.sqrt(line.ess)
        assert abs(line.sd["x"] - 1) < 5 / np.sqrt(2 * line.ess)


def test_each_item_has_a_key_of_its_own_that_its_index_decides(finished):
    fit = klover.refine(jax.random.fold_in(jax.random.key(3), 1), normal(MEANS[1]), min_ess=100)
    assert finished[0][1].log_evidence == fit.log_evidence


def test_items_of_one_shape_compile_once(finished):
    with compilations() as programs:
        klover.map_fits(normal, [-3.0, 1.0], **OPTIONS)
    assert programs == []


def test_what_a_file_holds_is_not_fitted_again(finished, copy, monkeypatch):
    monkeypatch.setattr(FitOne, "__call__", refuse)
    assert again(copy) == finished[0]
    assert copy.read_bytes() == finished[1].read_bytes()


def test_a_torn_line_is_dropped_and_its_item_fitted_again(finished, copy):
    copy.write_bytes(copy.read_bytes()[:-1])
    lines = again(copy, [*MEANS, 1.0])
    assert [dataclasses.replace(line, seconds=0.0) for line in lines[:3]] == [
        dataclasses.replace(line, seconds=0.0) for line in finished[0]
    ]
    assert [json.loads(line).get("index") for line in copy.read_text().splitlines()] == [None, 0, 1, 2, 3]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"items": [0.5, 7.0, 2.0]}, r"items\[1\].* is not the one"),
        ({"items": MEANS[:2]}, r"items\[2\].* is not among 2 items"),
        ({"key": 4}, "another key"),
        ({"min_ess": 200}, "another min_ess"),
        ({"max_components": 2}, "another max_components"),
        ({"function": no_target}, "another function"),
    ],
)
def test_a_file_of_other_fits_is_refused_and_left_alone(finished, copy, changes, words):
    with pytest.raises(ValueError, match=words):
        again(copy, **changes)
    assert copy.read_bytes() == finished[1].read_bytes()


def test_damage_and_files_of_others_are_refused(finished, copy):
    lines = finished[1].read_bytes().splitlines(keepends=True)
    for content, kind, words in [
        (lines[0] + lines[1][:40] + b"\n" + lines[2], DamagedFile, "line 2"),
        (lines[0] + b"3\n", DamagedFile, "line 2"),
        (lines[1], ValueError, "another one"),
        (b"thesis", ValueError, "another one"),
    ]:
        copy.write_bytes(content)
        with pytest.raises(kind, match=words):
            again(copy)
        assert copy.read_bytes() == content


def test_processes_give_the_same_lines_and_an_item_that_kills_or_raises_costs_itself(finished, tmp_path, capsys):
    log, path = tmp_path / "log", tmp_path / "fits.jsonl"
    function = Loads(finished[2] / "000000.klover", log)
    lines = klover.map_fits(function, range(5), pool=2, out=path, labels=list("abcde"), progress=True)
    assert [line.label for line in lines] == list("abcde")
    assert [line.status for line in lines] == ["TRUSTED"] * 3 + ["ERROR"] * 2
    assert "WorkerDied" in lines[POISON].reason
    assert lines[RAISING].reason == "LookupError: no such data"
    assert lines[0].log_evidence == finished[0][0].log_evidence
    called = [line.split() for line in log.read_text().splitlines()]
    assert sorted(item for item, _ in called) == ["0", "1", "2", "3", "3", "4"]
    assert {threads for _, threads in called} == {str(max(num_cores() // 2, 1))}
    assert "5 of 5 fits: 3 trusted, 2 errors" in capsys.readouterr().err
    kept = klover.map_fits(function, range(5), out=path, labels=list("abcde"))
    assert repr(kept) == repr(lines)  # what is no number equals itself there


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "words"),
    [
        ((lambda: 3, MEANS), {}, TypeError, "function must be a function of one item"),
        ((normal, []), {}, ValueError, "items must hold one"),
        ((normal, "abc"), {}, TypeError, "items must be a list"),
        ((normal, {"a": 3}), {}, TypeError, "items must be a list"),
        ((no_target, MEANS), {}, TypeError, "function must return a klover.Target or a klover.Fit, got 0.5"),
        ((normal, MEANS), {"journal": "x"}, TypeError, "no argument journal"),
        ((normal, MEANS), {"min_ess": 3}, ValueError, "min_ess must be"),
        ((normal, MEANS), {"family": "cauchy"}, ValueError, "family"),
        ((normal, MEANS), {"labels": ["a"]}, ValueError, "labels must hold one for each of 3"),
        ((normal, MEANS), {"pool": "four"}, TypeError, "pool must be"),
        ((normal, MEANS), {"out": "none/fits.jsonl"}, FileNotFoundError, "out must be the path"),
        ((normal, MEANS), {"save_to": __file__}, ValueError, "save_to must be a folder"),
        ((normal, MEANS), {"labels": "abc"}, TypeError, "labels must be a list of words"),
    ],
)
def test_bad_input_is_named(arguments, options, kind, words):
    with pytest.raises(kind, match=words):
        klover.map_fits(*arguments, **options)


def holding(number):
    return lambda item: item + number


def test_digests_tell_contents_apart_and_not_objects():
    alike = [{"x": np.arange(3.0), "name": "a"}, {"name": "a", "x": np.arange(3.0)}]
    assert digest(alike[0]) == digest(alike[1])
    others = [
        functools.partial(max, 1),
        functools.partial(max, 2),
        *map(holding, range(2)),
        3,
        3.0,
        None,
        "3",
        np.arange(3),
        np.arange(3.0),
        (3,),
        [3],
        normal,
        no_target,
        {1, 2},
        {"a": 3},
    ]
    assert len({digest(other) for other in others}) == len(others)
