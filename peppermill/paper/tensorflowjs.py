"""Layers models of TensorFlow.js: a `model.json` beside binary shards, as arrays by name; nothing in them is run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class LayersModel:
    """The arrays by name, and the settings of each layer by its name."""

    arrays: dict[str, np.ndarray]
    layers: dict[str, dict[str, Any]]


def read_layers_model(path: Path) -> LayersModel:
    """The model of a `model.json`; its shards lie in the same folder."""
    content = _content(path)
    arrays: dict[str, np.ndarray] = {}
    for group in content["weightsManifest"]:
        raw = b"".join(_shard(path.parent / name) for name in group["paths"])
        arrays |= _arrays(raw, group["weights"], path)
    configured = content["modelTopology"]["model_config"]["config"]
    layers = configured if isinstance(configured, list) else configured["layers"]
    return LayersModel(arrays, {layer["config"]["name"]: layer["config"] for layer in layers})


def batch_norm_epsilon(model: LayersModel) -> float:
    """The epsilon that all batch norms of the model share."""
    found = {layer["epsilon"] for layer in model.layers.values() if "epsilon" in layer}
    if len(found) != 1:
        raise ValueError(f"the batch norms of this model have the epsilons {sorted(found)}: expected one for all.")
    return float(found.pop())


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no file {path}.") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON ({error}): give the `model.json` of a TensorFlow.js model.") from error
    if not isinstance(content, dict) or content.get("format") != "layers-model":
        raise ValueError(f"{path} is no layers model of TensorFlow.js: its format is not `layers-model`.")
    return content


def _shard(path: Path) -> bytes:
    if not path.is_file():
        raise FileNotFoundError(f"the shard {path} is missing: unpack the whole model.")
    return path.read_bytes()


def _arrays(raw: bytes, weights: list[Mapping[str, Any]], path: Path) -> dict[str, np.ndarray]:
    arrays, place = {}, 0
    for one in weights:
        if one["dtype"] != "float32" or "quantization" in one:
            raise ValueError(f"the array {one['name']} of {path} is not plain float32: convert the model unquantized.")
        count = prod(one["shape"])
        if place + 4 * count > len(raw):
            raise ValueError(f"the shards of {path} end within {one['name']}: one is truncated.")
        arrays[one["name"]] = np.frombuffer(raw, "<f4", count, place).reshape(one["shape"])
        place += 4 * count
    if place != len(raw):
        raise ValueError(f"the shards of {path} hold {len(raw) - place} bytes more than its arrays: one is damaged.")
    return arrays
