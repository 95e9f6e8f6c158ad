"""Out of memory on a GPU: halve the batch and go on, with one warning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from peppermill.plumbing.nested import map_tensors, output_tensor
from peppermill.plumbing.warnings import warn_user


class Room:
    """The largest number of items that fits; unknown until memory runs out."""

    def __init__(self) -> None:
        self.items: int | None = None

    def run(self, call: Callable[[Any, Any], Any], args: Any, kwargs: Any) -> Tensor:
        """The network's outputs for one batch, from parts of the batch if the whole does not fit."""
        if self.items is None:
            try:
                return output_tensor(call(args, kwargs))
            except torch.cuda.OutOfMemoryError:
                pass  # what follows runs outside of `except`, which keeps the failed call's tensors alive
        lengths: list[int] = []
        map_tensors(lambda value: lengths.extend(value.shape[:1]), (args, kwargs))
        count = lengths[0] if lengths else 1
        items = count if self.items is None else min(count, self.items)
        while True:
            try:
                return _in_parts(call, args, kwargs, count, items)
            except torch.cuda.OutOfMemoryError:
                if items <= 1:
                    raise
            items = -(-items // 2)  # outside of `except`, which keeps the failed call's tensors alive
            self._shrink(items)

    def _shrink(self, items: int) -> None:
        torch.cuda.empty_cache()
        if self.items is None:
            warn_user(
                f"the GPU ran out of memory: going on with {items} items at a time, and with fewer if that is still "
                "too many. The result is the same; a smaller `batch_size` avoids the detour."
            )
        self.items = items


def _in_parts(call: Callable[[Any, Any], Any], args: Any, kwargs: Any, count: int, items: int) -> Tensor:
    if items >= count:
        return output_tensor(call(args, kwargs))
    outputs = []
    for start in range(0, count, items):
        some = slice(start, start + items)
        part = map_tensors(
            lambda value, some=some: value[some] if value.shape[:1] == (count,) else value, (args, kwargs)
        )
        outputs.append(output_tensor(call(*part)))
        if outputs[-1].shape[:1] != (min(items, count - start),):
            raise RuntimeError(
                f"the GPU ran out of memory on a batch of {count} items, and the batch cannot be cut, because the "
                f"network's outputs {list(outputs[-1].shape)} do not begin with the items: use a smaller `batch_size`."
            )
    return torch.cat(outputs)
