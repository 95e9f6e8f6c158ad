"""Trained networks to measure on: those of Table 2, one seed each, and two ResNets that others trained.

The networks of Table 2 are trained once, as the paper trained them but on fewer images where 15 epochs of all of them
take a CPU too long, and kept in `.local/trained/`. `python -m benchmarks.trained` trains them all.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from benchmarks.networks import ResNet

FOLDER = Path(__file__).resolve().parent.parent / ".local" / "trained"
IMAGES = {"mnist-mlp": 50_000, "mnist-cnn": 12_000, "fashion-mnist": 12_000, "cifar10": 20_000, "cifar100": 20_000}
#: By depth, files of github akamaster/pytorch_resnet_cifar10.
RESNET_FILES = {20: "cifar10-resnets/resnet20-12fca82f.th", 56: "cifar10-resnets/resnet56-4bfd9763.th"}
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of their inputs

#: A network in evaluation mode and the validation data on which to tune it.
Trained = tuple[nn.Module, tuple[Tensor, Tensor]]


def table2(name: str, device: str = "cpu") -> Trained:
    """The network of a row of Table 2, seed 17, and the row's validation images."""
    from experiments.settings import EPOCHS, ROWS, SEEDS  # here, because the page imports this file and needs no data
    from experiments.table2.small_networks import NETWORKS
    from experiments.table2.training import Schedule, train
    from experiments.table2.work import row_data

    row, file = ROWS[name], FOLDER / f"{name}-seed{SEEDS[0]}.safetensors"
    found = row_data(row, None, device)
    network = NETWORKS[row.network](row.classes, False).to(device)
    if not file.exists():
        images, labels = (part[: IMAGES[name]] for part in found.train)
        schedule = Schedule((row.learning_rate,) * EPOCHS)
        (trained,) = train(
            lambda: NETWORKS[row.network](row.classes, False), images, labels, SEEDS[:1], schedule, print
        )
        FOLDER.mkdir(parents=True, exist_ok=True)
        save_file({key: value.cpu().contiguous() for key, value in trained.states[EPOCHS].items()}, file)
    network.load_state_dict(load_file(file))
    return network.eval(), found.validation


def resnet(depth: int, images: int = 1000, device: str = "cpu") -> Trained:
    """A ResNet on CIFAR-10 and images of the test set: its training saw all others."""
    from experiments.image_sets import read_image_set

    file = Path(os.environ["PEPPERMILL_DATA"]) / RESNET_FILES[depth]
    published = torch.load(file, map_location="cpu", weights_only=True)["state_dict"]
    network = ResNet(blocks=(depth - 2) // 6)
    network.load_state_dict({name.removeprefix("module."): value for name, value in published.items()})
    inputs, labels = (part[:images] for part in read_image_set("cifar10").test)
    normal = (inputs / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(DEVIATION)[:, None, None]
    return network.eval().to(device), (normal.to(device), labels.to(device))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(IMAGES))
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    for name in asked.names:
        table2(name, asked.device)


if __name__ == "__main__":
    main()
