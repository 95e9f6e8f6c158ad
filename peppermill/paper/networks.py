"""The small networks of Section 3.2, built as the paper's were: batch normalization after the ReLU, Keras' defaults.

Each is one `nn.Sequential` from images [batch, channels, height, width] in 0..1 to logits, so that `stacked.py` can run
many of them side by side. With `dropout=True` it is the network of the MC-dropout column.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Generator, nn

EPSILON = 1e-3  # Keras' default for batch normalization (the authors' scripts)
RATE = 0.5  # of dropout (Section 3.2)


def mnist_mlp(classes: int = 10, dropout: bool = False) -> nn.Sequential:
    """Three hidden layers of 200 (Section 3.2); moving averages at Keras' default momentum 0.99."""
    layers: list[tuple[str, nn.Module]] = [("flatten", nn.Flatten())]
    for number, width in ((1, 784), (2, 200), (3, 200)):
        layers += _dense(number, width, 200, momentum=0.01, dropout=dropout)
    return nn.Sequential(OrderedDict([*layers, ("output", nn.Linear(200, classes))]))


def mnist_cnn(classes: int = 10, dropout: bool = False) -> nn.Sequential:
    """Convolutions of 32 and 64 kernels, dense layers of 128 and 64 (Section 3.2), for MNIST and Fashion-MNIST."""
    return nn.Sequential(
        OrderedDict(
            [
                *_convolution(1, 1, 32, padding=0),
                *_convolution(2, 32, 64, padding=0, dropout=dropout),
                ("pool1", nn.MaxPool2d(2)),
                ("flatten", nn.Flatten()),
                *_dense(1, 64 * 12 * 12, 128, momentum=0.1, dropout=dropout),
                *_dense(2, 128, 64, momentum=0.1, dropout=dropout),
                ("output", nn.Linear(64, classes)),
            ]
        )
    )


def cifar_cnn(classes: int = 10, dropout: bool = False) -> nn.Sequential:
    """Two convolutions of 16 kernels, two of 32, a dense layer of 128 (Section 3.2), for CIFAR-10 and CIFAR-100."""
    return nn.Sequential(
        OrderedDict(
            [
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
        )
    )


#: The networks that have a name. A new one is one function and one row here.
NETWORKS: dict[str, Callable[[int, bool], nn.Sequential]] = {
    "mnist_mlp": mnist_mlp,
    "mnist_cnn": mnist_cnn,
    "cifar_cnn": cifar_cnn,
}


@torch.no_grad()
def initialize(network: nn.Module, seed: int) -> nn.Module:
    """Glorot uniform kernels and zero biases (Keras' defaults), drawn on the CPU from the seed alone."""
    generator = Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_uniform_(module.weight, generator=generator)
            if module.bias is not None:
                module.bias.zero_()
    return network


def _convolution(
    number: int, inputs: int, outputs: int, padding: int, dropout: bool = False
) -> list[tuple[str, nn.Module]]:
    layers: list[tuple[str, nn.Module]] = [
        (f"conv{number}", nn.Conv2d(inputs, outputs, 3, padding=padding)),
        (f"conv{number}_relu", nn.ReLU()),
        (f"conv{number}_norm", nn.BatchNorm2d(outputs, EPSILON, momentum=0.1)),  # Keras momentum 0.9
    ]
    return [*layers, (f"conv{number}_dropout", nn.Dropout(RATE))] if dropout else layers


def _dense(number: int, inputs: int, outputs: int, momentum: float, dropout: bool) -> list[tuple[str, nn.Module]]:
    layers: list[tuple[str, nn.Module]] = [
        (f"dense{number}", nn.Linear(inputs, outputs)),
        (f"dense{number}_relu", nn.ReLU()),
        (f"dense{number}_norm", nn.BatchNorm1d(outputs, EPSILON, momentum=momentum)),
    ]
    return [*layers, (f"dense{number}_dropout", nn.Dropout(RATE))] if dropout else layers
