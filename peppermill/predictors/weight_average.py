"""Stochastic weight averaging (Izmailov et al., 2018): the mean of the weights along a training run."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from peppermill.data import Batches, call
from peppermill.types import Data


class WeightAverage:
    """Add the network at the end of each epoch that counts, then ask for the averaged network.

        average = pm.WeightAverage()
        for epoch in range(epochs):
            train(network)
            if epoch >= start:
                average.add(network)
        averaged = average.network(training_data)

    The networks that are added are not kept and not changed.
    """

    def __init__(self) -> None:
        self.count = 0
        self._network: nn.Module | None = None
        self._means: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, network: nn.Module) -> None:
        """Take the network's present weights into the mean, which is kept in float32 at least."""
        if self._network is None:
            self._network = copy.deepcopy(network)
        elif _shapes(network) != _shapes(self._network):
            raise ValueError(
                f"this {type(network).__name__} is not the network that was added before: the names or the shapes of "
                "its weights are others. Begin another `WeightAverage()` for it."
            )
        self.count += 1
        for name, value in network.state_dict().items():
            if value.is_floating_point():
                wide = value.to(torch.promote_types(value.dtype, torch.float32))
                known = self._means.get(name)
                self._means[name] = wide.clone() if known is None else known + (wide - known) / self.count

    def network(self, data: Data | None = None) -> nn.Module:
        """A network with the averaged weights, in evaluation mode.

        A network with batch norm needs labelled training `data`: the statistics of the averaged weights are those of
        none of the networks that were averaged.
        """
        if self._network is None:
            raise ValueError("nothing was averaged: call `add(network)` at the end of each epoch that counts.")
        averaged = copy.deepcopy(self._network)
        state = {name: self._means.get(name, value) for name, value in averaged.state_dict().items()}
        averaged.load_state_dict(state)
        norms = [module for module in averaged.modules() if isinstance(module, _BatchNorm)]
        if norms and data is None:
            raise ValueError(
                f"this {type(averaged).__name__} has batch norm, whose statistics do not fit averaged weights: give "
                "training `data`, so that they can be computed anew."
            )
        if norms and data is not None:
            _refresh(averaged, norms, Batches(data, averaged))
        return averaged.eval()


def _shapes(network: nn.Module) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in network.state_dict().items()}


@torch.no_grad()
def _refresh(network: nn.Module, norms: list[_BatchNorm], batches: Batches) -> None:
    """Batch-norm statistics as the plain mean over the batches of one pass; nothing else is in training mode."""
    network.eval()
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # torch's way to say: a plain mean over all batches
        norm.train()
    for inputs, _ in batches:
        call(network, inputs)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
