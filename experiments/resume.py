"""What a run leaves behind: finished stages, trained weights and results, each file whole or absent.

A stage knows the settings and the data that made it. With other settings it is computed again; a stage made from
other data is refused, because the next stages would silently mix both.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

import peppermill as pm

VERSION = 1


@dataclass(frozen=True)
class Stages:
    """The finished stages of an experiment in one folder, all from the data with one fingerprint."""

    folder: Path
    data: str

    def json(self, name: str, settings: Mapping[str, Any], compute: Callable[[], Any]) -> Any:
        """What `compute` returns, computed once for these settings and kept in `NAME.json`."""
        path, settings = self.folder / f"{name}.json", plain(settings)
        if path.is_file():
            try:
                kept = json.loads(path.read_text())
                whole = kept["checksum"] == _checksum(kept["content"])
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{path} is damaged ({error}): delete it to compute it again.") from error
            if not whole:
                raise ValueError(f"{path} is damaged (its checksum does not fit): delete it to compute it again.")
            self._refuse_other_data(path, kept["data"])
            if kept["settings"] == settings:
                return kept["content"]
        content = plain(compute())
        kept = {"settings": settings, "data": self.data, "checksum": _checksum(content), "content": content}
        write_atomically(path, json.dumps(kept))
        return content

    def read_tensors(self, name: str, settings: Mapping[str, Any], device: str) -> dict[str, Tensor] | None:
        """The tensors of `NAME.safetensors`; None where there is no such file or other settings made it."""
        path = self.folder / f"{name}.safetensors"
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                kept = json.loads(file.metadata()["stage"])
                self._refuse_other_data(path, kept["data"])
                if kept["settings"] != plain(settings):
                    return None
                return {key: file.get_tensor(key).to(device) for key in file.keys()}  # noqa: SIM118
        except (SafetensorError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged ({error}): delete it to compute it again.") from error

    def write_tensors(self, name: str, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Write `NAME.safetensors`."""
        metadata = {"stage": json.dumps({"settings": plain(settings), "data": self.data})}
        content = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
        write_atomically(self.folder / f"{name}.safetensors", save(content, metadata))

    def _refuse_other_data(self, path: Path, data: str) -> None:
        if data != self.data:
            raise ValueError(
                f"{path} was made from other data: delete it, or name another folder with `--checkpoints`."
            )


def write_result(path: Path, kind: str, content: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Write the result of an experiment with its provenance; numbers that are not finite become null."""
    whole = {"format": kind, "version": VERSION, **plain(content), "provenance": provenance(seed)}
    write_atomically(path, json.dumps(whole, indent=1, allow_nan=False) + "\n")
    return whole


def read_result(path: Path, kind: str) -> dict[str, Any] | None:
    """A result that `write_result` wrote, or None where there is none."""
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(
            f"{path} is not JSON ({error}): it is truncated or corrupted. Run the experiment again."
        ) from error
    if not isinstance(content, dict) or content.get("format") != kind or content.get("version") != VERSION:
        raise ValueError(f"{path} is not a {kind} of version {VERSION}: it holds something else.")
    return content


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write beside the path, then rename: an interrupted write leaves the old file, or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def fingerprint(*tensors: Tensor) -> str:
    """A digest of the tensors' shapes and bytes, in their order."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def plain(value: Any) -> Any:
    """The value as JSON holds it: dataclasses as objects, tensors as lists, NaN and infinity as null."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value


def provenance(seed: int) -> dict[str, Any]:
    """Versions, hardware, seed, commit, command and time: what a reader needs to trust a number."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return pm.provenance(seed) | {"command": " ".join(["python -m experiments", *words])}


def _checksum(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
