"""The executor of mpi4py, where there is an MPI library: two workers, on loopback."""

import importlib.util
import os
import shutil
import subprocess
import sys

import pytest

SCRIPT = """
import klover
from pool_functions import bell

if __name__ == "__main__":
    from mpi4py.futures import MPIPoolExecutor

    with MPIPoolExecutor() as pool:
        shared = klover.refine(0, klover.from_callback(bell, 2, pool=pool), min_ess=100)
    alone = klover.refine(0, klover.from_callback(bell, 2), min_ess=100)
    print(shared.verdict.trusted, shared.log_evidence == alone.log_evidence)
"""
LOOPBACK = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_btl_tcp_if_include": "lo",
    "OMPI_MCA_oob_tcp_if_include": "lo",
}
HAS_MPI = shutil.which("mpiexec") is not None and importlib.util.find_spec("mpi4py") is not None


@pytest.mark.skipif(not HAS_MPI, reason="needs mpiexec and mpi4py")
def test_a_fit_on_two_workers_of_mpi_is_that_of_one_process(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    environment = os.environ | LOOPBACK | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": "/tmp"}
    command = ["mpiexec", "-n", "3", sys.executable, "-m", "mpi4py.futures", str(path)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert (result.returncode, result.stdout) == (0, "True True\n"), result.stderr
