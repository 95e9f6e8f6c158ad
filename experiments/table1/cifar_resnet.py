"""ResNet-20, ResNet-56, ... of He et al. (2016) for 32x32 images, with shortcuts that have no weights (option A).

The names of the layers are those of the weights that are published for them (github akamaster/pytorch_resnet_cifar10).
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Two 3x3 convolutions around which the input is added, thinned out and filled up with zeros where sizes differ."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.stride, self.filled = (1, 0) if inputs == width else (2, (width - inputs) // 2)
        self.conv1 = nn.Conv2d(inputs, width, 3, self.stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """The block's features, [B, width, ...]."""
        kept = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.filled, self.filled))
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + kept)


class CifarResNet(nn.Module):
    """6n + 2 layers: images [B, 3, 32, 32] to logits [B, 10]."""

    def __init__(self, depth: int, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        blocks = (depth - 2) // 6
        widths = [16, *(width for width in (16, 32, 64) for _ in range(blocks))]
        pairs = [Block(inputs, width) for inputs, width in pairwise(widths)]
        self.layer1, self.layer2, self.layer3 = (nn.Sequential(*pairs[k * blocks : (k + 1) * blocks]) for k in range(3))
        self.linear = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.linear(x.mean(dim=(2, 3)))
        return logits


def cifar_resnet_from(path: Path, depth: int) -> CifarResNet:
    """The network with published weights: a state under "state_dict", its names after "module."."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}: name the weights with `--weights`.")
    content = torch.load(path, map_location="cpu", weights_only=True)
    state = {name.removeprefix("module."): value for name, value in content.get("state_dict", content).items()}
    model = CifarResNet(depth)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"{path} does not hold the weights of a ResNet-{depth} for CIFAR-10: {error}") from error
    return model.eval()
