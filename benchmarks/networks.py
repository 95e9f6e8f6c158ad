"""Networks to measure: random weights, because speed does not depend on them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
        )
        self.second = nn.Sequential(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        self.stride, self.padding = stride, (outputs - inputs) // 2

    def forward(self, images: Tensor) -> Tensor:
        skip = images[:, :, :: self.stride, :: self.stride]
        skip = nn.functional.pad(skip, (0, 0, 0, 0, self.padding, self.padding))
        return torch.relu(self.second(self.first(images)) + skip)


def resnet20() -> nn.Module:
    """ResNet-20 for 32x32 images (He et al., 2016): 270 k parameters, shortcuts without parameters."""
    torch.manual_seed(0)
    widths = [16] * 3 + [32] * 3 + [64] * 3
    blocks = [_Block(a, b, 1 if a == b else 2) for a, b in zip([16, *widths], widths, strict=False)]
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).eval()
