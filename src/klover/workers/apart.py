"""A chunk that may kill, evaluated by a process that a worker starts for it: where it dies the worker lives on.

Workers import this module: it needs the standard library alone.
"""

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from klover.workers import task

PROGRAM = "from klover.workers import apart; apart.main()"


def run(parcel: task.Parcel, chunk: Any) -> task.Answer | task.Unknown | task.Refusal | task.Died:
    """Run a function on a chunk in a process of its own."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with tempfile.TemporaryDirectory(prefix="klover-") as folder:
        given, found = Path(folder, "given"), Path(folder, "found")
        given.write_bytes(pickle.dumps((parcel, chunk)))
        subprocess.run([sys.executable, "-c", PROGRAM, given, found], env=environment, check=False)
        return pickle.loads(found.read_bytes()) if found.exists() else task.Died()


def main() -> None:
    """Evaluate what one file holds, and write the answer into another."""
    given, found = (Path(name) for name in sys.argv[1:])
    parcel, chunk = pickle.loads(given.read_bytes())
    answer = pickle.dumps(task.run(parcel.key, parcel, chunk))
    given.write_bytes(answer)
    given.rename(found)  # whole, or not at all
