"""One network as a predictor: as it is, for several views of its inputs, or with its dropout active."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor, nn

from peppermill.engines.network_shell import shell_of
from peppermill.ensemble import PepEnsemble
from peppermill.likelihood import mean_prediction
from peppermill.plumbing.nested import call_on_copies, output_tensor
from peppermill.plumbing.networks import as_network, device_of, in_training_mode
from peppermill.predictions import likelihood_of
from peppermill.types import LikelihoodLike
from peppermill.views import ViewsLike, views_named

GENERATOR_LOCK = threading.Lock()  # dropout draws from the global generator, which all threads share
DROPOUT_LAYERS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


class SingleNetwork(nn.Module):
    """p(y; x, theta*) of eq. 1, as normalised log-probabilities in the network's own layout.

    It holds the network itself, not a copy, and never changes it.
    """

    def __init__(self, model: nn.Module, *, likelihood: LikelihoodLike | None = None) -> None:
        super().__init__()
        self.model = model = as_network(model)
        self.likelihood = likelihood_of(model, likelihood)
        self.training = in_training_mode(model)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        predictions = self.likelihood.predict(output_tensor(self.model(*args, **kwargs)))
        return self.likelihood.outputs(predictions)


class TestTimeAugmentation(PepEnsemble):
    """The average probability for the inputs as they are and for each view: an ensemble without noise, a pass each."""

    __test__ = False  # pytest takes classes whose name begins with Test for tests

    def __init__(
        self, model: nn.Module, views: ViewsLike = "horizontal_flip", *, likelihood: LikelihoodLike | None = None
    ) -> None:
        model, passes = as_network(model), max(1, len(views_named(views)))
        chosen = likelihood_of(model, likelihood)
        pep = PepEnsemble.at_sigma(model, 0.0, parameters="all", size=passes, likelihood=chosen, views=views)
        super().__init__(model, pep.recipe, pep.engine)


class McDropout(nn.Module):
    """The average probability of `passes` stochastic passes, as its logarithm; 25 passes as in the paper's Table 2.

    They run on a shell around the network's weights in which only the dropout layers are active: the network itself
    never changes. The same seed gives the same masks for batches of the same shape; global generators are not used.
    """

    def __init__(
        self, model: nn.Module, passes: int = 25, *, seed: int = 0, likelihood: LikelihoodLike | None = None
    ) -> None:
        super().__init__()
        if passes < 1:
            raise ValueError(f"`passes={passes}` must be at least 1; 25 is the paper's choice.")
        if not any(isinstance(module, DROPOUT_LAYERS) for module in model.modules()):
            raise ValueError(
                f"this {type(model).__name__} has no dropout layer (such as nn.Dropout), so every pass would be "
                "the same: train one with dropout, or use `pm.fit`."
            )
        self.model, self.passes, self.seed = model, passes, seed
        self.likelihood = likelihood_of(model, likelihood)
        self.training = in_training_mode(model)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """ln of the averaged probability, in the network's own layout."""
        shell, device = shell_of(self.model), device_of(self.model)
        for module in shell.modules():
            if isinstance(module, DROPOUT_LAYERS):
                module.training = True
        with GENERATOR_LOCK, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(self.seed)
            outputs = (output_tensor(call_on_copies(shell, args, kwargs)) for _ in range(self.passes))
            predictions = [self.likelihood.predict(output) for output in outputs]
        return self.likelihood.outputs(mean_prediction(self.likelihood, torch.stack(predictions)))

    def extra_repr(self) -> str:
        return f"passes={self.passes}, seed={self.seed}"
