"""Which items of the data a command works on: all of them, those for tuning, or the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from peppermill.cli.console import say
from peppermill.data import Batches
from peppermill.datasets.splitting import Split, split_of, take
from peppermill.ensemble import PepEnsemble
from peppermill.plumbing.nested import as_arguments, call_on_copies, output_tensor
from peppermill.plumbing.networks import as_network
from peppermill.sources import data_from
from peppermill.sources.items import Items
from peppermill.sources.pictures import Preparation
from peppermill.sources.source import Source


def labelled(data: str, source: Source, pep: PepEnsemble | None = None) -> Any:
    """All labelled data: anything that `fit` takes. With an ensemble, of split data the items that it was tuned on."""
    found, split = _found(data, source), pep.recipe.split if pep else None
    return _checked(take(found, split.rows()[0]) if split and split.fits(found) else found, source)


def to_predict(data: str, source: Source) -> Any:
    """All data, or inputs alone. Files are not read yet, beside the first that is whole."""
    found = _found(data, source, needs_labels=False)
    _refuse_other_classes(found, source)
    return found


def tuning(data: str, source: Source, validation: int | None, seed: int | None) -> tuple[Any, Split | None]:
    """The items to tune on, and the split if they are only some of the data; the other items are not read."""
    if validation is None and seed is not None:
        raise ValueError(
            f"`--split-seed {seed}` draws the items of `--validation`: say how many, as in `--validation 5000`."
        )
    found = _found(data, source)
    if validation is None:
        return _checked(found, source), None
    split = split_of(found, validation, seed or 0, data)
    return _checked(take(found, split.rows()[0]), source), split


def testing(data: str, source: Source, pep: PepEnsemble | None, all_items: bool) -> tuple[Any, Sequence[str]]:
    """The items to test on, without those that were used for tuning; and the names of the classes, if they have some.

    If the data have changed since, they are refused: it is no longer known which items were tuned on.
    """
    found = _found(data, source)
    names = getattr(found, "class_names", None) or source.class_names or ()
    split = pep.recipe.split if pep else None
    if split and not all_items and split.fits(found):
        rest = split.rows()[1]
        say(f"testing on the {len(rest):,} of {split.items:,} items that were not used for tuning")
        found = take(found, rest)
    elif split and not all_items and split.is_called(data):
        raise ValueError(
            f"{data} has changed since tuning on {split.validation:,} of its {split.items:,} items, which can "
            "no longer be identified: fit again, or test on everything with `--all-items`."
        )
    elif split and not all_items:
        say(f"testing on all items: the ensemble was tuned on other data, {split.data}")
    return _checked(found, source), names


def _found(data: str, source: Source, needs_labels: bool = True) -> Any:
    """The data; pictures that the user says how to prepare get their channels in the order of the network."""
    found = data_from(data, source.prepare, source.class_names, needs_labels=needs_labels)
    if not source.channels_last or not isinstance(found, Items) or not isinstance(found.prepare, Preparation):
        return found
    return replace(found, prepare=replace(found.prepare, channels_last=True))


def _checked(data: Any, source: Source) -> Any:
    """The data; if they are files, those that can be read. Raise if their classes cannot be the network's."""
    readable = data.readable() if isinstance(data, Items) else data
    _refuse_other_classes(readable, source)
    return readable


def _refuse_other_classes(items: Any, source: Source) -> None:
    if not isinstance(items, Items):
        return
    network = as_network(source.model)
    with torch.no_grad():
        [(inputs, _)] = Batches(items.take_rows(np.array([items.first_readable()])), network)
        outputs = output_tensor(call_on_copies(network, *as_arguments(inputs)))
    if outputs.ndim != 2 or outputs.shape[1] == 1 or items.labels.is_floating_point():
        return
    classes = outputs.shape[1]
    found = len(items.class_names) if items.class_names else int(items.labels.max()) + 1
    if found > classes or (items.class_names and found != classes):
        raise ValueError(
            f"{items.origin} has {found:,} classes, but the network has {classes:,}: name the right data, or, "
            "for a part of the network's classes, all of them in their order with `?classes=FILE`."
        )
