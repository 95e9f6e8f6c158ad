"""One ensemble, and the same averaged prediction by what people would use instead, where that is installed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache, cached_property, partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import peppermill as pm
from benchmarks.networks import ensemble_at

SIZE, SIGMA = 10, 0.02  # the paper's m at test; time does not depend on sigma
LAPLACE_ITEMS = 40  # on which laplace-torch is fitted: they change the time of fitting, not that of predicting

#: The packages of others, by the name under which they are imported.
PEERS = {"laplace": "laplace-torch", "torch_uncertainty": "torch-uncertainty"}

Job = Callable[[], Any]


class Rivals:
    """Every way to the averaged probabilities of some batches; what a way needs is made when it is first used."""

    def __init__(self, model: nn.Module, images: Tensor, labels: Tensor) -> None:
        self.model, self.images, self.labels = model, images, labels
        self.laplace = cache(self.fitted_laplace)

    def ways(self) -> dict[str, Callable[[list[Tensor]], Job]]:
        """From the name to what makes a job of batches; ours comes first."""
        found: dict[str, Callable[[list[Tensor]], Job]] = {
            "ours": self.member_after_member,
            "ours_by_batch": partial(_each, lambda images: self.ensemble("kernels").predict_proba(images)),
            "plain": partial(_each, lambda images: [self.model(images) for _ in range(SIZE)]),
            "copies": partial(_each, self.mean_of_copies),
        }
        if find_spec("torch_uncertainty"):
            found["torch_uncertainty"] = partial(_each, lambda images: self.mean_of_wrapped(images))
        if find_spec("laplace"):
            found["laplace_all"] = partial(_each, lambda images: self.sampled("all", images))
            found["ours_last_layer"] = partial(_each, lambda x: self.ensemble("last_layer").predict_proba(x))
            found["laplace_last_layer"] = partial(_each, lambda images: self.sampled("last_layer", images))
        return found

    def member_after_member(self, batches: list[Tensor]) -> Job:
        """One member over all batches, then the next, as `evaluate` and `fit` run them."""
        data = [(images, self.labels[: len(images)]) for images in batches]
        return partial(self.ensemble("kernels").predict_items, data)

    @cache  # noqa: B019  (one object lives as long as the process)
    def ensemble(self, parameters: str) -> pm.PepEnsemble:
        """At a sigma of our choice, without a search."""
        return ensemble_at(self.model, (self.images, self.labels), SIGMA, SIZE, parameters=parameters)

    @cached_property
    def copies(self) -> list[nn.Module]:
        return [self.copy(member) for member in range(SIZE)]

    @torch.no_grad()
    def copy(self, member: int) -> nn.Module:
        """A network with a member's weights."""
        found = copy.deepcopy(self.model)
        for name, value in self.ensemble("kernels").perturbation.member(SIGMA, member).items():
            found.get_parameter(name).copy_(value)
        return found

    def mean_of_copies(self, images: Tensor) -> Tensor:
        """What one writes oneself."""
        return torch.stack([network(images).softmax(dim=-1) for network in self.copies]).mean(dim=0)

    @cached_property
    def wrapped(self) -> nn.Module:
        """The copies as torch-uncertainty keeps them."""
        let_torchvision_import()
        from torch_uncertainty.methods import deep_ensembles

        found: nn.Module = deep_ensembles(self.copies).eval()
        return found

    def mean_of_wrapped(self, images: Tensor) -> Tensor:
        """It gives the logits of all members, [m * B, K]."""
        logits: Tensor = self.wrapped(images)
        return logits.unflatten(0, (SIZE, -1)).softmax(dim=-1).mean(dim=0)

    def fitted_laplace(self, weights: str) -> Any:
        """laplace-torch's diagonal posterior over all weights, or those of the last layer."""
        let_torchvision_import()
        from laplace import Laplace

        found = Laplace(copy.deepcopy(self.model), "classification", weights, "diag")
        few = TensorDataset(self.images[:LAPLACE_ITEMS], self.labels[:LAPLACE_ITEMS])
        found.fit(DataLoader(few, batch_size=20))
        return found

    def sampled(self, weights: str, images: Tensor) -> Any:
        """Networks drawn from that posterior, their probabilities averaged."""
        return self.laplace(weights)(images, pred_type="nn", link_approx="mc", n_samples=SIZE)

    @torch.no_grad()
    def agreement(self) -> float:
        """The largest difference between our probabilities and those of the copies."""
        images = self.images[:100]
        return float((self.ensemble("kernels").predict_proba(images) - self.mean_of_copies(images)).abs().max())


def versions_of_peers() -> dict[str, str]:
    """Of those that are installed."""
    return {package: version(package) for name, package in PEERS.items() if find_spec(name)}


def _each(predict: Callable[[Tensor], Any], batches: list[Tensor]) -> Job:
    """The job that predicts batch after batch; once before, so that what it needs is there."""
    job = torch.no_grad()(lambda: [predict(images) for images in batches])
    predict(batches[0][:1])
    return job


def let_torchvision_import() -> None:
    """Beside torch without CUDA its compiled operators may be absent, and it fails to import unless the names exist."""
    if torch.version.cuda is None and not hasattr(torch.ops.torchvision, "nms"):
        for operator in ("nms", "qnms"):
            torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float threshold) -> Tensor")
