"""Test-time augmentation: the average probability of one network for several views of its inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from peppermill.likelihood import mean_prediction
from peppermill.plumbing.nested import output_tensor
from peppermill.plumbing.networks import as_network, in_training_mode
from peppermill.predictions import likelihood_of
from peppermill.types import Likelihood
from peppermill.views import IDENTITY, ViewsLike, views_named


class TestTimeAugmentation(nn.Module):
    """The network's average probability for the inputs as they are and for each view, as its logarithm; one pass each.

    It holds the network itself, not a copy, and never changes it.
    """

    __test__ = False  # pytest takes classes whose name begins with Test for tests

    def __init__(
        self, model: nn.Module, views: ViewsLike = "horizontal_flip", *, likelihood: str | Likelihood | None = None
    ) -> None:
        super().__init__()
        self.model = model = as_network(model)
        self.views = views_named(views) or (IDENTITY,)
        self.likelihood = likelihood_of(model, likelihood)
        self.training, self.passes = in_training_mode(model), len(self.views)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """ln of the averaged probability, in the network's own layout."""

        def outputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
            return output_tensor(self.model(*args, **kwargs)).unsqueeze(0)

        seen = torch.cat([view.outputs(outputs, args, kwargs) for view in self.views])
        predictions = torch.stack([self.likelihood.predict(one) for one in seen])
        return self.likelihood.outputs(mean_prediction(self.likelihood, predictions))
