"""Predictions for data of any length, written in parts: a kill loses the parts under way, and a restart goes on."""

from __future__ import annotations

import errno
import hashlib
import io
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from peppermill.distributed.group import ProcessError, count, exchange, rank
from peppermill.ensemble import PepEnsemble
from peppermill.plumbing.files import write_atomically
from peppermill.plumbing.nested import digest_of
from peppermill.plumbing.optional import importing
from peppermill.plumbing.progress import progress
from peppermill.recipe import fingerprint
from peppermill.streaming.columns import BatchColumns
from peppermill.streaming.manifest import Part, begin, finish
from peppermill.streaming.numbered_batches import BatchStream, read_ahead, stream_of
from peppermill.types import Data, Inputs, Likelihood
from peppermill.views import saved_names

PART_ITEMS = 50_000  # docs/scale.md: a smaller part costs files, a larger one what a lost process had computed
NO_ITEMS = "`data` has no items: there is nothing to predict."
FORMATS = ("parquet", "npz")


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
    likelihood: str | Likelihood | None = None,
    batch_size: int = 500,
    part_items: int = PART_ITEMS,
    format: str | None = None,
) -> WrittenParts:
    """The predictions for all data in a folder of parts, Parquet or npz, in memory that does not depend on N.

    The columns are those of `stream`. If the folder holds finished parts of the same job, only the others are computed;
    a folder for another network, ensemble or data set is refused. In a process group each process writes its own parts.
    The files do not depend on the number of processes, or on how often a job was interrupted.
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
    settings = {**_identity(columns_of), "data": stream.fingerprint(), "columns": columns_of.names, "top": top}
    settings |= {"file_format": ending, "batch_size": batch_size, "part_batches": batches}
    with _explain_full_disk(folder):
        done = _agreed(folder, settings)

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
                content = encoded(arrays, ending)
                digest = hashlib.sha256(content).hexdigest()[:16]
                part = Part(number, int(arrays["row"][0]), int(arrays["row"][-1]) + 1, digest, ending)
                write_atomically(folder / part.file, content)
                written += 1
                del tables, arrays, content
        if not stream.count:
            raise ValueError(NO_ITEMS)
        parts = -(-stream.count // batches)
        return WrittenParts(written, parts, stream.items or 0, finish(folder, settings, parts))


def predict_table(columns_of: BatchColumns, stream: BatchStream) -> dict[str, np.ndarray]:
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
    recipe = predictor.recipe
    facts = [recipe.sigma, recipe.size, recipe.noise, recipe.noise.scales, recipe.noise.draws, recipe.selected]
    facts += [likelihood, saved_names(recipe.views), recipe.calibrator.to_json(), predictor.engine.precision]
    facts += [digest_of(recipe.calibrator.arrays())]
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    return {"network": asdict(fingerprint(predictor.model)), "recipe": digest}


def _agreed(folder: Path, settings: dict[str, Any]) -> list[int]:
    """The numbers of the parts that are finished, the same in every process; the first one looks."""
    done = [part.number for part in begin(folder, settings)] if rank() == 0 else []
    offers = exchange((settings, done))
    if any(other != settings for other, _ in offers):
        raise ProcessError("the processes were not given the same network, settings and data: pass the same to all.")
    agreed: list[int] = offers[0][1]
    return agreed


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


@contextmanager
def _explain_full_disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            f"the disk is full: {folder} keeps the parts that are finished. Make room and run the same command again."
        ) from error
