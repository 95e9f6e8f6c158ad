"""One network or several as a predictor: as they are, for views of the inputs, with dropout, or averaged."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from peppermill.data import Batches
from peppermill.engines.network_shell import shell_of
from peppermill.ensemble import PepEnsemble
from peppermill.plumbing.nested import as_arguments, call_on_copies, output_tensor
from peppermill.plumbing.networks import as_network, device_of, in_training_mode, refuse_training_mode
from peppermill.predictions import likelihood_of
from peppermill.types import Data, Likelihood, LikelihoodLike
from peppermill.views import ViewsLike, views_named

GENERATOR_LOCK = threading.Lock()  # dropout draws from the global generator, which all threads share
DROPOUT_LAYERS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def average(likelihood: Likelihood, outputs: Iterable[Any]) -> Tensor:
    """ln of the averaged probability of several outputs of networks, in the networks' own layout."""
    predictions = [likelihood.predict(output_tensor(output)) for output in outputs]
    return likelihood.outputs(likelihood.average(torch.stack(predictions)))


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
        shell, device = shell_of(self.model), device_of(self.model)
        for module in shell.modules():
            if isinstance(module, DROPOUT_LAYERS):
                module.training = True
        with GENERATOR_LOCK, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(self.seed)
            return average(self.likelihood, (call_on_copies(shell, args, kwargs) for _ in range(self.passes)))

    def extra_repr(self) -> str:
        return f"passes={self.passes}, seed={self.seed}"


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
        return average(self.likelihood, (call_on_copies(model, args, kwargs) for model in self.models))

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
