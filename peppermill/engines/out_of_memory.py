"""Out of memory on a GPU: halve the batch and go on, with one warning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from peppermill.plumbing.nested import map_tensors, tensors_of
from peppermill.plumbing.warnings import warn_user


class Room:
    """The largest number of items that fits."""

    def __init__(self) -> None:
        self.items: int | None = None  # unknown until memory runs out

    def run(self, call: Callable[[Any, Any], Tensor], args: Any, kwargs: Any) -> Tensor:
        """The network's outputs for one batch, from parts of the batch if the whole does not fit."""
        while True:
            try:
                return call(args, kwargs) if self.items is None else self._in_parts(call, args, kwargs)
            except torch.cuda.OutOfMemoryError:
                items = min(_count(args, kwargs), self.items or _count(args, kwargs))
                if items <= 1:
                    raise
            torch.cuda.empty_cache()  # outside of `except`, which keeps the failed call's tensors alive
            if self.items is None:
                warn_user(
                    f"the GPU ran out of memory: going on with {-(-items // 2)} items at a time, and with fewer if "
                    "that is still too many. The result is the same; a smaller `batch_size` avoids the detour."
                )
            self.items = -(-items // 2)

    def _in_parts(self, call: Callable[[Any, Any], Tensor], args: Any, kwargs: Any) -> Tensor:
        count, items, outputs = _count(args, kwargs), self.items or 1, list[Tensor]()
        if items >= count:
            return call(args, kwargs)
        for start in range(0, count, items):
            some = slice(start, start + items)
            part = map_tensors(lambda x, some=some: x[some] if x.shape[:1] == (count,) else x, (args, kwargs))
            outputs.append(call(*part))
            if outputs[-1].shape[:1] != (min(items, count - start),):
                raise RuntimeError(
                    f"the GPU ran out of memory on a batch of {count} items, and the batch cannot be cut, because the "
                    f"network's outputs {list(outputs[-1].shape)} do not begin with the items: use a smaller "
                    "`batch_size`."
                )
        return torch.cat(outputs)


def _count(args: Any, kwargs: Any) -> int:
    """The number of items in a batch: the length of its first tensor."""
    return next((len(value) for value in tensors_of((args, kwargs)) if value.ndim), 1)
