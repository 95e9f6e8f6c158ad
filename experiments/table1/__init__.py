"""Table 1: pre-trained networks with the paper's settings, and our columns beside its own. Nothing is trained.

Each split of the images is a stage of its own: a run that was killed continues with the first split that is missing.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from experiments.image_sets import read_image_set
from experiments.resume import Stages, fingerprint, plain, read_result, write_result
from experiments.settings import Machine, arithmetic
from experiments.table1.imagenet import Pictures, listing, pictures
from experiments.table1.imagenet_networks import NETWORKS, Network, network_named
from experiments.table1.split_methods import METHODS, Case, ImageBatches, examine, splits_of

KIND = "peppermill table 1"


@dataclass(frozen=True)
class Settings(Machine):
    """What to run."""

    precision: str = "float32"  # of products on a GPU: float32 or tf32
    networks: tuple[str, ...] = tuple(NETWORKS)[:6]  # Section 3.1
    imagenet: Path | None = None  # the folder of the validation images
    labels: Path | None = None  # their classes, if the folder is flat
    weights: Path | None = None  # a file, or a folder of files with the networks' names
    tuning: int = 5000  # Section 3.1: the first 5,000 images tune, the other 45,000 test
    splits: int = 1  # Section 3.1
    images: int | None = None  # only the first images
    tuning_size: int = 5  # members while tuning: Section 3.1
    size: int = 10  # members at test: Section 3.1
    iterations: int = 7  # Section 3.1
    parameters: str = "conv"  # Section 3.1: the weights of all convolutional layers
    bins: int = 10  # the authors' scripts
    minimum_count: int = 21  # the authors' scripts: bins of 20 images or fewer are dropped
    seed: int = 0  # of the noise
    batch_size: int = 50


def main(settings: Settings) -> dict[str, Any]:
    """Every network of the table: computed, continued, or read if it is done."""
    rows = {name: network_named(name) for name in settings.networks}
    found = {}
    for name, network in rows.items():
        path, data = settings.out / f"table1-{name}.json", row_pictures(network, settings)
        splits = splits_of(len(data.labels), settings.tuning, settings.splits)
        model = network.build(weights_of(name, settings)).to(settings.device)
        weights = fingerprint(*model.state_dict().values())
        made_of = {"images": data.digest, "weights": weights, "settings": settings.identity()}
        known = read_result(path, KIND) or {}
        if all(known.get(key) == value for key, value in made_of.items()):
            settings.say(f"{network.title}: done, in {path}")
            found[name] = known
            continue
        began, stages = time.monotonic(), Stages(settings.checkpoints / "table1", data.digest)
        batches = partial(
            ImageBatches,
            data.pixels,
            data.labels,
            prepare=network.prepare,
            device=settings.device,
            batch_size=settings.batch_size,
            channels_last=type(model).__module__.startswith("keras"),
        )
        options = {key: getattr(settings, key) for key in ("parameters", "tuning_size", "size", "iterations", "seed")}
        each = []
        for number, (tuning, test) in enumerate(splits):
            case = Case(model, network, batches(tuning), batches(test), **options)
            identity = {**made_of, "split": fingerprint(tuning, test)}
            identity["settings"] = {key: value for key, value in settings.identity().items() if key != "splits"}
            with arithmetic(settings.precision):
                one = stages.json(
                    f"{name}-split-{number}",
                    identity,
                    lambda case=case: examine(case, settings.bins, settings.minimum_count),  # type: ignore[misc]
                )
            numbers = ", ".join(f"{method} {column['scores']['nll']:.4f}" for method, column in one["columns"].items())
            settings.say(f"{network.title}, split {number + 1} of {len(splits)}: NLL {numbers}")
            each.append(one)
        content = {
            "network": name,
            "title": network.title,
            "note": network.note,
            "preparation": asdict(network.prepare) | {"short": network.short, "crop": network.crop},
            "perturbed": {"rule": settings.parameters},
            "range": network.range,
            "items": {"all": len(data.labels), "tuning": len(splits[0][0]), "test": len(splits[0][1])},
            "splits": [
                {"seed": seed or None, "tuning": len(tuning), "test": len(test), "digest": fingerprint(tuning)}
                for seed, (tuning, test) in enumerate(splits)
            ],
            "columns": {method: _over_splits([one["columns"][method] for one in each]) for method in METHODS},
            "comparisons": {
                pair: {score: [one["comparisons"][pair][score] for one in each] for score in ("nll", "brier", "error")}
                for pair in each[0]["comparisons"]
            },
            "reliability": {method: column["reliability"] for method, column in each[0]["columns"].items()},
            "seconds": time.monotonic() - began,
            "machine": {"device": settings.device, "precision": settings.precision},
            **made_of,
        }
        found[name] = write_result(path, KIND, content, settings.seed)
        settings.say(f"{network.title}: wrote {path}")
    return found


def _over_splits(columns: list[dict[str, Any]]) -> dict[str, Any]:
    """One method on every split."""
    scores = {score: [column["scores"][score] for column in columns] for score in columns[0]["scores"]}
    fitted = {key: [column[key] for column in columns] for key in ("sigma", "temperature", "points")}
    return plain({"scores": scores, **fitted})  # type: ignore[no-any-return]


def row_pictures(network: Network, settings: Settings) -> Pictures:
    """The images of a row, in the official order."""
    if network.data != "imagenet":
        pixels, labels = read_image_set(network.data, settings.data).test
        found = Pictures(pixels, labels, fingerprint(pixels, labels))
    elif settings.imagenet is None:
        raise ValueError(f"{network.title} needs the validation images: name their folder with `--imagenet`.")
    else:
        source = listing(settings.imagenet, network.classes, settings.labels)
        found = pictures(source, network.short, network.crop, settings.checkpoints, settings.say)
    first = slice(0, settings.images)
    digest = found.digest if settings.images is None else f"{found.digest}-{settings.images}"
    return Pictures(found.pixels[first], found.labels[first], digest)


def weights_of(name: str, settings: Settings) -> Path | None:
    """The file of a network's weights: the one of `--weights`, or the one in that folder with the network's name."""
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
            "that network out of `--networks`."
        )
    return found[0]
