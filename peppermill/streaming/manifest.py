"""manifest.json of a folder of predictions: the network, the ensemble, the data, and the parts with checksums."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peppermill.plumbing.files import read_json, write_atomically

KIND = "peppermill manifest"
VERSION = 1
NAME = "manifest.json"
PART = re.compile(r"part-(\d+)\.rows-(\d+)-(\d+)\.([0-9a-f]{16})\.(npz|parquet)")

#: What must be the same when a job goes on, and what another value means.
SETTINGS = {
    "network": "of a network with other weights",
    "recipe": "of another ensemble, or of the network alone",
    "data": "for other data",
    "columns": "with other columns",
    "top": "with another `--top`",
    "file_format": "in another format",
    "batch_size": "in batches of another size",
    "part_batches": "in parts of another size",
}


@dataclass(frozen=True)
class Part:
    """A finished part: its number, the rows of the data from `start` to before `stop`, and the digest of its file."""

    number: int
    start: int
    stop: int
    sha256: str  # the first 16 digits
    ending: str

    @property
    def file(self) -> str:
        return f"parts/part-{self.number:06d}.rows-{self.start}-{self.stop}.{self.sha256}.{self.ending}"


def finished_parts(folder: Path) -> list[Part]:
    """The parts in a folder, in order. A part has its name only when all of it is on the disk."""
    names = os.listdir(folder / "parts") if (folder / "parts").is_dir() else []
    found = (match.groups() for name in names if (match := PART.fullmatch(name)))
    parts = [Part(int(number), int(start), int(stop), *rest) for number, start, stop, *rest in found]
    return sorted(parts, key=lambda part: part.number)


def begin(folder: Path, settings: dict[str, Any]) -> list[Part]:
    """Write the manifest of a new folder, or find the finished parts of the same job; refuse any other folder."""
    path = folder / NAME
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: give the path of a folder.")
    if not path.exists():
        if folder.is_dir() and any(not name.startswith(".") for name in os.listdir(folder)):
            raise ValueError(f"{folder} holds other files and no {NAME}: name a new or an empty folder.")
        _write(folder, settings, None)
    before = read_json(path, KIND, VERSION)
    for name, words in SETTINGS.items():
        if before.get(name) != settings[name]:
            raise ValueError(f"{folder} holds predictions {words}: name another folder, or delete this one.")
    for path in (*folder.glob(".*"), *folder.glob("parts/.*")):
        if re.fullmatch(r"\.[0-9a-f]{16}", path.name):  # what a killed process was writing
            path.unlink(missing_ok=True)
    return finished_parts(folder)


def finish(folder: Path, settings: dict[str, Any], count: int) -> bool:
    """Add the parts to the manifest if all of them are there; whichever process writes it, it is the same file."""
    parts = finished_parts(folder)
    if [part.number for part in parts] != list(range(count)):
        return False
    rows = [{"file": part.file, "rows": [part.start, part.stop], "sha256": part.sha256} for part in parts]
    _write(folder, settings, rows)
    return True


def _write(folder: Path, settings: dict[str, Any], parts: list[dict[str, Any]] | None) -> None:
    content = {"format": KIND, "version": VERSION, **settings, "complete": parts is not None}
    listed = ",\n  ".join(json.dumps(part) for part in parts or ())  # one line each
    text = json.dumps(content, indent=1).removesuffix("\n}") + f',\n "parts": [\n  {listed}\n ]\n}}\n'
    write_atomically(folder / NAME, text)
