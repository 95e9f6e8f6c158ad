"""Where models and data come from: `scheme:rest` on the command line, one file for each scheme."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from peppermill.sources import datasets, npz, python

#: How a model is had. A new source is one file and one row here.
MODELS: dict[str, Callable[[str], nn.Module]] = {"python": python.model}

#: How data are had.
DATA: dict[str, Callable[[str], Any]] = {
    "npz": npz.data,
    "python": python.data,
    **{name: partial(datasets.data, name) for name in datasets.DATASETS},
}

#: How data are had that may lack labels, where labelled data are had in another way.
UNLABELLED: dict[str, Callable[[str], Any]] = {"npz": npz.data_or_inputs}


def model_from(text: str) -> nn.Module:
    """The network that `scheme:rest` names."""
    scheme, rest = _parts(text, "MODEL", MODELS, "python:package.module:factory")
    return MODELS[scheme](rest)


def data_from(text: str) -> Any:
    """The labelled data that `scheme:rest` names."""
    scheme, rest = _parts(text, "DATA", DATA, "npz:file.npz")
    return DATA[scheme](rest)


def data_or_inputs_from(text: str) -> Any:
    """The data that `scheme:rest` names, and where they have no labels the inputs alone: an array or a tensor."""
    scheme, rest = _parts(text, "DATA", DATA, "npz:file.npz")
    return {**DATA, **UNLABELLED}[scheme](rest)


def _parts(text: str, what: str, known: dict[str, Any], example: str) -> tuple[str, str]:
    scheme, colon, rest = text.partition(":")
    if not colon or scheme not in known or not rest:
        raise ValueError(
            f"{what} {text!r} must begin with one of {', '.join(f'{name}:' for name in known)} as in `{example}`."
        )
    return scheme, rest
