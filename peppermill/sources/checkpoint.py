"""`checkpoint:FILE@SCHEME:NAME`: a network with the weights of a file; `checkpoint:model.pt2` is a whole network."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from peppermill.sources import source_from
from peppermill.sources.source import Source
from peppermill.sources.weight_files import load_weights


def source(text: str, pretrained: bool = True) -> Source:
    """The network after the @, with the weights of the file before it; or the program in a `.pt2` archive."""
    if text.endswith(".pt2"):
        return _exported(text)
    path, at, architecture = text.rpartition("@")
    if not at:
        raise ValueError(
            f"checkpoint:{text} names weights and no network: name one after an @, as in "
            f"`checkpoint:{text}@timm:resnet18`."
        )
    made = source_from(architecture, pretrained=False)
    load_weights(made.model, Path(path))
    return made


def _exported(path: str) -> Source:
    """What `torch.export.save` wrote."""
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}: give the path of what `torch.export.save` wrote.")
    logger = logging.getLogger("torch.export")  # it would log the traceback of every failure
    logger.disabled = True
    try:
        return Source(torch.export.load(path).module())
    except Exception as error:
        raise ValueError(
            f"{path} is not an archive that `torch.export.save` of torch {torch.__version__} wrote, or is damaged."
        ) from error
    finally:
        logger.disabled = False
