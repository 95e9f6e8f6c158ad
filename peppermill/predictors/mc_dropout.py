"""MC dropout (Gal and Ghahramani, 2016) of any network with dropout layers: several passes with dropout active."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from peppermill.data import output_tensor
from peppermill.plumbing.devices import device_of
from peppermill.plumbing.modes import in_training_mode
from peppermill.predictions import likelihood_of
from peppermill.types import Likelihood


class McDropout(nn.Module):
    """The average probability of `passes` stochastic passes, as its logarithm; 25 passes as in the paper's Table 2.

    Only the dropout layers are active, and only during a call: batch norm keeps to its statistics, and the network is
    as it was afterwards. The same seed gives the same masks for batches of the same shape; the global generators are
    left alone.
    """

    def __init__(
        self, model: nn.Module, passes: int = 25, *, seed: int = 0, likelihood: str | Likelihood | None = None
    ) -> None:
        super().__init__()
        if passes < 1:
            raise ValueError(f"`passes={passes}` must be at least 1; 25 is the paper's choice.")
        if not any(isinstance(module, _DropoutNd) for module in model.modules()):
            raise ValueError(
                f"this {type(model).__name__} has no dropout layer (nn.Dropout and its kin), so every pass would be "
                "the same: train one with dropout, or use `pm.fit`."
            )
        self.model, self.passes, self.seed = model, passes, seed
        self.likelihood = likelihood_of(model, likelihood)
        self.training = in_training_mode(model)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """ln of the averaged probability, in the network's own layout."""
        total = None
        with _active_dropout(self.model), _seeded(self.model, self.seed):
            for _ in range(self.passes):
                predictions = self.likelihood.predict(output_tensor(self.model(*args, **kwargs)))
                total = self.likelihood.accumulate(total, predictions)
        assert total is not None
        return self.likelihood.outputs(self.likelihood.average(total, self.passes))

    def extra_repr(self) -> str:
        return f"passes={self.passes}, seed={self.seed}"


@contextmanager
def _active_dropout(model: nn.Module) -> Iterator[None]:
    """Dropout layers in training mode, and back again, also after an exception."""
    before = {module: module.training for module in model.modules() if isinstance(module, _DropoutNd)}
    try:
        for module in before:
            module.training = True
        yield
    finally:
        for module, training in before.items():
            module.training = training


@contextmanager
def _seeded(model: nn.Module, seed: int) -> Iterator[None]:
    device = device_of(model)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
