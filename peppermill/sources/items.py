"""Pictures or texts in files as a Dataset: known by name and label, decoded once, when a batch needs them.

Threads decode, because Pillow works without holding Python's lock, and because a preparation need not be copied to
other processes.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from peppermill.datasets.disk_cache import DiskCache
from peppermill.plumbing.nested import digest_of
from peppermill.plumbing.progress import progress
from peppermill.plumbing.warnings import warn_user
from peppermill.sources.source import one_of, whole_number

CURE = "Repair or remove them, or add `bad=skip` to go on without them."
NAMED_BAD_ITEMS = 3  # that a message names
BLOCK_ITEMS = 256  # that are read at a time when all are checked


@dataclass(frozen=True, eq=False)
class Items(Dataset[Any]):
    """N items. `load` gives the raw item (a PIL image, a string) of a row and raises if it is damaged; `prepare` makes
    the network's input of it.

    A preparation with two steps, `pixels` and `scale`, has the result of the first one cached. `class_names` is given
    if the labels are numbers of named classes.
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
    workers: int = 0  # 0 means one for each core
    decoded: DiskCache = field(default_factory=DiskCache, repr=False)  # by their names; shared by all parts
    kinds: list[Any] = field(default_factory=list, repr=False)  # names, shapes and types of the arrays: one for all

    is_cached = True

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, item: int) -> tuple[Any, Tensor]:
        return self.__getitems__([item])[0]

    def __getitems__(self, items: Sequence[int]) -> list[tuple[Any, Tensor]]:
        """Inputs and labels of a batch, as a DataLoader asks for them. An item that cannot be read is an error."""
        found = self._read(items)
        if any(isinstance(one, str) for one in found):
            raise ValueError(f"{self._complaint(self._bad(), len(self))} {CURE}")
        scale = getattr(self.prepare, "scale", lambda inputs: inputs)
        return [(scale(one), self.labels[item]) for one, item in zip(found, items, strict=True)]

    def read_rows(self, start: int, stop: int) -> tuple[list[int], Any, Tensor | None, list[str]]:
        """Rows, inputs, labels and names of a batch for a single pass, in which nothing is worth caching.

        Items that cannot be read are an error, or with `bad=skip` left out.
        """
        found = dict(zip(range(start, stop), self._fresh(range(start, stop)), strict=True))
        bad = {row: one for row, one in found.items() if isinstance(one, str)}
        if bad and not self.skip_bad:
            raise ValueError(f"{self._complaint(bad, len(found))} {CURE}")
        if bad:
            warn_user(f"{self._complaint(bad, len(found))} They are left out.")
        scale = getattr(self.prepare, "scale", lambda inputs: inputs)
        rows = [row for row in found if row not in bad]
        inputs = default_collate([scale(found[row]) for row in rows]) if rows else None
        return rows, inputs, self.labels[rows] if self.labelled else None, [self.names[row] for row in rows]

    def digest(self) -> int:
        """A number that changes with the names, the labels or the first item."""
        digest = 0
        for name in self.names:
            digest = zlib.crc32(os.fsencode(f"{name}\n"), digest)
        return digest_of([self.labels if self.labelled else (), self._read([self.first_readable()])[0]], digest)

    def first_readable(self) -> int:
        """The first item; with `bad=skip`, the first that can be read."""
        items = iter(range(len(self)) if self.skip_bad else ())
        return next((item for item in items if not isinstance(self._read([item])[0], str)), 0)

    def take_rows(self, rows: np.ndarray) -> Items:
        """The items of these rows."""
        return replace(
            self,
            names=[self.names[k] for k in rows],
            labels=self.labels[torch.from_numpy(rows)],
            load=lambda item: self.load(int(rows[item])),
        )

    def readable(self) -> Items:
        """With `bad=skip`, the items that can be read; every item is read once to know."""
        bad = self._bad() if self.skip_bad else {}
        if bad and len(bad) < len(self):
            warn_user(f"{self._complaint(bad, len(self))} They are left out.")
            return self.take_rows(np.array([item for item in range(len(self)) if item not in bad]))
        return self

    def _bad(self) -> dict[int, str]:
        """Name and reason of each item that cannot be read."""
        bad: dict[int, str] = {}
        with progress(f"reading {self.origin}", len(self)) as tick:
            for start in range(0, len(self), BLOCK_ITEMS):
                items = range(start, min(start + BLOCK_ITEMS, len(self)))
                bad |= {k: one for k, one in zip(items, self._read(items), strict=True) if isinstance(one, str)}
                tick(len(items))
        return bad

    def _complaint(self, bad: Mapping[int, str], count: int) -> str:
        named = ", ".join(list(bad.values())[:NAMED_BAD_ITEMS])
        more = f" and {len(bad) - NAMED_BAD_ITEMS:,} more" if len(bad) > NAMED_BAD_ITEMS else ""
        return f"{self.origin}: {len(bad):,} of {count:,} items cannot be read: {named}{more}."

    def _read(self, items: Iterable[int]) -> list[Any]:
        """What `scale` or the network takes, for each item; a text that says why for an item that cannot be read."""
        names = [self.names[item] for item in items]
        new = {name: item for name, item in zip(names, items, strict=True) if name not in self.decoded.entries}
        fresh = dict(zip(new, self._fresh(new.values()), strict=True))
        for name, found in fresh.items():
            if not isinstance(found, str):
                self.decoded.add(name, found)
        return [fresh[name] if name in fresh else self.decoded[name] for name in names]

    def _fresh(self, items: Collection[int]) -> list[Any]:
        """The same, from the files, by several threads."""
        with ThreadPoolExecutor(self.workers or cores()) as pool:
            made = list(pool.map(self._decode, items))
        for item, found in zip(items, made, strict=True):
            if isinstance(found, str):
                continue
            arrays = found if isinstance(found, dict) else {"array": found}
            kind = {key: (list(array.shape), array.dtype) for key, array in arrays.items()}
            self.kinds[:] = self.kinds or [kind]
            if kind != self.kinds[0]:
                raise ValueError(
                    f"the preparation gives {self.kinds[0]} for one item and {kind} for another "
                    f"({self.names[item]}): let it resize or pad every item to one shape, with the same arrays."
                )
        return made

    def _decode(self, item: int) -> Any:
        """A damaged file is counted; a preparation that fails stops everything."""
        try:
            raw = self.load(item)
        except Exception as error:  # a damaged picture can make a decoder raise anything
            return f"{self.names[item]} ({' '.join(str(error).split()) or type(error).__name__})"
        try:
            made = getattr(self.prepare, "pixels", self.prepare)(raw)
        except Exception as error:
            what = "pictures" if self.pictures else "texts"
            raise ValueError(
                f"{self.origin} holds {what}, and the model's preparation does not take {self.names[item]} ("
                f"{type(error).__name__}: {' '.join(str(error).split())[:200]}): use a network for {what}."
            ) from error
        if isinstance(made, Mapping):
            return {str(key): torch.as_tensor(value) for key, value in made.items()}
        return torch.as_tensor(made)


def reading(options: dict[str, str]) -> dict[str, Any]:
    """How items are read: the options `bad=skip` and `workers=8`."""
    skip_bad = one_of(options, "bad", ("error", "skip"), "error") == "skip"
    return {"skip_bad": skip_bad, "workers": whole_number(options, "workers", 0)}


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
