"""Several networks as one predictor: the average of their probabilities, or of their weights."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from peppermill.data import Batches
from peppermill.likelihood import mean_prediction
from peppermill.plumbing.nested import as_arguments, call_on_copies, output_tensor
from peppermill.plumbing.networks import as_network, refuse_training_mode
from peppermill.predictions import likelihood_of
from peppermill.types import Data, LikelihoodLike

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class DeepEnsemble(nn.Module):
    """Several trained networks, `models`, as one predictor; it holds the networks themselves, unchanged.

    It gives the logarithm of the averaged probability in the networks' own layout: valid logits.
    """

    def __init__(
        self, models: Iterable[nn.Module] | nn.ModuleList, *, likelihood: LikelihoodLike | None = None
    ) -> None:
        super().__init__()
        if isinstance(models, nn.Module) and type(models) is not nn.ModuleList:
            raise TypeError(
                f"`models` is one {type(models).__name__}, not several networks: give a list, as in `[first, second]`."
            )
        models = [as_network(model) for model in models]
        if not models:
            raise ValueError("`models` is empty: a deep ensemble needs at least one trained network.")
        for model in models:
            refuse_training_mode(model)
        self.models = nn.ModuleList(models)
        self.likelihood = likelihood_of(models[0], likelihood)
        self.training = self.models.training = False

    @property
    def size(self) -> int:
        return len(self.models)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """ln of the averaged probability."""
        outputs = (output_tensor(call_on_copies(model, args, kwargs)) for model in self.models)
        predictions = [self.likelihood.predict(output) for output in outputs]
        return self.likelihood.outputs(mean_prediction(self.likelihood, torch.stack(predictions)))

    def extra_repr(self) -> str:
        return f"size={self.size}"


class WeightAverage:
    """Add the network at the end of each epoch that counts, then ask for the averaged network.

        average = pm.WeightAverage()
        for epoch in range(epochs):
            train(network)
            if epoch >= start:
                average.add(network)
        averaged = average.network(training_data)

    It neither keeps nor changes the networks that are added.
    """

    def __init__(self) -> None:
        self.count = 0
        self._network: nn.Module | None = None
        self._means: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, network: nn.Module) -> None:
        """Take the network's present weights into the mean, which is computed in float32 at least."""
        if self._network is None:
            self._network = copy.deepcopy(network)
        added, known = network.state_dict(), self._network.state_dict()
        if [(name, value.shape) for name, value in added.items()] != [(n, v.shape) for n, v in known.items()]:
            raise ValueError(
                f"this {type(network).__name__} is not the network that was added before: the names or the shapes of "
                "its weights are others. Begin another `WeightAverage()` for it."
            )
        self.count += 1
        for name, value in added.items():
            if value.is_floating_point():
                wide = value.to(torch.promote_types(value.dtype, torch.float32))
                mean = self._means.get(name, torch.zeros_like(wide))
                self._means[name] = mean + (wide - mean) / self.count

    @torch.no_grad()
    def network(self, data: Data | None = None) -> nn.Module:
        """A network with the averaged weights, in evaluation mode.

        A network with batch norm needs labelled training `data`: none of the averaged networks has the statistics of
        the averaged weights. They are computed again, as the plain mean over the batches of one pass.
        """
        if self._network is None:
            raise ValueError("nothing was averaged: call `add(network)` at the end of each epoch that counts.")
        averaged = copy.deepcopy(self._network).eval()
        averaged.load_state_dict({name: self._means.get(name, value) for name, value in averaged.state_dict().items()})
        norms = {module: module.momentum for module in averaged.modules() if isinstance(module, BATCH_NORMS)}
        if norms and data is None:
            raise ValueError(
                f"this {type(averaged).__name__} has batch norm, whose statistics do not fit averaged weights: give "
                "training `data`, so that they can be computed anew."
            )
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # torch's way to say: a plain mean over all batches
            norm.train()
        for inputs, _ in Batches(data, averaged) if norms and data is not None else ():
            call_on_copies(averaged, *as_arguments(inputs))
        for norm, momentum in norms.items():
            norm.momentum = momentum
        return averaged.eval()
