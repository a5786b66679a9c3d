import os
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool

import jax
import pytest

import klover
from helpers import needs
from klover import cli


def test_help_and_version(capsys):
    for argument, expected in (("--help", "demo"), ("--version", "klover 0.")):
        with pytest.raises(SystemExit) as ended:
            cli.main([argument])
        assert ended.value.code == 0
        assert expected in capsys.readouterr().out


def test_an_unknown_command_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["dance"])
    assert ended.value.code == 2
    assert "demo" in capsys.readouterr().err


def test_the_package_runs_and_knows_its_version_without_metadata():
    code = """
import importlib.metadata, runpy, sys
del importlib.metadata.version
sys.argv[1:] = ["--version"]
runpy.run_module("klover", run_name="__main__")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == f"klover {klover.__version__}\n"


@pytest.mark.slow
@needs("matplotlib")
def test_the_demo_prints_a_table_and_writes_the_figure_where_it_can(tmp_path):
    code = f"""
import sys
sys.modules["tqdm"] = sys.modules["blackjax"] = sys.modules["xarray"] = None
from klover.cli import main
main(["demo", "--out", r"{tmp_path}"])
sys.modules["matplotlib"] = None
main(["demo", "--out", r"{tmp_path / "plain"}"])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert "trusted: k̂" in ended.stdout
    assert "REFUSED" in ended.stdout
    assert ended.stdout.count("log evidence   -921.5") == 2
    assert (tmp_path / "demo.png").stat().st_size > 20_000
    assert "verdict        trusted" in (tmp_path / "summary.txt").read_text(encoding="utf-8")
    assert "not drawn. Figures need matplotlib: pip install 'klover[plots]'." in ended.stdout
    assert [path.name for path in (tmp_path / "plain").iterdir()] == ["summary.txt"]


def test_the_paper_lists_what_it_can_do(capsys):
    assert cli.main(["paper", "list"]) == 0
    out = capsys.readouterr().out
    for name in ("failure-modes", "gmm20-moments", "fkl-remainder", "concrete"):
        assert name in out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["table", "nix"], "'blr', 'bnn'"),
        (["figure", "nix"], "'kl-comparison'"),
        (["table", "blr", "--methods", "hmc,gibbs"], "--methods must be one of 'hmc'"),
        (["table", "blr", "--datasets", "oslo"], "--datasets must be one of 'wine'"),
        (["table", "blr", "--splits", "0"], "--splits must be a whole number of at least 1"),
        (["report"], "no folder of results"),
    ],
)
def test_bad_input_to_the_paper_is_named(tmp_path, capsys, arguments, expected):
    assert cli.main(["paper", *arguments, "--out", str(tmp_path / "none")]) == 2
    assert expected in capsys.readouterr().err


def test_a_killed_process_of_the_paper_is_told_in_words(monkeypatch, capsys):
    from klover.cli import paper

    def killed(options):
        raise BrokenProcessPool("A process in the process pool was terminated abruptly")

    monkeypatch.setattr(paper, "_all", killed)
    assert cli.main(["paper", "all"]) == 1
    assert "what was finished is kept. Go on with --resume, and fewer --jobs." in capsys.readouterr().err


def test_results_are_never_overwritten(tmp_path, capsys):
    (tmp_path / "results.jsonl").write_text("")
    assert cli.main(["paper", "table", "blr", "--out", str(tmp_path)]) == 2
    assert "--resume" in capsys.readouterr().err


def test_figures_are_named_once():
    from klover.cli import paper
    from klover.paper import figures

    assert tuple(figures.FIGURES) == paper.FIGURES


@needs("blackjax", "tqdm")
def test_a_small_table_is_computed_resumed_and_shown(tmp_path, capsys):
    arguments = "paper table blr --datasets power --methods hmc --jobs 1 --out".split() + [str(tmp_path)]
    command = [sys.executable, "-m", "klover", *arguments, "--splits", "1"]
    first = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert "HMC (1 split)" in first.stdout
    assert cli.main([*arguments, "--splits", "2", "--resume"]) == 0
    assert "HMC (2 splits)" in capsys.readouterr().out
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert len(lines) == 2
    assert (tmp_path / "blr.md").exists()


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named(tmp_path, capsys):
    assert cli.main(["paper", "table", "blr", "--device", "gpu", "--out", str(tmp_path)]) == 2
    assert "--device gpu needs a GPU" in capsys.readouterr().err


def test_a_missing_library_of_the_paper_is_named_with_its_extra(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert cli.main(["paper", "table", "blr", "--splits", "1", "--out", str(tmp_path)]) == 2
    assert "The paper's tables need tqdm: pip install 'klover[paper]'." in capsys.readouterr().err


@pytest.mark.parametrize(("unbuffered", "status"), [("", 0), ("1", 141)])
def test_a_reader_that_leaves_early_is_no_error(unbuffered, status):
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-m", "klover", "paper", "list"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, words = process.communicate(timeout=60)
    assert (process.returncode, words) == (status, "")
