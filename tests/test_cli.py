import subprocess
import sys

import pytest

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


def test_the_demo_prints_a_table_and_writes_the_figure(tmp_path):
    code = f"from klover.cli import main; raise SystemExit(main(['demo', '--out', r'{tmp_path}']))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert "trusted: k̂" in ended.stdout
    assert "REFUSED" in ended.stdout
    assert "log evidence   -397.3" in ended.stdout
    assert (tmp_path / "demo.png").stat().st_size > 20_000
    assert "verdict        trusted" in (tmp_path / "summary.txt").read_text(encoding="utf-8")
