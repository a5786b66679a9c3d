import json
import math
import subprocess
import sys

import jax
import numpy as np
import pytest

import klover
from helpers import needs
from klover import cli
from klover.cli import fit as command
from klover.results import report

OBSERVED = [0.3, 1.1, -0.4, 2.0]
MODELS = """
import dataclasses, jax, jax.numpy as jnp, klover

target = klover.Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(2))
other = klover.Target(lambda x: -jnp.sum(x**2), jnp.zeros(2))
number = 3

@dataclasses.dataclass
class Scale:
    value: "float" = 3.0

def density(y, scale=3.0):
    def logdensity(position):
        prior = jax.scipy.stats.norm.logpdf(position["mu"], 0.0, scale)
        return prior + jnp.sum(jax.scipy.stats.norm.logpdf(y, position["mu"], 1.0))
    return klover.Target(logdensity, {"mu": 0.0})

def nothing(y):
    return None

def fails(y):
    return _deep(y)

def _deep(y):
    raise RuntimeError("the cat is out")

def misshapen(y):
    return klover.Target(lambda position: y * position, 0.0)

def void(y):
    return klover.Target(lambda position: jnp.log(-1.0 - position**2), 0.0)
"""
NUMPYRO = """
import klover, numpyro, numpyro.distributions as dist

def model(y, scale=3.0):
    mu = numpyro.sample("mu", dist.Normal(0.0, scale))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

def forgetful(num=400, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    with numpyro.plate("row", num):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

def made(y):
    return klover.from_numpyro(model, y)
"""
PYMC = """
import pymc

def make(y):
    with pymc.Model() as model:
        mu = pymc.Normal("mu", 0.0, 3.0)
        pymc.Normal("y", mu, 1.0, observed=y)
    return model
"""


