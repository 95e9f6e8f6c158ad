"""MC dropout of S networks: passes over one set of images with dropout active, each with masks of its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from peppermill.paper.folding import Layers
from peppermill.paper.machine import precision
from peppermill.paper.masks import Dropped
from peppermill.paper.members import Images, Stack, log_probs_of
from peppermill.paper.stacked import apply_layer, entered

BATCH = {"cuda": 2000, "cpu": 250}  # images at once: another number would draw other masks


class Dropping:
    """What the layers before the first dropout make of the images is the same in every pass: it is kept if it fits."""

    @torch.no_grad()
    def __init__(self, stack: Stack, data: Images) -> None:
        self.stack, self.layers = stack, list(stack.network.named_children())
        batches = torch.split(data.images, BATCH[data.images.device.type])
        self.sizes, self.inputs = [len(batch) for batch in batches], [entered(batch, len(stack)) for batch in batches]
        first = next(k for k, (_, layer) in enumerate(self.layers) if isinstance(layer, nn.Dropout))
        if self._run(self.layers[:first], self.inputs[0]).nbytes * len(batches) <= data.room:
            self.inputs = [self._run(self.layers[:first], value) for value in self.inputs]
            self.layers = self.layers[first:]

    @torch.no_grad()
    def log_probs(self, masks: Dropped) -> Tensor:
        """Log-probabilities [S, N, K] of one pass, in float64."""
        return torch.cat([self._batch(*one, masks) for one in zip(self.sizes, self.inputs, strict=True)], dim=1)

    def _batch(self, size: int, value: Tensor, masks: Dropped) -> Tensor:
        if not masks.knows(size):
            self._run(self.layers, value, masks)  # learns the shapes
        masks.refill(size)
        return log_probs_of(self._run(self.layers, value, masks))

    def _run(self, layers: Layers, value: Tensor, masks: Dropped | None = None) -> Tensor:
        with precision(self.stack.machine):
            for name, layer in layers:
                value = apply_layer(name, layer, self.stack.state, value, masks=masks)
        return value
