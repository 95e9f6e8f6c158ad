"""Labelled items in files: known by name and label before any is read, and each read once, by several threads.

Threads, because Pillow decodes and resizes without holding Python's lock, and because a preparation need not be copied
to other processes. Of several processes that share the work, each reads its own part.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peppermill.data import MEMORY_BYTES as KEPT_BYTES
from peppermill.held import Arrays, Held, as_inputs
from peppermill.parts import run_of_items, sizes_of
from peppermill.plumbing.progress import progress
from peppermill.plumbing.warnings import warn_user
from peppermill.processes.group import count, grouped, on_this_machine, rank
from peppermill.processes.messages import every
from peppermill.processes.results import agree
from peppermill.sources.levels import Levels, levels_of
from peppermill.sources.stored import Column, stored

NAMED = 3  # bad items that a message names


@dataclass(frozen=True)
class Bad:
    """An item that cannot be read, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Items:
    """N items, none of them read yet.

    `load` gives the raw item (a PIL image, a string) of a row and raises where it is damaged; `prepare` makes the
    network's input of it. `class_names` is there where the labels are numbers of named classes.
    """

    origin: str  # what the user wrote
    names: Sequence[str]
    labels: Tensor
    load: Callable[[int], Any]
    prepare: Callable[[Any], Any]
    class_names: tuple[str, ...] | None = None
    pictures: bool = True
    labelled: bool = True  # otherwise the labels mean nothing
    skip_bad: bool = False
    workers: int = 0  # none means one for each core

    def __len__(self) -> int:
        return len(self.labels)

    def take_rows(self, rows: np.ndarray) -> Items:
        """The items of these rows."""
        load = self.load
        return replace(
            self,
            names=[self.names[k] for k in rows],
            labels=self.labels[torch.from_numpy(rows)],
            load=lambda row: load(int(rows[row])),
        )

    def read(self, kept_bytes: int = KEPT_BYTES) -> Any:
        """Everything prepared, as data that `fit` takes; in memory up to `kept_bytes`, beyond it on disk.

        Items that cannot be read are an error that names and counts them, or a warning where they may be left out.
        """
        return self._read_rows(kept_bytes)[0]

    def read_together(self, mine: Items, batch_size: int, kept_bytes: int = KEPT_BYTES) -> tuple[Any, list[int]]:
        """The same, and which rows could be read; of several processes, each reads its own part, `mine`."""
        if not grouped():
            return self._read_rows(kept_bytes)
        agree({f"files of {self.origin}": f"{len(self):,} with digest {zlib.crc32(str(self.names).encode()):x}"})
        columns, bad = mine._stored(kept_bytes)
        found = every("items", [len(mine), [[row, one.name, one.reason] for row, one in bad.items()]])
        self._report([Bad(name, reason) for _, others in found for _, name, reason in others])
        counts = [length - len(others) for length, others in found]
        before = list(accumulate((length for length, _ in found), initial=0))
        missing = {start + row for start, (_, others) in zip(before, found, strict=False) for row, *_ in others}

        def inputs(first: int, last: int) -> Arrays:
            return {key: column.numbers(first, last) for key, column in columns.items()}

        rows = self._rows_but(missing)
        return Held(inputs, counts, self.labels[rows], batch_size), rows

    def part(self, batch_size: int) -> Items:
        """The items in this process's batches; all of them, where there is one process."""
        run = run_of_items(sizes_of(len(self), batch_size), rank(), count())
        return self.take_rows(np.arange(run.start, run.stop)) if grouped() else self

    def first_input(self) -> Any | None:
        """The network's input for the first item that can be read, as a batch of one; nothing where there is none."""
        example = self._example
        return as_inputs({key: array[None] for key, array in example.items()}) if example else None

    def _read_rows(self, kept_bytes: int) -> tuple[Any, list[int]]:
        columns, bad = self._stored(kept_bytes)
        self._report(list(bad.values()))
        rows = self._rows_but(bad)
        return stored(columns, self.labels[rows]), rows

    def _stored(self, kept_bytes: int) -> tuple[dict[str | None, Column], dict[int, Bad]]:
        """The items that can be read, one after the other, and by row those that cannot."""
        columns = self._columns(kept_bytes)
        bad: dict[int, Bad] = {}
        for row, found in self._packed(columns):
            if isinstance(found, Bad):
                bad[row] = found
            else:
                for key, column in columns.items():
                    column.write(row - len(bad), found[key])
        return columns, bad

    def _rows_but(self, bad: Container[int]) -> list[int]:
        return [row for row in range(len(self)) if row not in bad]

    @cached_property
    def _scanned(self) -> dict[int, Arrays | Bad]:
        """The first items, up to one that can be read: what is read here is not read again."""
        found: dict[int, Arrays | Bad] = {}
        for row in range(len(self)):
            found[row] = self._prepared(row)
            if not isinstance(found[row], Bad):
                break
        return found

    @property
    def _example(self) -> Arrays:
        """The first item that can be read; no array where there is none."""
        found = list(self._scanned.values())[-1:]
        return {key: array for one in found if not isinstance(one, Bad) for key, array in one.items()}

    def _columns(self, kept_bytes: int) -> dict[str | None, Column]:
        share = kept_bytes // max(1, len(self._example))
        return {k: Column(len(self), array, share, self._levels(k, array, share)) for k, array in self._example.items()}

    def _levels(self, key: str | None, example: Tensor, share: int) -> Levels | None:
        """What fits as it is needs no packing."""
        fits = len(self) * example.nbytes <= share
        return None if fits or not self.pictures else levels_of(self.prepare, key, example)

    def _packed(self, columns: Mapping[str | None, Column]) -> Iterator[tuple[int, Arrays | Bad]]:
        """Every row in order, prepared by the threads, some dozens at a time, so that few wait to be written."""

        def packed(row: int) -> Arrays | Bad:
            found = self._scanned[row] if row in self._scanned else self._prepared(row)
            if isinstance(found, Bad):
                return found
            if found.keys() != columns.keys():
                names = [", ".join(map(str, keys)) for keys in (columns, found)]
                raise ValueError(
                    f"the preparation gives {names[0]} for one item and {names[1]} for another ({self.names[row]}): "
                    "let it give the same arrays for all."
                )
            return {key: column.packed(found[key]) for key, column in columns.items()}

        workers = self.workers or max(1, cores() // on_this_machine())
        block = 32 * workers
        with ThreadPoolExecutor(workers) as pool, progress(f"reading {self.origin}", len(self)) as tick:
            for start in range(0, len(self), block):
                rows = range(start, min(start + block, len(self)))
                yield from zip(rows, pool.map(packed, rows), strict=True)
                tick(len(rows))

    def _prepared(self, row: int) -> Arrays | Bad:
        """What is wrong with a file is the file's; what is wrong with the preparation stops everything."""
        try:
            raw = self.load(row)
        except Exception as error:  # a damaged picture can make a decoder raise anything
            return Bad(self.names[row], " ".join(str(error).split()) or type(error).__name__)
        try:
            made = self.prepare(raw)
        except Exception as error:
            what = "pictures" if self.pictures else "texts"
            raise ValueError(
                f"{self.origin} holds {what}, and the model's preparation does not take {self.names[row]} ("
                f"{type(error).__name__}: {' '.join(str(error).split())[:200]}): use a network for {what}."
            ) from error
        if isinstance(made, Mapping):
            return {str(key): torch.as_tensor(value) for key, value in made.items()}
        return {None: torch.as_tensor(made)}

    def _report(self, bad: list[Bad]) -> None:
        if not bad:
            return
        named = ", ".join(f"{one.name} ({one.reason})" for one in bad[:NAMED])
        more = f" and {len(bad) - NAMED:,} more" if len(bad) > NAMED else ""
        text = f"{self.origin}: {len(bad):,} of {len(self):,} items cannot be read: {named}{more}."
        if len(bad) == len(self) or not self.skip_bad:
            raise ValueError(f"{text} Repair or remove them, or add `bad=skip` to go on without them.")
        warn_user(f"{text} They are left out.")


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
