"""What reading pictures costs a fit: `python -m benchmarks.decoding`.

`fit` passes over the validation data several times. On a Dataset that decodes a JPEG picture for every item, it is
measured against the least that anybody needs: decode every picture once, and fit on the tensors.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import peppermill as pm
from benchmarks.timing import clock_name, in_turns, ratio, table_section, where, write_result

PICTURES, HEIGHT, WIDTH, CLASSES = 400, 375, 500, 4
SIDE = 96  # of the network's input
SIZE, BATCH, ROUNDS = 2, 50, 3


class Pictures(Dataset[Any]):
    """JPEG pictures of smooth noise, which compresses about as photographs do; decoded whenever one is read."""

    def __init__(self) -> None:
        generator = np.random.RandomState(0)
        self.files, self.decoded = [], 0
        for _ in range(PICTURES):
            coarse = Image.fromarray(generator.randint(0, 256, (15, 20, 3)).astype(np.uint8))
            buffer = io.BytesIO()
            coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC).save(buffer, "jpeg", quality=90)
            self.files.append(buffer.getvalue())

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, item: int) -> tuple[Tensor, int]:
        self.decoded += 1
        with Image.open(io.BytesIO(self.files[item])) as picture:
            small = np.asarray(picture.convert("RGB").resize((SIDE, SIDE)))
        return torch.from_numpy(small.copy()).movedim(-1, 0) / 255, item % CLASSES


def main() -> None:
    model, pictures = network(), Pictures()
    warnings.simplefilter("ignore", pm.PepWarning)  # noise does not help these labels, which are random

    def fit(data: Any) -> pm.PepEnsemble:
        return pm.fit(model, data, size=SIZE, batch_size=BATCH)

    def decode_once_and_fit() -> pm.PepEnsemble:
        batches = list(DataLoader(pictures, batch_size=BATCH))
        return fit((torch.cat([images for images, _ in batches]), torch.cat([labels for _, labels in batches])))

    found = fit(pictures)
    decoded = pictures.decoded
    if found.search.points != decode_once_and_fit().search.points:
        raise AssertionError("both must find the same")
    seconds = in_turns({"dataset": lambda: fit(pictures), "tensors": decode_once_and_fit}, "cpu", ROUNDS)
    write_result(
        "decoding",
        {
            "pictures": PICTURES,
            "shape": [HEIGHT, WIDTH],
            "size": SIZE,
            "sigmas": len(found.search.evaluations),
            "decoded": decoded,
            "clock": clock_name("cpu"),
            "fit": {**ratio(seconds["dataset"], seconds["tensors"]), "seconds": seconds},
        },
    )


def network() -> nn.Module:
    """A small network of convolutions: what a fit costs matters here, and not what it finds."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 5, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()]
    last = nn.Linear(32, CLASSES)
    with torch.no_grad():
        last.weight.mul_(30)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), last).eval()


def section(found: dict[str, Any]) -> str:
    height, width = found["shape"]
    fit = found["fit"]
    return table_section(
        "A Dataset of pictures",
        f"A fit on a Dataset of {found['pictures']} JPEG pictures of {width}x{height}, which tries "
        f"{found['sigmas']} values of sigma. It decodes **{found['decoded']:,}** pictures: each once, and the first "
        f"few hundred twice more, to see whether the data repeat. Times are {found['clock']}. "
        f"`python -m benchmarks.decoding`; {where(found)}.",
        ("a fit on the Dataset, against", "ratio", "lowest and highest"),
        [
            (
                "decoding every picture once, and a fit on the tensors",
                f"**{fit['ratio']:.2f}**",
                f"{fit['ratio_lowest']:.2f}..{fit['ratio_highest']:.2f}",
            )
        ],
    )


if __name__ == "__main__":
    main()
