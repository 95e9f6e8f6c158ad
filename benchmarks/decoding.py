"""What reading pictures costs a fit: `python -m benchmarks.decoding`.

A folder of JPEG pictures is made on the spot, and a fit gets less memory than they need:

- as the folder source does it: each picture decoded once, by threads, and kept as bytes in a file;
- as a Dataset of one's own has it: decoded once, after two looks at the first 256, and kept in a file;
- as batches are had that nobody keeps: decoded again, by as many threads, for every sigma.

Also: one thread against one for each core, and processes against threads.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import peppermill as pm
from benchmarks.timing import median_ratio, where, write_result
from peppermill import fitting
from peppermill.data import Batches
from peppermill.sources import image_folder
from peppermill.sources.items import Items, cores
from peppermill.sources.preparation import Preparation

PICTURES, HEIGHT, WIDTH, CLASSES = 200, 375, 500, 4
PREPARE = Preparation(96, 110, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
KEPT = 2**22  # bytes: of 22 MB as numbers and 5.5 MB as bytes, neither fits
SIZE, BATCH, ROUNDS = 2, 50, 3


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_folder(Path(folder))
        content = {
            "pictures": PICTURES,
            "shape": [HEIGHT, WIDTH],
            "prepared": PREPARE.size,
            "kept_bytes": KEPT,
            "size": SIZE,
            "cores": cores(),
            "fit": fit_with_and_without(folder),
            **workers(folder),
        }
    write_result("decoding", content)


def make_folder(folder: Path) -> None:
    """Smooth noise, which compresses about as photographs do."""
    generator = np.random.RandomState(0)
    for k in range(PICTURES):
        coarse = Image.fromarray(generator.randint(0, 256, (15, 20, 3)).astype(np.uint8))
        path = folder / f"class-{k % CLASSES}" / f"{k}.jpg"
        path.parent.mkdir(exist_ok=True)
        coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC).save(path, quality=90)


def fit_with_and_without(folder: str) -> dict[str, Any]:
    """Seconds of other fits over seconds of one that reads once, and how many pictures each decoded."""
    model, decoded = network(), [0]
    items = image_folder.data(folder, PREPARE)

    def load(row: int) -> Any:
        decoded[0] += 1
        return items.load(row)

    def once() -> pm.PepEnsemble:
        return fit(model, replace(items, load=load).read(KEPT))

    def dataset() -> pm.PepEnsemble:
        return fit(model, Own(replace(items, load=load)))

    def again() -> pm.PepEnsemble:
        return fit(model, Again(DataLoader(Own(replace(items, load=load)), batch_size=BATCH)))

    counts, found = {}, {}
    for name, job in (("once", once), ("dataset", dataset), ("again", again)):
        decoded[0] = 0
        found[name], counts[name] = job(), decoded[0]
    if len({pep.search.points for pep in found.values()}) > 1:
        raise AssertionError("all ways to read must find the same")
    return {
        "again": median_ratio(again, once, ROUNDS),
        "dataset": median_ratio(dataset, once, ROUNDS),
        "decoded": counts,
        "sigmas": len(found["once"].search.evaluations),
    }


def fit(model: nn.Module, data: Any) -> pm.PepEnsemble:
    """A fit that may keep few bytes of the data."""
    original = fitting.Batches
    fitting.Batches = partial(Batches, kept_bytes=KEPT)  # type: ignore[assignment,misc]
    try:
        return pm.fit(model, data, size=SIZE, batch_size=BATCH)
    finally:
        fitting.Batches = original  # type: ignore[misc]


class Again:
    """Batches that may be anything, and are not kept."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


class Own(Dataset[Any]):
    """Items that are decoded whenever they are asked for, a batch by as many threads as there are cores."""

    def __init__(self, items: Items) -> None:
        self.items, self.pool = items, ThreadPoolExecutor(cores())

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.items.prepare(self.items.load(row)), self.items.labels[row]

    def __getitems__(self, rows: list[int]) -> list[tuple[Tensor, Tensor]]:
        return list(self.pool.map(self.__getitem__, rows))


def workers(folder: str) -> dict[str, Any]:
    """One thread against one for each core, and processes against threads; all of them started before the clock."""
    paths = sorted(Path(folder).rglob("*.jpg"))
    fresh = get_context("spawn")  # a fork of torch's threads may wait for ever
    started = ProcessPoolExecutor(cores(), fresh, torch.set_num_threads, (1,))  # as a DataLoader's workers
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(cores()) as many, started as processes:
        single, threads, copies = (partial(read_all, paths, pool) for pool in (one, many, processes))
        return {
            "threads": median_ratio(single, threads, ROUNDS),
            "processes": median_ratio(copies, threads, ROUNDS),
        }


def read_all(paths: list[Path], pool: Executor) -> None:
    """Every picture prepared and handed over."""
    for _ in pool.map(prepared, paths, chunksize=10):
        pass


def prepared(path: Path) -> Tensor:
    with Image.open(path) as picture:
        return PREPARE(picture.convert("RGB"))


def network() -> nn.Module:
    """A small network of convolutions: what a fit costs matters here, and not what it finds."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 5, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()]
    last = nn.Linear(32, CLASSES)
    with torch.no_grad():
        last.weight.mul_(30)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), last).eval()


def section(found: dict[str, Any]) -> str:
    """The words of the page."""
    fit, decoded = found["fit"], found["fit"]["decoded"]
    height, width = found["shape"]
    rows = [
        ("a fit that decodes for every sigma, against `imagefolder:`", fit["again"]),
        ("a fit on a Dataset, against `imagefolder:`", fit["dataset"]),
        (f"decoding by one thread, against {found['cores']}", found["threads"]),
        (f"decoding by {found['cores']} processes, against {found['cores']} threads", found["processes"]),
    ]
    table = [
        f"| {what} | **{r['ratio']:.2f}** | {r['ratio_lowest']:.2f}..{r['ratio_highest']:.2f} |" for what, r in rows
    ]
    return "\n".join(
        [
            "## A folder of pictures",
            "",
            f"A fit on {found['pictures']} JPEG pictures of {width}x{height}, of which less fits into memory than it "
            f"needs; {fit['sigmas']} values of sigma. Read by `imagefolder:`, **{decoded['once']:,}** pictures are "
            f"decoded; by a Dataset of one's own, {decoded['dataset']:,}, because its first 256 are read twice more to "
            f"see whether they repeat; where nothing is kept, {decoded['again']:,}. `python -m benchmarks.decoding`; "
            f"{where(found)}.",
            "",
            "| time of what | ratio | lowest and highest |",
            "|---|---|---|",
            *table,
            "",
        ]
    )


if __name__ == "__main__":
    main()
