"""WideResNet-28x10 (Zagoruyko and Komodakis, 2016): the network of the out-of-distribution experiment.

Pre-activation blocks of two 3x3 convolutions, three groups of (depth - 4) / 6 blocks, 16, 32 and 64 channels times the
width; the second and third group halve the image.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """BN, ReLU, convolution, BN, ReLU, convolution, and the input added; projected where its shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        same = inputs == outputs and stride == 1
        self.projection = None if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        active = self.norm1(images).relu()
        skipped = images if self.projection is None else self.projection(active)
        out: Tensor = self.conv2(self.norm2(self.conv1(active)).relu()) + skipped
        return out


class WideResNet(nn.Module):
    """Logits [batch, classes] of images [batch, 3, 32, 32] in 0..1, which it standardizes itself."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, classes: int, depth: int = 28, width: int = 10) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ValueError(f"`depth={depth}` must be 6 n + 4 with n at least 1, as in 10, 16, 28 or 40.")
        self.register_buffer("mean", torch.tensor([0.4914, 0.4822, 0.4465]).view(1, 3, 1, 1))  # of CIFAR-10
        self.register_buffer("deviation", torch.tensor([0.2470, 0.2435, 0.2616]).view(1, 3, 1, 1))
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        blocks: list[Block] = []
        inputs = 16
        for channels, stride in ((16, 1), (32, 2), (64, 2)):
            for number in range((depth - 4) // 6):
                blocks.append(Block(inputs, channels * width, stride if number == 0 else 1))
                inputs = channels * width
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(64 * width)
        self.output = nn.Linear(64 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.norm(self.blocks(self.stem((images - self.mean) / self.deviation))).relu()
        logits: Tensor = self.output(features.mean(dim=(2, 3)))
        return logits


@torch.no_grad()
def initialize(network: WideResNet, seed: int) -> WideResNet:
    """He's normal kernels and a zero output bias, as in the authors' code; from the seed alone."""
    generator = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu", generator=generator)
        elif isinstance(module, nn.Linear):
            nn.init.kaiming_uniform_(module.weight, generator=generator)
            module.bias.zero_()
    return network
