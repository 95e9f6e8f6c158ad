"""Networks for 32x32 images: ResNet-20, ResNet-56, ... of He et al. (2016), and VGG16 with batch norm and dropout.

The names of the layers are those of the weights that are published for them: github akamaster/pytorch_resnet_cifar10
(shortcuts without weights, option A) and the package torch_optim (shortcuts with a 1x1 convolution, option B; VGG16).
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.table1.packages import state_of_pickled_network

#: VGG16: channels of each convolution and the dropout after it; 0 is max-pooling.
VGG16 = ((64, 0.3), (64, 0), 0, (128, 0.4), (128, 0), 0, *((256, 0.4), (256, 0.4), (256, 0), 0),
         *((512, 0.4), (512, 0.4), (512, 0), 0) * 2)  # fmt: skip


class Block(nn.Module):
    """Two 3x3 convolutions around which the input is added.

    Where sizes differ, it is thinned out and filled up with zeros (option A) or projected (option B).
    """

    def __init__(self, inputs: int, width: int, projected: bool = False) -> None:
        super().__init__()
        self.stride, self.filled = (1, 0) if inputs == width else (2, (width - inputs) // 2)
        self.conv1 = nn.Conv2d(inputs, width, 3, self.stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = None
        if projected and inputs != width:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, width, 1, self.stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        """The block's features, [B, width, ...]."""
        if self.shortcut is None:
            kept = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.filled, self.filled))
        else:
            kept = self.shortcut(x)
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + kept)


class CifarResNet(nn.Module):
    """6n + 2 layers: images [B, 3, 32, 32] to logits [B, 10]."""

    def __init__(self, depth: int, classes: int = 10, projected: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        blocks = (depth - 2) // 6
        widths = [16, *(width for width in (16, 32, 64) for _ in range(blocks))]
        pairs = [Block(inputs, width, projected) for inputs, width in pairwise(widths)]
        self.layer1, self.layer2, self.layer3 = (nn.Sequential(*pairs[k * blocks : (k + 1) * blocks]) for k in range(3))
        self.linear = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.linear(x.mean(dim=(2, 3)))
        return logits


class CifarVgg(nn.Module):
    """13 convolutions and two dense layers: images [B, 3, 32, 32] to logits [B, 10]."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for row in VGG16:
            if isinstance(row, int):
                layers.append(nn.MaxPool2d(2))
                continue
            width, dropout = int(row[0]), row[1]
            layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
            layers += [nn.Dropout(dropout)] if dropout else []
            inputs = width
        self.features = nn.Sequential(*layers)
        dense = [nn.Linear(512, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Dropout(), nn.Linear(512, classes)]
        self.classifier = nn.Sequential(nn.Dropout(), *dense)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.classifier(self.features(x).flatten(1))
        return logits


def cifar_resnet_from(path: Path, depth: int) -> CifarResNet:
    """The network with published weights: a state under "state_dict", its names after "module."."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}: name the weights with `--weights`.")
    content = torch.load(path, map_location="cpu", weights_only=True)
    state = {name.removeprefix("module."): value for name, value in content.get("state_dict", content).items()}
    return _loaded(CifarResNet(depth), state, f"{path} does not hold the weights of a ResNet-{depth} for CIFAR-10")


def torch_optim_network(depth: int | None, path: Path) -> Any:
    """A network of the package torch_optim: the ResNet of that depth, or without one VGG16."""
    model = CifarVgg() if depth is None else CifarResNet(depth, projected=True)
    return _loaded(model, state_of_pickled_network(path), f"{path} does not hold that network of torch_optim")


def _loaded(model: Any, state: dict[str, Tensor], wrong: str) -> Any:
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"{wrong}: {error}") from error
    return model.eval()
