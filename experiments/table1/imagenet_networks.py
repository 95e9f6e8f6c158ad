"""The networks of Table 1 and their neighbours: how each is built from a file of weights, and how images are prepared.

ResNet50 and MobileNet have twins in plain torch, which are used when their weights are a safetensors file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.table1.cifar_resnet import cifar_resnet_from, torch_optim_network
from experiments.table1.mobilenet import mobilenet_from
from experiments.table1.resnet50 import resnet50_from


@dataclass(frozen=True)
class Preparation:
    """Bytes [B, 3, height, width] to the network's input: (pixel - mean) / scale, in the order red, green, blue."""

    mean: tuple[float, float, float]
    scale: tuple[float, float, float]
    blue_first: bool = False

    def __call__(self, pixels: Tensor) -> Tensor:
        """In float32."""
        mean, scale = (torch.tensor(v, device=pixels.device).view(1, 3, 1, 1) for v in (self.mean, self.scale))
        prepared = (pixels.float() - mean) / scale
        return prepared.flip(1) if self.blue_first else prepared


#: Keras' three modes of `preprocess_input`, and that of EfficientNet-Lite.
CAFFE = Preparation((123.68, 116.779, 103.939), (1.0, 1.0, 1.0), blue_first=True)
TORCH = Preparation((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
TENSORFLOW = Preparation((127.5, 127.5, 127.5), (127.5, 127.5, 127.5))
LITE = Preparation((127.0, 127.0, 127.0), (128.0, 128.0, 128.0))
PLAIN = Preparation((0.0, 0.0, 0.0), (255.0, 255.0, 255.0))


#: The authors' scripts search sigma in 5e-4..5e-3; the text's 5e-5 is a misprint.
PRINTED_RANGE = (5e-4, 1e-3, 1.5e-3, 2e-3, 2.5e-3, 3e-3, 3.5e-3, 4e-3, 5e-3)


@dataclass(frozen=True)
class Network:
    """One row of the table. Without sigmas of its own, `pm.fit` on the first split sets the grid."""

    title: str
    build: Callable[[Any], Any]
    prepare: Preparation
    short: int = 256  # the authors' scripts
    crop: int = 224  # the authors' scripts
    classes: int = 1000
    data: str = "imagenet"
    sigmas: tuple[float, ...] = PRINTED_RANGE
    held_out: int = 0  # of the last training images, which the network has not seen either
    note: str = ""


def keras_network(name: str, weights: Path | None = None, **options: Any) -> Any:
    """The network of `keras.applications` with the weights of a file; without one, Keras downloads its own."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras

    keras.utils.clear_session()  # the same names of layers, and so the same noise, for a second network of a kind
    source = "imagenet" if weights is None else str(weights)
    return getattr(keras.applications, name)(weights=source, classifier_activation=None, **options).eval()


def resnet50(weights: Path | None) -> Any:
    """The torch twin if the weights are a safetensors file, Keras' own network otherwise."""
    torch_file = weights is not None and weights.suffix == ".safetensors"
    return resnet50_from(weights) if torch_file and weights else keras_network("ResNet50", weights)


def mobilenet(weights: Path | None) -> Any:
    """The torch twin if the weights are a safetensors file, Keras' own network otherwise."""
    torch_file = weights is not None and weights.suffix == ".safetensors"
    return mobilenet_from(weights) if torch_file and weights else keras_network("MobileNet", weights, alpha=0.25)


def efficientnet_lite(number: int, weights: Path | None) -> Any:
    """EfficientNet-Lite0, 1 or 2 as its package makes it."""
    try:
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise ImportError(
            f"EfficientNetLite{number} needs a package: `pip install efficientnet_lite_pytorch==0.1.0`."
        ) from error
    model = EfficientNet.from_name(f"efficientnet-lite{number}")
    if weights is not None:
        model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return model.eval()


def mobilenet_v2(weights: Path | None) -> Any:
    """torchvision's MobileNetV2."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:  # built for another torch, it lacks two operators, which this network does not need
        for operator in ("nms", "qnms"):
            torch.library.define(f"torchvision::{operator}", "(Tensor boxes, Tensor scores, float limit) -> Tensor")
    from torchvision.models import mobilenet_v2 as build

    model = build()
    if weights is not None:
        model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return model.eval()


def cifar_resnet(depth: int, weights: Path | None) -> Any:
    """A published ResNet for CIFAR-10."""
    if weights is None:
        raise ValueError(f"ResNet{depth}-CIFAR10 needs `--weights`: a file of github akamaster/pytorch_resnet_cifar10.")
    return cifar_resnet_from(weights, depth)


_CIFAR: dict[str, Any] = {"crop": 32, "classes": 10, "data": "cifar10", "sigmas": ()}
_SELECTED = "These weights were selected on the test images by those who trained them; the splits are of those images."
_HELD_OUT = "Trained on the first 45,000 training images: the splits are of the other 5,000 and the 10,000 test images."

#: Section 3.1's six, then ours. A new network is one row here.
NETWORKS: dict[str, Network] = {
    "DenseNet121": Network("DenseNet121", partial(keras_network, "DenseNet121"), TORCH),
    "DenseNet169": Network("DenseNet169", partial(keras_network, "DenseNet169"), TORCH),
    "InceptionV3": Network("InceptionV3", partial(keras_network, "InceptionV3"), TENSORFLOW, short=299, crop=299),
    "ResNet50": Network("ResNet50", resnet50, CAFFE),
    "VGG16": Network("VGG16", partial(keras_network, "VGG16"), CAFFE),
    "VGG19": Network("VGG19", partial(keras_network, "VGG19"), CAFFE),
    "MobileNetV2": Network("MobileNetV2", mobilenet_v2, TORCH, sigmas=()),
    "MobileNet-0.25": Network("MobileNet, α = 0.25", mobilenet, TENSORFLOW, sigmas=()),
    "EfficientNetLite0": Network("EfficientNet-Lite0", partial(efficientnet_lite, 0), LITE, sigmas=()),
    "EfficientNetLite1": Network("EfficientNet-Lite1", partial(efficientnet_lite, 1), LITE, 272, 240, sigmas=()),
    "EfficientNetLite2": Network("EfficientNet-Lite2", partial(efficientnet_lite, 2), LITE, 292, 260, sigmas=()),
    "ResNet20-CIFAR10": Network("ResNet-20, CIFAR-10", partial(cifar_resnet, 20), TORCH, **_CIFAR, note=_SELECTED),
    "ResNet56-CIFAR10": Network("ResNet-56, CIFAR-10", partial(cifar_resnet, 56), TORCH, **_CIFAR, note=_SELECTED),
    "ResNet56-CIFAR10-45k": Network(
        "ResNet-56, CIFAR-10 (45,000)", partial(torch_optim_network, 56), PLAIN, **_CIFAR, held_out=5000, note=_HELD_OUT
    ),
    "VGG16-CIFAR10-45k": Network(
        "VGG16, CIFAR-10 (45,000)", partial(torch_optim_network, None), PLAIN, **_CIFAR, held_out=5000, note=_HELD_OUT
    ),
}


def network_named(name: str) -> Network:
    """The network that goes by this name."""
    if name not in NETWORKS:
        raise ValueError(f"there is no network {name!r} in Table 1: choose from {', '.join(NETWORKS)}.")
    return NETWORKS[name]
