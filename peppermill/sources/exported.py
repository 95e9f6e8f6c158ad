"""Programs that `torch.export` wrote, read from a .pt2 archive."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from pathlib import Path

import torch
from torch import nn

from peppermill.plumbing.optional import reason

_NO_ARCHIVE = "is not an archive that `torch.export.save` wrote, or is damaged"


def read_exported(path: str) -> nn.Module:
    """The network of a `.pt2` archive. An archive is a program: open only those of people you trust.

    Its pickles are checked first, because torch would open them without a check.
    """
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}: give the path of what `torch.export.save` wrote.")
    _refuse_objects(path)
    try:
        return torch.export.load(path).module()
    except Exception as error:
        raise ValueError(f"{path} {_NO_ARCHIVE} ({reason(error)}).") from error


def _refuse_objects(path: str) -> None:
    """Raise if an archive holds more than a graph and numbers."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            tables = [json.loads(archive.read(name)) for name in names if name.lower().endswith("_config.json")]
            entries = [entry for table in tables for entry in table.get("config", {}).values()]
            pickled = {entry.get("path_name", "").lower() for entry in entries if entry.get("use_pickle")}
            for name in names:
                parts = name.lower().split("/")  # torch's own reader ignores case
                objects = any(part.startswith(("custom_obj_", "opaque_obj_")) for part in parts)
                listed = any(name.lower().endswith(f"/{one}") for one in pickled)
                if objects or listed or parts[-1].endswith(".pt"):
                    torch.load(io.BytesIO(archive.read(name)), weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} holds objects beside its graph and weights, which could run code when opened, and is refused: "
            "export the network without them."
        ) from error
    except (zipfile.BadZipFile, ValueError, RuntimeError) as error:
        raise ValueError(f"{path} {_NO_ARCHIVE} ({reason(error)}).") from error
