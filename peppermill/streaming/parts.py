"""Predictions for data of any length, written in parts: a kill loses only unfinished parts, which a restart writes.

manifest.json of the folder identifies the network, the ensemble and the data, and lists the parts with checksums.
"""

from __future__ import annotations

import io
import json
import os
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from peppermill.calibrators import numbers_of
from peppermill.distributed.gather import exchange
from peppermill.distributed.group import ProcessError, count, rank
from peppermill.ensemble import PepEnsemble
from peppermill.plumbing.files import read_json, write_atomically
from peppermill.plumbing.nested import digest_of, sha256
from peppermill.plumbing.optional import importing
from peppermill.plumbing.progress import progress
from peppermill.recipe import fingerprint
from peppermill.streaming.columns import BatchColumns
from peppermill.streaming.numbered_batches import NO_ITEMS, Indexed, Sequential, fingerprint_of, read_ahead, stream_of
from peppermill.types import Data, Inputs, LikelihoodLike
from peppermill.views import saved_names

PART_ITEMS = 50_000  # docs/scale.md: a smaller part costs files, a larger one what a lost process had computed
FORMATS = ("parquet", "npz")
KIND, VERSION, MANIFEST = "peppermill manifest", 1, "manifest.json"
PART = re.compile(r"part-(\d+)\.rows-(\d+)-(\d+)\.([0-9a-f]{16})\.(npz|parquet)")

#: What another value of a setting means when a job goes on; of the other settings, their names say it.
DIFFERENCES = {
    "network": "of a network with other weights",
    "recipe": "of another ensemble, or of the network alone",
    "data": "for other data",
}


@dataclass(frozen=True)
class WrittenParts:
    """What one call of `write_predictions` did: the parts that it wrote, and those of the whole job."""

    written: int
    parts: int
    items: int
    complete: bool


