"""PepPredictor: an ensemble in the actors of Ray Data, built once in each from a factory and pep.json."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from peppermill.ensemble import load
from peppermill.streaming.columns import BatchColumns
from peppermill.streaming.numbered_batches import NumberedBatch


class PepPredictor:
    """A class for `ray.data.Dataset.map_batches`, which makes one in each actor and calls it with dicts of arrays.

    `factory` makes the network, and `pep` is the file that `save` wrote; without it the predictions are the network's
    own. The network gets the column `inputs`, or several by their names; `prepare` turns one item of a column into a
    tensor. Every other column stays beside the predictions: an id, say, because actors finish in any order. `columns`
    and `top` are those of `peppermill predict`.
    """

    def __init__(
        self,
        factory: Callable[[], nn.Module],
        pep: str | Path | None = None,
        *,
        inputs: str | Sequence[str] = "x",
        prepare: Callable[[Any], Tensor] | None = None,
        columns: str | Sequence[str] | None = None,
        top: int | None = None,
        device: str = "cpu",
    ) -> None:
        network = factory().to(device).eval()
        self.columns_of = BatchColumns(load(pep, network) if pep else network, columns, top)
        self.inputs, self.prepare = inputs, prepare

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        names = [self.inputs] if isinstance(self.inputs, str) else list(self.inputs)
        for name in set(names) - batch.keys():
            raise ValueError(f"`inputs={self.inputs!r}`: the data have no column {name!r}, only {', '.join(batch)}.")
        given = {name: self._tensor(batch[name]) for name in names}
        inputs = given[self.inputs] if isinstance(self.inputs, str) else given
        count = len(batch[names[0]])
        found = self.columns_of(NumberedBatch(0, np.arange(count), count, inputs))
        del found["row"]
        return {**{name: column for name, column in batch.items() if name not in given}, **found}

    def _tensor(self, column: np.ndarray) -> Tensor:
        if self.prepare is not None:
            return torch.stack([self.prepare(item) for item in column])
        column = np.stack(list(column)) if column.dtype == object else column  # a list in each row
        return torch.from_numpy(np.require(column, requirements="W"))