def log_evidence() -> float:
    """Log evidence of a Normal mean with prior N(0, 9) and unit noise."""
    y = np.asarray(OBSERVED)
    covariance = np.eye(len(y)) + 9.0
    return -0.5 * (y @ np.linalg.solve(covariance, y) + np.linalg.slogdet(2 * math.pi * covariance)[1])


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Work in a folder with models and data, and leave no trace in this process."""
    filtering = jax.config.jax_traceback_filtering
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(command, "set_up_jax", lambda device: None)
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "data.json").write_text(json.dumps({"y": OBSERVED}))
    yield tmp_path
    jax.config.update("jax_traceback_filtering", filtering)


@pytest.fixture
def quick(here, monkeypatch):
    """Spare the page and its figures."""
    monkeypatch.setattr(report, "write_report", lambda path, *rest: path)
    return here


def run(*arguments: str) -> int:
    return cli.main(["fit", *arguments])


@needs("h5netcdf", "matplotlib", "xarray")
def test_a_function_of_the_data_is_fitted_and_everything_is_written(here, capsys):
    assert run("models.py:density", "--data", "data.json", "--out", "out") == 0
    out, err = capsys.readouterr()
    assert "verdict        trusted" in out
    assert "models.py:density keeps scale=3.0" in err
    written = {path.name for path in (here / "out").iterdir()}
    assert written == {"draws.nc", "figures", "fit.klover", "report.html", "summary.csv"}
    fit = klover.load(here / "out" / "fit.klover")
    assert abs(fit.log_evidence - log_evidence()) < 5 * fit.log_evidence_se
    assert (here / "out" / "summary.csv").read_text().splitlines()[1].startswith("mu,")
    assert "klover fit models.py:density --data data.json --out out" in (here / "out" / "report.html").read_text(
        "utf-8"
    )

    assert run("models.py:density", "--data", "data.json", "--out", "out") == 2
    assert "go on with that fit by the --journal that it was made with" in capsys.readouterr().err


@pytest.mark.parametrize("start", [pytest.param("draws.nc", marks=needs("h5netcdf", "xarray")), "fit.klover"])
def test_an_older_fit_is_a_start(quick, start):
    arguments = ("models.py:density", "--data", "data.json", "--out")
    assert run(*arguments, "out") == 0
    assert run(*arguments, "again", "--start", f"out/{start}") == 0


def test_a_refused_fit_is_resumed(quick, capsys):
    arguments = ("models.py:target", "--out", "out", "--journal", "out/journal", "--budget")
    assert run(*arguments, "100") == 3
    assert "REFUSED" in capsys.readouterr().out
    assert cli.main(["explain", "out"]) == 0
    assert "Give more work" in capsys.readouterr().out
    assert run("models.py:other", *arguments[1:], "50000") == 2
    assert "target must be that of the fit" in capsys.readouterr().err
    assert run(*arguments, "50000") == 0
    assert klover.load("out/fit.klover").settings["num_replayed"] > 0
    (quick / "out" / "fit.klover").unlink()
    assert run("models.py:other", *arguments[1:], "50000") == 2
    assert "journal out/journal belongs to another target" in capsys.readouterr().err
    assert run(*arguments, "50000") == 0
    assert cli.main(["explain", "out/fit.klover"]) == 0
    assert capsys.readouterr().out.count("Trusted: ") == 1


@needs("distributed")
@pytest.mark.parametrize(("option", "words"), [("--jobs", "pool= evaluates callbacks"), ("--dask", "nobody answers")])
def test_a_pool_that_cannot_evaluate_is_refused(quick, capsys, monkeypatch, option, words):
    monkeypatch.setattr(command, "SECONDS_TO_CONNECT", 0.5)
    assert run("models.py:target", "--out", "out", option, "2" if option == "--jobs" else "tcp://127.0.0.1:9") == 2
    assert words in capsys.readouterr().err


@needs("h5netcdf", "xarray")
def test_draws_of_a_target_without_names_are_a_start(quick):
    assert run("models.py:target", "--out", "out") == 0
    assert run("models.py:target", "--out", "again", "--start", "out/draws.nc") == 0


@pytest.mark.parametrize(("text", "name"), [(NUMPYRO, "model"), (NUMPYRO, "made"), (PYMC, "make")])
def test_models_of_other_languages_have_the_same_evidence(quick, capsys, text, name):
    pytest.importorskip("numpyro" if text is NUMPYRO else "pymc")
    (quick / "other.py").write_text(text)
    np.savez(quick / "data.npz", y=np.asarray(OBSERVED))
    assert run(f"other.py:{name}", "--data", "data.npz", "--out", "out", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    figures = answer["figures"]
    assert abs(figures["log_evidence"] - log_evidence()) < 5 * figures["log_evidence_se"]
    assert answer["verdict"]["status"] == "TRUSTED"
    assert abs(answer["quantities"]["mu"]["mean"] - 9 * sum(OBSERVED) / 37) < 5 * answer["quantities"]["mu"]["mcse"]
    assert set(answer["files"]) == {"fit", "table", "draws", "report"}


def test_stan_files_go_to_stan(quick, monkeypatch):
    seen = []

    def from_stan(program, data):
        seen.append((program.name, data))
        return klover.Target(lambda x: -0.5 * x**2, 0.0)

    monkeypatch.setattr(klover, "from_stan", from_stan)
    (quick / "model.stan").write_text("parameters { real x; } model { x ~ normal(0, 1); }")
    (quick / "data.csv").write_text("count,y\n1,0.5\n2,1e3\n")
    assert run("model.stan", "--data", "data.csv", "--out", "out", "--budget", "5000") in (0, 3)
    ((name, data),) = seen
    assert name == "model.stan"
    assert data["count"].dtype == int
    np.testing.assert_array_equal(data["y"], [0.5, 1000.0])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nowhere.py:model"], "the model's file nowhere.py does not exist"),
        (["data.json"], "the model must be FILE.py:NAME or FILE.stan"),
        (["models.py:absent"], "models.py has no name 'absent'; it has target, other, number, Scale, density"),
        (["models.py:number"], "models.py:number must be a NumPyro model, a PyMC model, a klover.Target"),
        (["models.py:nothing", "--data", "data.json"], "a function that returned type NoneType"),
        (["models.py:density"], "models.py:density needs y, but there is no --data"),
        (["models.py:density", "--data", "other.json"], "models.py:density takes y, scale, but other.json holds y, x"),
        (["models.py:target", "--data", "data.json"], "is a Target, which holds its data already"),
        (["models.py:density", "--data", "nowhere.json"], "--data names nowhere.json, which does not exist"),
        (["models.py:density", "--data", "data.txt"], "--data must be a file that ends in .json, .csv, .npz"),
        (["models.py:density", "--data", "broken.json"], "--data broken.json cannot be read: Expecting"),
        (["models.py:density", "--data", "list.json"], "it must hold an object with the data's names"),
        (["models.py:density", "--data", "ragged.json"], "the lists in y differ in length"),
        (["models.py:density", "--data", "words.json"], "y must hold numbers only"),
        (["models.py:density", "--data", "words.csv"], "column y must hold numbers only"),
        (["models.py:density", "--data", "broken.npz"], "--data broken.npz cannot be read"),
        (["models.py:target", "--budget", "soon"], "--budget must be a number of evaluations, or a time"),
        (["models.py:target", "--start", "nowhere.nc"], "--start names nowhere.nc, which does not exist"),
        pytest.param(
            ["models.py:target", "--start", "data.json"],
            "--start data.json is no netCDF file",
            marks=needs("h5netcdf", "xarray"),
        ),
    ],
)
def test_bad_input_is_named_in_one_line(here, capsys, arguments, expected):
    texts = {
        "broken.json": "{",
        "list.json": "[1, 2]",
        "other.json": '{"y": [1], "x": 2}',
        "ragged.json": '{"y": [[1], [2, 3]]}',
        "words.json": '{"y": ["one"]}',
        "words.csv": "y\none\n",
        "broken.npz": "PK no zip",
    }
    for name, text in texts.items():
        (here / name).write_text(text)
    assert run(*arguments, "--out", "out") == 2
    out, err = capsys.readouterr()
    assert not out
    assert expected in err
    assert err.startswith("klover fit: ")
    assert err.count("\n") == 1
    assert not (here / "out" / "fit.klover").exists()


def test_parameters_are_told_before_the_work(here, capsys):
    assert run("models.py:void", "--data", "data.json", "--out", "out") == 2
    told, failed = capsys.readouterr().err.splitlines()
    assert told == "klover fit: parameters: x (1); d = 1"
    assert "the log density is finite at none of" in failed


@needs("numpyro")
def test_forgotten_data_are_refused_unless_they_are_to_be_inferred(quick, capsys):
    (quick / "other.py").write_text(NUMPYRO)
    assert run("other.py:forgetful", "--out", "out") == 2
    kept, refused = capsys.readouterr().err.splitlines()
    assert "keeps num=400, y=None" in kept
    assert "would infer with the parameters: y (400); there is no --data. Put y into the data" in refused
    assert "parameters: mu (1), y (400); d = 401" in refused
    (quick / "few.json").write_text('{"num": 2}')
    assert run("other.py:forgetful", "--data", "few.json", "--out", "out", "--allow-latent", "--budget", "2000") in (
        0,
        3,
    )
    assert "parameters: mu (1), y (2); d = 3\n" in capsys.readouterr().err


def test_the_page_is_opened_where_it_is_wanted(quick, monkeypatch):
    opened = []
    monkeypatch.setattr(command.webbrowser, "open", lambda address: opened.append(address) or True)
    arguments = ("models.py:target", "--budget", "3000", "--out")
    run(*arguments, "out")
    assert not opened
    run(*arguments, "again", "--open")
    assert opened == [(quick / "again" / "report.html").resolve().as_uri()]


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("def broken(:\n", "broken", ["models.py:\n", "def broken(:", "SyntaxError"]),
        ("import nowhere_at_all\n", "broken", ["import nowhere_at_all", "ModuleNotFoundError"]),
        (MODELS, "fails", ["return _deep(y)", 'raise RuntimeError("the cat is out")', "RuntimeError: the cat is out"]),
    ],
)
def test_errors_in_the_users_file_are_shown_with_its_lines(here, capsys, text, name, expected):
    (here / "models.py").write_text(text)
    assert run(f"models.py:{name}", "--data", "data.json", "--out", "out") == 2
    err = capsys.readouterr().err
    for part in expected:
        assert part in err
    assert "Traceback" not in err
    assert "importlib" not in err


def test_a_density_that_is_no_number_is_refused_without_a_traceback(here, capsys):
    assert run("models.py:misshapen", "--data", "data.json", "--out", "out") == 2
    assert "logdensity must return one real number" in capsys.readouterr().err


def test_missing_libraries_cost_only_what_needs_them(here, capsys, monkeypatch):
    for name in ("matplotlib", "xarray"):
        monkeypatch.setitem(sys.modules, name, None)
    assert run("models.py:target", "--out", "out") == 0
    err = capsys.readouterr().err
    assert "draws.nc is left out. Labelled results need xarray: pip install 'klover[arviz]'." in err
    assert "report.html is left out. Figures need matplotlib: pip install 'klover[plots]'." in err
    assert (here / "out" / "summary.csv").exists()


def test_explain_names_what_is_missing(here, capsys):
    assert cli.main(["explain", "nowhere"]) == 2
    assert "nowhere does not exist. Make a fit first" in capsys.readouterr().err
    (here / "fit.klover").write_text("no fit")
    assert cli.main(["explain", str(here)]) == 2
    assert capsys.readouterr().err.startswith("klover explain: ")


def test_the_command_line_starts_without_heavy_libraries():
    code = "import sys; import klover.cli; print([name for name in sys.argv[1:] if name in sys.modules])"
    heavy = ["matplotlib", "xarray", "pandas", "numpyro", "pymc", "arviz", "scipy.optimize"]
    ended = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
