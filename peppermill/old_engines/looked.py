"""What one pass of a network is like, found by making one: the engines that run members together decide by it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from peppermill.data import map_tensors
from peppermill.old_engines.recorded import Watching

#: Where the weight of a product is among its arguments; it is summed over all dimensions of a weight but the outputs'.
_WEIGHTS = {"aten::mm": 1, "aten::addmm": 2, "aten::bmm": 1, "aten::baddbmm": 2, "aten::convolution": 1}


class Look(Watching):  # type: ignore[no-untyped-call]
    """The bytes of the largest tensor, the multiplications of each product, in order, and those of convolutions."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes, self.products, self.convolved = 1, list[int](), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        name = func._schema.name
        if name in _WEIGHTS:
            weight = args[_WEIGHTS[name]]
            convolves = "conv" in name
            self.products.append(outputs.numel() * (weight[0].numel() if convolves else weight.shape[-2]))
            self.convolved += self.products[-1] * convolves
        if not func.is_view:
            map_tensors(lambda value: setattr(self, "bytes", max(self.bytes, value.nbytes)), outputs)
        return outputs

    @property
    def first_share(self) -> float:
        """The first product's share of all multiplications."""
        return self.products[0] / max(1, sum(self.products)) if self.products else 0.0


@torch.no_grad()
def look_at(function: Callable[[], Any]) -> Look:
    """Call the function and look; its largest tensor is beyond all bounds where memory runs out."""
    look = Look()
    try:
        with look:
            function()
    except torch.cuda.OutOfMemoryError:
        look.bytes = sys.maxsize
    return look
