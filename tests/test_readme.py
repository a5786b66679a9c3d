"""Every piece of Python in the README and in docs works as pasted; the ten lines compile no more than they must."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import compilations

ROOT = Path(__file__).parents[1]
PIECES = [
    pytest.param(code, id=f"{path.name}-{number}", marks=() if path.name == "README.md" else pytest.mark.slow)
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL))
]
CHECKS = {
    "posterior = draws.resample": """
assert fit.verdict.trusted
assert abs(fit.log_evidence - jnp.log(4 * jnp.pi)) < 0.01
assert abs(value - 11.5) < 5 * error
assert posterior["x"].shape == (1000, 2)
""",
    "schools.klover": """
assert fit.verdict.trusted
assert tree["posterior"]["theta"].dims == ("chain", "draw", "school")
assert starts["eta"].shape == (4, 8)
assert {name: array.shape for name, array in posterior.items()} == {
    "mu": (1000,), "tau": (1000,), "eta": (1000, 8), "theta": (1000, 8)
}
assert (posterior["tau"] > 0).all()
assert {"mu", "tau", "eta[0]", "theta[7]"} <= set(table.columns)
assert klover.load("schools.klover").log_evidence == fit.log_evidence
""",
    "mcmc.run": """
assert fit.verdict.trusted
assert tree["posterior_predictive"]["y"].shape == (1, 4000, 30)
assert mcmc.get_samples()["slope"].shape == (400,)
""",
    "pm.sample": """
assert fit.verdict.trusted
assert trace.posterior["theta"].shape == (2, 100, 8)
""",
    "device_put(inputs, rows)": """
assert fit.verdict.trusted
assert fit.target.num_devices == 4
""",
    "make_array_from_process_local_data": """
assert fit.verdict.trusted
assert abs(fit.summary().columns["mean"][0] - own.mean()) < 0.01
""",
    "from_prior_transform": """
assert fit.verdict.trusted
assert abs(fit.summary().columns["mean"][0] - 2.0) < 0.5
assert fit.log_evidence_se < 0.01
""",
    "bilby.run_sampler(likelihood": """
assert result.meta_data["klover"]["trusted"]
assert abs(result.posterior["m"].mean() - 0.5) < 0.1
""",
    "from cobaya.run": """
assert products["klover"]["trusted"]
assert abs(products["sample"].mean("a") - 0.2) < 0.02
""",
    "regions.jsonl": """
assert doubtful == []
assert all(abs(line.mean["slope"] + 1) < 5 * line.sd["slope"] for line in lines)
""",
    "from_callback(log_density, 2, bounds": """
assert fit.verdict.trusted
assert abs(fit.summary().columns["mean"][0] - 3.4) < 0.1
""",
    "fit.predict": """
assert tree["predictions"]["y"].shape == (1, 4000, 2)
""",
    "fit.nuts_start": """
assert chains.get_samples()["slope"].shape == (800,)
""",
    "fit.sensitivity": """
assert found.diagnosis[0] == "potential prior-data conflict"
assert len(found.steps) == 4
""",
    "klover.compare(fits, prior": """
assert comparison.names == ("line", "constant")
assert abs(comparison.probability.sum() - 1) < 1e-9
""",
}


LIBRARIES = {
    "import bilby": "bilby",
    "from cobaya": "cobaya",
    "import numpyro": "numpyro",
    "import pymc": "pymc",
    "to_datatree": "xarray",
}


@pytest.mark.parametrize("code", PIECES)
def test_the_python_in_documents_works_as_pasted(code, tmp_path):
    for words, library in LIBRARIES.items():
        if words in code:
            pytest.importorskip(library)
    code += "".join(check for words, check in CHECKS.items() if words in code)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300, cwd=tmp_path)


def test_the_lines_after_refine_compile_the_users_function_alone():
    lines = PIECES[0].values[0].splitlines(keepends=True)
    last = next(number for number, line in enumerate(lines) if "klover.refine" in line) + 1
    names = {}
    exec("".join(lines[:last]), names)
    with compilations() as programs:
        exec("".join(lines[last:]), names)
    assert programs == ["jit(_run)"]
    assert names["posterior"]["x"].shape == (1000, 2)


def test_every_check_has_its_piece():
    text = "".join(parameter.values[0] for parameter in PIECES)
    assert all(words in text for words in CHECKS)
