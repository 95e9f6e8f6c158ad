"""The network as it is, as a predictor: what every other method is compared with."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from peppermill.plumbing.nested import output_tensor
from peppermill.plumbing.networks import as_network, in_training_mode
from peppermill.predictions import likelihood_of
from peppermill.types import Likelihood


class SingleNetwork(nn.Module):
    """p(y; x, theta*) of eq. 1, as normalised log-probabilities in the network's own layout.

    It holds the network itself, not a copy, and never changes it.
    """

    def __init__(self, model: nn.Module, *, likelihood: str | Likelihood | None = None) -> None:
        super().__init__()
        self.model = model = as_network(model)
        self.likelihood = likelihood_of(model, likelihood)
        self.training = in_training_mode(model)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        predictions = self.likelihood.predict(output_tensor(self.model(*args, **kwargs)))
        return self.likelihood.outputs(predictions)
