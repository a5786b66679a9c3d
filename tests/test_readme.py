import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_python_in_the_readme_works_as_pasted():
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    code += "\nassert fit.verdict.trusted\nassert abs(fit.log_evidence - jnp.log(4 * jnp.pi)) < 0.01\n"
    code += "assert abs(value - 11.5) < 5 * error\nassert posterior.shape == (1000, 2)\n"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
