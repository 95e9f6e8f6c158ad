"""The small networks of Section 3.2: batch normalization after the ReLU, and Keras' defaults.

Each maps images [batch, channels, height, width] in 0..1 to logits. With `dropout=True` it is the network of the
MC-dropout column.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Generator, Tensor, nn

EPSILON = 1e-3  # Keras' default for batch normalization (the authors' scripts)
RATE = 0.5  # of dropout (Section 3.2)

Layers = list[tuple[str, nn.Module]]


class SeededDropout(nn.Dropout):
    """Dropout that draws from a generator of its own while the network trains, so that neighbours do not matter."""

    generator: Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.generator is None or not self.training:
            return super().forward(x)
        mask = torch.empty_like(x).bernoulli_(1 - self.p, generator=self.generator)
        return x * mask / (1 - self.p)


def mnist_mlp(classes: int = 10, dropout: bool = False) -> nn.Sequential:
    """Three hidden layers of 200 (Section 3.2); Keras' default momentum 0.99 for the moving averages."""
    layers: Layers = [("flatten", nn.Flatten())]
    for number, width in ((1, 784), (2, 200), (3, 200)):
        layers += _dense(number, width, 200, momentum=0.01, dropout=dropout)
    return nn.Sequential(OrderedDict([*layers, ("output", nn.Linear(200, classes))]))


def mnist_cnn(classes: int = 10, dropout: bool = False) -> nn.Sequential:
    """Convolutions of 32 and 64 kernels, dense layers of 128 and 64 (Section 3.2), for MNIST and Fashion-MNIST."""
    layers = [
        *_convolution(1, 1, 32, padding=0),
        *_convolution(2, 32, 64, padding=0, dropout=dropout),
        ("pool1", nn.MaxPool2d(2)),
        ("flatten", nn.Flatten()),
        *_dense(1, 64 * 12 * 12, 128, momentum=0.1, dropout=dropout),
        *_dense(2, 128, 64, momentum=0.1, dropout=dropout),
        ("output", nn.Linear(64, classes)),
    ]
    return nn.Sequential(OrderedDict(layers))


def cifar_cnn(classes: int = 10, dropout: bool = False) -> nn.Sequential:
    """Two convolutions of 16 kernels, two of 32, a dense layer of 128 (Section 3.2), for CIFAR-10 and CIFAR-100."""
    layers = [
        *_convolution(1, 3, 16, padding=1),
        *_convolution(2, 16, 16, padding=0),
        ("pool1", nn.MaxPool2d(2)),
        *_convolution(3, 16, 32, padding=1, dropout=dropout),
        *_convolution(4, 32, 32, padding=0, dropout=dropout),
        ("pool2", nn.MaxPool2d(2)),
        ("flatten", nn.Flatten()),
        *_dense(1, 32 * 6 * 6, 128, momentum=0.1, dropout=dropout),
        ("output", nn.Linear(128, classes)),
    ]
    return nn.Sequential(OrderedDict(layers))


#: The networks by name. A new one is one function and one row here.
NETWORKS: dict[str, Callable[[int, bool], nn.Sequential]] = {
    "mnist_mlp": mnist_mlp,
    "mnist_cnn": mnist_cnn,
    "cifar_cnn": cifar_cnn,
}


@torch.no_grad()
def initialize(network: nn.Sequential, seed: int) -> nn.Sequential:
    """Glorot uniform kernels and zero biases (Keras' defaults), drawn on the CPU from the seed alone."""
    generator = Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_uniform_(module.weight, generator=generator)
            nn.init.zeros_(module.bias)
    return network


def _convolution(number: int, inputs: int, outputs: int, padding: int, dropout: bool = False) -> Layers:
    layers: Layers = [
        (f"conv{number}", nn.Conv2d(inputs, outputs, 3, padding=padding)),
        (f"conv{number}_relu", nn.ReLU()),
        (f"conv{number}_norm", nn.BatchNorm2d(outputs, EPSILON, momentum=0.1)),  # Keras momentum 0.9
    ]
    return [*layers, (f"conv{number}_dropout", SeededDropout(RATE))] if dropout else layers


def _dense(number: int, inputs: int, outputs: int, momentum: float, dropout: bool) -> Layers:
    layers: Layers = [
        (f"dense{number}", nn.Linear(inputs, outputs)),
        (f"dense{number}_relu", nn.ReLU()),
        (f"dense{number}_norm", nn.BatchNorm1d(outputs, EPSILON, momentum=momentum)),
    ]
    return [*layers, (f"dense{number}_dropout", SeededDropout(RATE))] if dropout else layers
