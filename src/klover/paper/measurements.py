"""The file of measurements, ``results.jsonl``: every finished fit is a line, and nothing finished is done twice."""

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from klover.paper.methods import Choices


@dataclasses.dataclass(frozen=True)
class Cell:
    """A part of a table that is computed in one go; ``dataset`` is a property in the failure-mode table."""

    table: str
    dataset: str
    method: str
    splits: tuple[int, ...]
    seed: int
    choices: Choices = Choices()


def write_whole(path: Path, write: Callable[[Path], Any]) -> Path:
    """Write under another name beside, then rename: a reader finds the whole file or none."""
    part = path.with_name(f".{path.name}.part")
    try:
        write(part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def read(path: Path) -> list[dict]:
    """Read the lines, each a JSON object with a field ``table``; a last line that a kill has torn is left out."""
    # Bytes are split, not text: a tear may go through a character.
    lines = path.read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                break
            raise ValueError(f"{path}, line {number} is damaged ({error}). Delete it, and fit again.") from error
        if not isinstance(row, dict) or "table" not in row:
            raise ValueError(f"{path}, line {number} is no JSON object with a field 'table'. Delete it.")
        rows.append(row)
    return rows


class Results:
    """The file of results; an unfinished last line, which a killed run leaves, is cut off."""

    def __init__(self, path: Path):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        content = path.read_bytes() if path.exists() else b""
        self.rows = read(path) if content else []
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            path.write_bytes(whole)
        self._done = {_identity(row) for row in self.rows}

    def missing(self, cell: Cell) -> Cell:
        """Return the cell with the splits that are not there yet."""
        names = (cell.table, cell.dataset, cell.method)
        left = tuple(split for split in cell.splits if (*names, split, cell.seed) not in self._done)
        return dataclasses.replace(cell, splits=left)

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Append lines in one write, and wait until they are on the disk."""
        text = "".join(json.dumps(row) + "\n" for row in rows)
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            error.add_note(f"{self.path} keeps all fits that were finished before. Make room, and go on with --resume.")
            raise
        self.rows += rows
        self._done |= {_identity(row) for row in rows}


def _identity(row: dict[str, Any]) -> tuple:
    return row["table"], row.get("dataset", row.get("property")), row["method"], row.get("split"), row["seed"]
