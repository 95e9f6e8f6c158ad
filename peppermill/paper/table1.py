"""Table 1: pre-trained networks, the paper's settings, and our columns beside its own.

Nothing is trained. A network's members are run over the images once for each sigma that some search asks for; each
member is kept as it is done, so that a run killed at any moment continues where it was.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from peppermill.paper.image_members import ImageMembers, LabelledPixels
from peppermill.paper.imagenet import Pictures, listing, pictures
from peppermill.paper.imagenet_networks import NETWORKS, Network, network_named
from peppermill.paper.machine import Machine
from peppermill.paper.parcels import is_parcelled, unpacked_pictures
from peppermill.paper.result import write_result
from peppermill.paper.splits import Split, splits_of
from peppermill.paper.table1_columns import METHODS, Case, Column, Part, comparisons
from peppermill.parameters import select
from peppermill.plumbing.files import read_json
from peppermill.recipe import fingerprint
from peppermill.report.provenance import provenance
from peppermill.report.run import plain
from peppermill.sources.small_images import images

KIND = "peppermill table 1"
VERSION = 1
PAPER = tuple(NETWORKS)[:6]


@dataclass(frozen=True)
class Settings:
    """What to run. The defaults are the paper's; a test makes everything small."""

    networks: tuple[str, ...] = PAPER
    imagenet: Path | None = None  # the folder of the validation images
    labels: Path | None = None  # their classes, where the folder is flat
    data: Path | None = None  # the folder of the small data sets, for the networks of CIFAR-10
    weights: Path | None = None  # a file, or a folder of files with the networks' names
    tuning: int = 5000  # Section 3.1: the first 5,000 images tune, the other 45,000 test
    splits: int = 1
    images: int | None = None  # only the first so many
    tuning_size: int = 5  # Section 3.1
    size: int = 10  # Section 3.1
    iterations: int = 7  # Section 3.1
    parameters: str = "conv"  # Section 3.1: the weights of all convolutional layers
    bins: int = 10  # the authors' scripts
    minimum_count: int = 21  # the authors' scripts: bins of 20 images or fewer are dropped
    seed: int = 0
    batch_size: int = 50
    out: Path = Path("results/paper")
    checkpoints: Path = Path(".local/paper")
    machine: Machine = field(default_factory=lambda: Machine(precision="float32"))
    say: Callable[[str], None] = print

    def identity(self) -> dict[str, Any]:
        """What decides the numbers."""
        names = ("tuning", "splits", "images", "tuning_size", "size", "iterations", "parameters", "bins",
                 "minimum_count", "seed")  # fmt: skip
        return {name: getattr(self, name) for name in names} | {"precision": self.machine.precision}


def tiny(settings: Settings) -> Settings:
    """The same experiment in seconds: two members while tuning, four at the test, three iterations."""
    return replace(settings, tuning_size=2, size=4, iterations=3, minimum_count=1)


def main(settings: Settings) -> dict[str, dict[str, Any]]:
    """Every network of the table: computed, continued, or read where it is done."""
    for name in settings.networks:
        network_named(name)
    return {name: _row(name, network_named(name), settings) for name in settings.networks}


@dataclass(frozen=True)
class _Row:
    """One network in progress: what it is made of, its images, and how they are split."""

    name: str
    network: Network
    model: nn.Module
    data: Pictures
    splits: list[Split]
    settings: Settings


def _row(name: str, network: Network, settings: Settings) -> dict[str, Any]:
    data = row_pictures(network, settings)
    splits = splits_of(len(data), settings.tuning, settings.splits)
    row = _Row(name, network, network.build(weights_of(name, settings)), data, splits, settings)
    path = settings.out / f"table1-{name}.json"
    made_of = {"images": data.digest, "weights": asdict(fingerprint(row.model)), "settings": settings.identity()}
    known = read_json(path, KIND, VERSION) if path.is_file() else {}
    if all(known.get(key) == value for key, value in made_of.items()):
        settings.say(f"{network.title}: done, in {path}")
        return known
    content = _computed(row) | made_of
    write_result(path, content)
    settings.say(f"{network.title}: wrote {path}")
    return content


def _computed(row: _Row) -> dict[str, Any]:
    began, settings, cases = time.monotonic(), row.settings, _cases(row)
    titles = [f"{row.network.title}, split {k + 1} of {len(cases)}" for k in range(len(cases))]
    each = [_columns(case, title, settings) for case, title in zip(cases, titles, strict=True)]
    runs = {id(part.members): part.members.passes for case in cases for part in (case.tuning, case.test)}
    return {
        "format": KIND,
        "version": VERSION,
        **_described(row),
        "columns": {method: _told([one[method] for one in each], settings) for method in METHODS},
        "comparisons": _over_splits([comparisons(one) for one in each]),
        "reliability": {method: plain(column.reliability(settings.bins)) for method, column in each[0].items()},
        "seconds": time.monotonic() - began,
        "passes": sum(runs.values()),
        "machine": asdict(settings.machine),
        "provenance": provenance(settings.seed),
    }


