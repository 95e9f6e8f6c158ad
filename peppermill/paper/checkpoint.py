"""What a killed run leaves behind: tensors and settings in one safetensors file, whole or absent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from peppermill.plumbing.files import write_atomically


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], settings: Mapping[str, Any], **more: Any) -> None:
    """Write tensors with the settings that made them; `more` may change from one writing to the next."""
    metadata = {"settings": json.dumps(settings, sort_keys=True), **{key: json.dumps(v) for key, v in more.items()}}
    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, save(content, metadata))


def read_checkpoint(
    path: Path, settings: Mapping[str, Any], device: torch.device | str
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The tensors and what else was written; nothing where there is no such file, or where other settings made it."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            metadata = {key: json.loads(text) for key, text in file.metadata().items()}
            if metadata.pop("settings") != json.loads(json.dumps(settings)):
                return None
            return {name: file.get_tensor(name).to(device) for name in file.keys()}, metadata  # noqa: SIM118
    except (SafetensorError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it to compute it again.") from error
