"""`checkpoint:FILE@SCHEME:NAME`: a network with the weights of a file; `checkpoint:model.pt2` is a whole network."""

from __future__ import annotations

from pathlib import Path

from peppermill.sources import source_from
from peppermill.sources.exported import read_exported
from peppermill.sources.source import Source
from peppermill.sources.weight_files import load_weights


def source(text: str, pretrained: bool = True) -> Source:
    """The network after the @, with the weights of the file before it."""
    if text.endswith(".pt2"):
        return Source(read_exported(text))
    path, at, architecture = text.rpartition("@")
    if not at:
        raise ValueError(
            f"checkpoint:{text} holds weights and no network: name one after an @, as in "
            f"`checkpoint:{text}@timm:resnet18`."
        )
    made = source_from(architecture, pretrained=False)
    load_weights(made.model, Path(path))
    return made