def _described(row: _Row) -> dict[str, Any]:
    """The network, what is perturbed, and which images tune and test."""
    network, rule, first = row.network, row.settings.parameters, row.splits[0]
    return {
        "network": row.name,
        "title": network.title,
        "note": network.note,
        "preparation": plain(network.prepare) | {"short": network.short, "crop": network.crop},
        "perturbed": {"rule": rule, "arrays": len(select(row.model, rule))},
        "range": [network.lower, network.upper],
        "items": {"all": len(row.data), "tuning": len(first.tuning), "test": len(first.test)},
        "splits": [split.record() for split in row.splits],
    }


def _columns(case: Case, title: str, settings: Settings) -> dict[str, Column]:
    columns = {method: compute(case) for method, compute in METHODS.items()}
    told = [f"{method} {float(column.nll.mean()):.4f}" for method, column in columns.items()]
    settings.say(f"{title}: NLL {', '.join(told)}; sigma {columns['pep'].sigma:.4g}")
    return columns


def _told(columns: list[Column], settings: Settings) -> dict[str, Any]:
    """One method on every split."""
    scores = [column.scores(settings.bins, settings.minimum_count) for column in columns]
    return {
        "scores": {score: [one[score] for one in scores] for score in scores[0]},
        "sigma": [column.sigma for column in columns],
        "temperature": [column.temperature for column in columns],
        "points": plain([column.points for column in columns]),
    }


def _over_splits(each: list[dict[str, Any]]) -> dict[str, Any]:
    return {pair: {score: [one[pair][score] for one in each] for score in scores} for pair, scores in each[0].items()}


def _cases(row: _Row) -> list[Case]:
    """One case for each split. A single split never runs a tuning member over the many test images."""
    if len(row.splits) == 1:
        tuning, test = slice(0, row.settings.tuning), slice(row.settings.tuning, None)
        parts = [(Part(_members(row, "tuning", tuning)), Part(_members(row, "test", test)))]
    else:
        every = _members(row, "all", slice(None))
        parts = [(Part(every, split.tuning), Part(every, split.test)) for split in row.splits]
    options = {key: getattr(row.settings, key) for key in ("tuning_size", "size", "iterations")}
    return [Case(tuning, test, row.network.lower, row.network.upper, **options) for tuning, test in parts]


def _members(row: _Row, part: str, chosen: slice) -> ImageMembers:
    settings, data, made_of = row.settings, row.data, _made_of(row, chosen)
    digest = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:8]
    return ImageMembers(
        row.model,
        LabelledPixels(data.pixels[chosen], data.labels[chosen], row.network.prepare),
        settings.parameters,
        settings.seed,
        settings.machine,
        settings.checkpoints / "table1" / f"{row.name}-{part}-{digest}",
        made_of,
        settings.batch_size,
        lambda text: settings.say(f"{row.network.title}, {part}: {text}"),
    )


def _made_of(row: _Row, chosen: slice) -> dict[str, Any]:
    """What decides a member's predictions, beside sigma."""
    return {
        "images": row.data.digest,
        "range": [chosen.start, chosen.stop, len(row.data)],
        "weights": asdict(fingerprint(row.model)),
        "parameters": row.settings.parameters,
        "seed": row.settings.seed,
        "precision": row.settings.machine.precision,
    }


def row_pictures(network: Network, settings: Settings) -> Pictures:
    """The images of a row, in the official order."""
    if network.data != "imagenet":
        pixels, labels = images(network.data, settings.data).test
        digest = hashlib.sha256(pixels.numpy().tobytes() + labels.numpy().tobytes()).hexdigest()[:16]
        found = Pictures(pixels, labels, tuple(map(str, range(len(labels)))), digest)
    elif settings.imagenet is None:
        raise ValueError(f"{network.title} needs the validation images: give their folder as `--imagenet`.")
    elif is_parcelled(settings.imagenet):
        found = unpacked_pictures(settings.imagenet, network.short, network.crop, settings.checkpoints)
    else:
        source = listing(settings.imagenet, network.classes, settings.labels)
        found = pictures(source, network.short, network.crop, settings.checkpoints, settings.say)
    if settings.images is None:
        return found
    first = slice(0, settings.images)
    return replace(found, pixels=found.pixels[first], labels=found.labels[first], names=found.names[first])


def weights_of(name: str, settings: Settings) -> Path | None:
    """The file of a network's weights: the one that was given, or the one in the folder that has its name."""
    given = settings.weights
    if given is None or not given.is_dir():
        if given is not None and (len(settings.networks) > 1 or not given.is_file()):
            raise ValueError(
                f"`--weights {given}` must be the file of one network, or a folder with a file for each of them, such "
                f"as {name}.safetensors."
            )
        return given
    found = sorted(path for path in given.iterdir() if path.name.split(".")[0] == name)
    if not found:
        raise ValueError(
            f"the folder {given} has no file {name}.safetensors, {name}.h5 or {name}.th: put one there, or leave "
            "`--networks` without it."
        )
    return found[0]
