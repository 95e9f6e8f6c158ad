"""Deep ensembles (Lakshminarayanan et al., 2017): the average probability of networks trained from different seeds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from peppermill.likelihood import mean_prediction
from peppermill.plumbing.nested import InputGuard, output_tensor
from peppermill.plumbing.networks import as_network, in_training_mode
from peppermill.predictions import likelihood_of
from peppermill.types import Likelihood


class DeepEnsemble(nn.Module):
    """Several trained networks as one predictor; it holds the networks themselves and never changes them.

    It gives the logarithm of the averaged probability in the networks' own layout: valid logits.
    """

    def __init__(
        self, models: Iterable[nn.Module] | nn.ModuleList, *, likelihood: str | Likelihood | None = None
    ) -> None:
        super().__init__()
        if isinstance(models, nn.Module) and type(models) is not nn.ModuleList:
            raise TypeError(
                f"`models` is one {type(models).__name__}, not several networks: give a list, as in `[first, second]`."
            )
        models = [as_network(model) for model in models]
        if not models:
            raise ValueError("`models` is empty: a deep ensemble needs at least one trained network.")
        training = [type(model).__name__ for model in models if in_training_mode(model)]
        if training:
            raise ValueError(
                f"{len(training)} of `models` are in training mode ({training[0]}): call `model.eval()` first."
            )
        self.models = nn.ModuleList(models)
        self.guards = [InputGuard() for _ in models]
        self.likelihood = likelihood_of(models[0], likelihood)
        self.training = self.models.training = False

    @property
    def size(self) -> int:
        return len(self.models)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """ln of the averaged probability."""
        outputs = (
            output_tensor(guard(model, args, kwargs)) for guard, model in zip(self.guards, self.models, strict=True)
        )
        predictions = [self.likelihood.predict(output) for output in outputs]
        return self.likelihood.outputs(mean_prediction(self.likelihood, torch.stack(predictions)))

    def extra_repr(self) -> str:
        return f"size={self.size}"
