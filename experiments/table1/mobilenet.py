"""Keras' MobileNet with alpha = 0.25 in plain torch: the same layers, weights and outputs, for machines without Keras.

A layer of stride 2 is padded on the right and at the bottom only, as Keras does for images with even sides. The weights
come from the file of the package that `experiments.table1.packages` names; the conversion needs h5py:

    python -m experiments.table1.mobilenet mobilenet_2_5_224_tf.h5 MobileNet-0.25.safetensors
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.resume import write_atomically
from experiments.table1.resnet50 import TORCH_SUFFIXES

#: Channels and stride of each block, with alpha = 0.25.
BLOCKS = ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *((128, 1),) * 5, (256, 2), (256, 1))
EPSILON = 1e-3
SUFFIXES = TORCH_SUFFIXES | {"depthwise_kernel": "weight"}  # of Keras 2


class Block(nn.Module):
    """A 3x3 convolution of each channel on its own, then a 1x1 convolution across the channels."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv_dw = nn.Conv2d(inputs, inputs, 3, stride, padding=2 - stride, groups=inputs, bias=False)
        self.bn_dw = nn.BatchNorm2d(inputs, EPSILON)
        self.conv_pw = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.bn_pw = nn.BatchNorm2d(outputs, EPSILON)
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """The block's features, [B, outputs, ...]."""
        if self.stride == 2:
            x = F.pad(x, (0, 1, 0, 1))
        x = F.relu6(self.bn_dw(self.conv_dw(x)))
        return F.relu6(self.bn_pw(self.conv_pw(x)))


class MobileNet(nn.Module):
    """Images [B, 3, height, width] between -1 and 1, height and width even, to logits [B, classes]."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        channels = 8
        self.conv1 = nn.Conv2d(3, channels, 3, 2, bias=False)
        self.conv1_bn = nn.BatchNorm2d(channels, EPSILON)
        for number, (outputs, stride) in enumerate(BLOCKS, 1):
            self.add_module(f"block{number}", Block(channels, outputs, stride))
            channels = outputs
        self.conv_preds = nn.Conv2d(channels, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = F.relu6(self.conv1_bn(self.conv1(F.pad(x, (0, 1, 0, 1)))))
        for block in self.children():
            if isinstance(block, Block):
                x = block(x)
        logits: Tensor = self.conv_preds(x.mean(dim=(2, 3), keepdim=True))
        return logits.flatten(1)


def torch_name(keras_name: str) -> str:
    """The name here of an array of Keras: `conv_pw_13_bn/gamma` is `block13.bn_pw.weight`.

    Keras 3 may put the model's own name in front; Keras 2 puts the layer's name twice and ends in `:0`.
    """
    layer, suffix = keras_name.removesuffix(":0").split("/")[-2:]
    if suffix not in SUFFIXES:
        raise ValueError(f"{keras_name} is no array of a MobileNet: it ends in {suffix}, not in {', '.join(SUFFIXES)}.")
    parts = re.fullmatch(r"conv_(dw|pw)_(\d+)(_bn)?", layer)
    if parts:
        layer = f"block{parts[2]}.{'bn' if parts[3] else 'conv'}_{parts[1]}"
    return f"{layer}.{SUFFIXES[suffix]}"


def state_from_keras(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Keras' arrays under our names, kernels turned: [h, w, in, out] to [out, in, h, w].

    The kernels of the convolutions of single channels are [h, w, channels, 1] and become [channels, 1, h, w].
    """
    state = {}
    for keras_name, array in arrays.items():
        name = torch_name(keras_name)
        if array.ndim == 4:
            array = array.transpose(2, 3, 0, 1) if name.endswith("conv_dw.weight") else array.transpose(3, 2, 0, 1)
        state[name] = torch.from_numpy(np.array(array, np.float32, order="C"))
    return state


def mobilenet_from(path: Path) -> MobileNet:
    """The network of a safetensors file that `convert` wrote, in evaluation mode."""
    try:
        state = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a safetensors file, or it is truncated ({error}).") from error
    model = MobileNet(len(state.get("conv_preds.bias", ())) or 1000)
    own = {name: value.shape for name, value in model.state_dict().items() if not name.endswith("num_batches_tracked")}
    differing = sorted(name for name in own.keys() | state if name not in state or own.get(name) != state[name].shape)
    if differing:
        raise ValueError(
            f"{path} does not hold the arrays of a MobileNet with alpha = 0.25 ({', '.join(differing[:3])} ...): "
            "convert the weights again."
        )
    model.load_state_dict(state, strict=False)
    return model.eval()


def convert(weights: Path, out: Path) -> None:
    """Keras' weights from its .h5 file, as one safetensors file."""
    import h5py

    arrays: dict[str, np.ndarray] = {}

    def visit(name: str, found: object) -> None:
        if isinstance(found, h5py.Dataset):
            arrays[name] = found[()]

    with h5py.File(weights) as file:
        file.visititems(visit)
    write_atomically(out, save(state_from_keras(arrays)))


def main() -> None:
    """Convert Keras' weights from its .h5 file to one safetensors file."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("weights", type=Path, help="the .h5 file")
    parser.add_argument("out", type=Path, help="the safetensors file to write")
    arguments = parser.parse_args()
    convert(arguments.weights, arguments.out)
    numbers = sum(value.numel() for value in mobilenet_from(arguments.out).parameters())
    print(f"wrote {arguments.out}: {numbers:,} parameters")


if __name__ == "__main__":
    main()
