"""Networks to measure, with random weights, because speed does not depend on them; and ensembles of any sigma."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

import peppermill as pm


def ensemble_at(
    model: nn.Module, data: tuple[Tensor, Tensor], sigma: float, size: int, **settings: Any
) -> pm.PepEnsemble:
    """An ensemble of a given sigma and size: fitted on four items, which takes no time, and then changed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pm.PepWarning)
        search = pm.Golden(iterations=1, lower=sigma, upper=2 * sigma)
        fitted = pm.fit(model, (data[0][:4], data[1][:4]), size=2, search=search, **settings)
    return fitted.with_size(size).with_sigma(sigma)


def mnist_mlp() -> nn.Module:
    """The MLP of Section 3.2: three hidden layers of 200 with batch norm."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Flatten()]
    for width in (784, 200, 200):
        layers += [nn.Linear(width, 200), nn.ReLU(), nn.BatchNorm1d(200, eps=1e-3)]
    return nn.Sequential(*layers, nn.Linear(200, 10)).eval()


def resnet20() -> nn.Module:
    """ResNet-20 for 32x32 images: 270 k parameters."""
    torch.manual_seed(0)
    return ResNet(blocks=3).eval()


class ResNet(nn.Module):
    """A ResNet of 6 n + 2 layers for 32x32 images (He et al., 2016), with the names of the published weights."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.layer1, self.layer2, self.layer3 = (
            nn.Sequential(*(Block(width if k else before, width) for k in range(blocks)))
            for before, width in ((16, 16), (16, 32), (32, 64))
        )
        self.linear = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        value = torch.relu(self.bn1(self.conv1(images)))
        value = self.layer3(self.layer2(self.layer1(value)))
        logits: Tensor = self.linear(value.mean(dim=(2, 3)))
        return logits


class Block(nn.Module):
    """Two convolutions and a shortcut without parameters."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.stride, self.added = outputs // inputs, outputs - inputs
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, self.stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)

    def forward(self, value: Tensor) -> Tensor:
        skip = nn.functional.pad(value[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0) + 2 * (self.added // 2,))
        return torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(value))))) + skip)