def write_predictions(
    predictor: Any,
    data: Data | Inputs,
    folder: str | Path,
    *,
    columns: str | Sequence[str] | None = None,
    top: int | None = None,
    likelihood: LikelihoodLike | None = None,
    batch_size: int = 500,
    part_items: int = PART_ITEMS,
    format: str | None = None,
) -> WrittenParts:
    """The predictions for all data in a `folder` of parts, in memory that does not depend on N.

    The columns are those of `stream`. A part has about `part_items` items; its `format` is "parquet" (with pyarrow) or
    "npz". If the folder holds finished parts of the same job, only the others are computed; a folder for another job is
    refused. In a process group each process writes its own parts; the files do not depend on the number of processes.
    """
    folder = Path(folder)
    columns_of, stream = BatchColumns(predictor, columns, top, likelihood), stream_of(data, batch_size)
    ending = format or ("parquet" if find_spec("pyarrow") else "npz")
    if ending not in FORMATS:
        raise ValueError(f"`format={format!r}` must be one of {', '.join(FORMATS)}.")
    if part_items < 1:
        raise ValueError(f"`part_items={part_items}` must be at least 1.")
    if stream.items == 0:
        raise ValueError(NO_ITEMS)
    batches = -(-part_items // batch_size)  # a part is a whole number of batches
    settings = {**_identity(columns_of), "data": fingerprint_of(stream), "columns": columns_of.names, "top": top}
    settings |= {"file_format": ending, "batch_size": batch_size, "part_batches": batches}
    done = sorted(_begin(folder, settings)) if rank() == 0 else []
    offers = exchange((settings, done))
    if any(other != settings for other, _ in offers):
        raise ProcessError("the processes were not given the same network, settings and data: pass the same to all.")
    done = offers[0][1]

    def is_mine(number: int) -> bool:
        """Of the parts that are missing, process r takes every P-th."""
        place = bisect_left(done, number)
        return (number - place) % count() == rank() and done[place : place + 1] != [number]

    written = 0
    left = None if stream.items is None else (stream.items - len(done) * batches * batch_size) // count()
    with progress("predicting", left) as tick:
        mine = read_ahead(stream.read(lambda number: is_mine(number // batches)))
        for number, group in groupby(mine, key=lambda batch: batch.number // batches):
            tables = []
            for batch in group:
                tables += [columns_of(batch)] if len(batch.rows) else []
                tick(len(batch.rows))
            if not tables:
                raise ValueError(f"no item of part {number} can be read: repair some of its {part_items:,} items.")
            arrays = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
            content, rows = encoded(arrays, ending), f"rows-{arrays['row'][0]}-{arrays['row'][-1] + 1}"
            digest = sha256([content])
            write_atomically(folder / "parts" / f"part-{number:06d}.{rows}.{digest}.{ending}", content)
            written += 1
            del tables, arrays, content
    if not stream.count:
        raise ValueError(NO_ITEMS)
    parts = -(-stream.count // batches)
    return WrittenParts(written, parts, stream.items or 0, _finish(folder, settings, parts))


def _finished(folder: Path) -> dict[int, re.Match[str]]:
    """The names of the parts in a folder, by their numbers. A part has its name only when all of it is on the disk."""
    names = os.listdir(folder / "parts") if (folder / "parts").is_dir() else []
    return {int(match[1]): match for name in names if (match := PART.fullmatch(name))}


def _begin(folder: Path, settings: dict[str, Any]) -> dict[int, re.Match[str]]:
    """Write the manifest of a new folder, or find the finished parts of the same job; refuse any other folder."""
    path = folder / MANIFEST
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: give the path of a folder.")
    if not path.exists():
        if folder.is_dir() and any(not name.startswith(".") for name in os.listdir(folder)):
            raise ValueError(f"{folder} holds other files and no {MANIFEST}: name a new or an empty folder.")
        _write_manifest(folder, settings, None)
    before = read_json(path, KIND, VERSION)
    for name, value in settings.items():
        if before.get(name) != value:
            words = DIFFERENCES.get(name, f"with another `{name}`")
            raise ValueError(f"{folder} holds predictions {words}: name another folder, or delete this one.")
    for path in (*folder.glob(".*"), *folder.glob("parts/.*")):
        if re.fullmatch(r"\.[0-9a-f]{16}", path.name):  # what a killed process was writing
            path.unlink(missing_ok=True)
    return _finished(folder)


def _finish(folder: Path, settings: dict[str, Any], count: int) -> bool:
    """Add the parts to the manifest if all of them are there; whichever process writes it, it is the same file."""
    parts = _finished(folder)
    if sorted(parts) != list(range(count)):
        return False
    found = (parts[number] for number in range(count))
    rows = [{"file": f"parts/{one[0]}", "rows": [int(one[2]), int(one[3])], "sha256": one[4]} for one in found]
    _write_manifest(folder, settings, rows)
    return True


def _write_manifest(folder: Path, settings: dict[str, Any], parts: list[dict[str, Any]] | None) -> None:
    content = {"format": KIND, "version": VERSION, **settings, "complete": parts is not None}
    listed = ",\n  ".join(json.dumps(part) for part in parts or ())  # one line each
    text = json.dumps(content, indent=1).removesuffix("\n}") + f',\n "parts": [\n  {listed}\n ]\n}}\n'
    write_atomically(folder / MANIFEST, text)


def predict_table(columns_of: BatchColumns, stream: Indexed | Sequential) -> dict[str, np.ndarray]:
    """The columns of all items, in memory; each process predicts its share of the batches, and gets the whole table."""
    mine = [
        (batch.number, columns_of(batch))
        for batch in read_ahead(stream.read(lambda number: number % count() == rank()))
        if len(batch.rows)
    ]
    shares = exchange((_identity(columns_of), mine))
    if any(identity != shares[0][0] for identity, _ in shares):
        raise ProcessError("the processes were not given the same weights and ensemble: pass the same to all.")
    tables = [table for _, table in sorted((pair for _, share in shares for pair in share), key=lambda pair: pair[0])]
    if not tables:
        raise ValueError(NO_ITEMS)
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def _identity(columns_of: BatchColumns) -> dict[str, Any]:
    """Whose predictions they are: digests of the network's weights, and of the recipe and how the members run."""
    predictor, likelihood = columns_of.predictor, columns_of.likelihood
    if not isinstance(predictor, nn.Module):
        raise TypeError(f"a {type(predictor).__name__} is not a torch.nn.Module: give a network or an ensemble.")
    if not isinstance(predictor, PepEnsemble):
        return {"network": asdict(fingerprint(predictor)), "recipe": f"{predictor.__class__.__name__}, {likelihood}"}
    recipe, after = predictor.recipe, predictor.calibrator
    facts = [recipe.sigma, recipe.size, recipe.noise, recipe.noise.scales, recipe.noise.draws, recipe.selected]
    facts += [likelihood, saved_names(recipe.views), numbers_of(after), predictor.engine.precision]
    digest = sha256([repr([*facts, digest_of(after.arrays())]).encode()])
    return {"network": asdict(fingerprint(predictor.model)), "recipe": digest}


def encoded(arrays: dict[str, np.ndarray], ending: str) -> bytes:
    """The bytes of a file with these arrays [n, ...], the same for the same numbers."""
    buffer = io.BytesIO()
    if ending == "npz":
        np.savez(buffer, **arrays)  # type: ignore[arg-type]
        return buffer.getvalue()
    with importing("Parquet files need the library pyarrow", "pyarrow", "parquet"):
        import pyarrow
        import pyarrow.parquet
    table = {}
    for name, array in arrays.items():
        column = pyarrow.array(array.reshape(-1) if array.dtype.kind != "U" else array.tolist())
        for length in reversed(array.shape[1:]):
            column = pyarrow.FixedSizeListArray.from_arrays(column, length)
        table[name] = column
    options: Any = {"compression": "none", "use_dictionary": False, "write_statistics": ["row"]}  # floats do not shrink
    pyarrow.parquet.write_table(pyarrow.table(table), buffer, **options)
    return buffer.getvalue()
