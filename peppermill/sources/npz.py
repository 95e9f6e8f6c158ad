"""`npz:file.npz`: arrays `x` and `y`, inputs and labels; inputs alone where only predictions are asked for."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

_CURE = "`np.savez(path, x=inputs, y=labels)`"


def data(text: str) -> tuple[np.ndarray, np.ndarray]:
    """The pair (x, y). Nothing is unpickled: a file can be from anybody."""
    arrays = _arrays(text, {"x", "y"})
    return arrays["x"], arrays["y"]


def data_or_inputs(text: str) -> tuple[np.ndarray, np.ndarray] | np.ndarray:
    """The pair (x, y), or x alone where the file has no y."""
    arrays = _arrays(text, {"x"})
    return (arrays["x"], arrays["y"]) if "y" in arrays else arrays["x"]


def _arrays(text: str, needed: set[str]) -> dict[str, np.ndarray]:
    if not Path(text).is_file():
        raise ValueError(f"there is no file {text}.")
    if not zipfile.is_zipfile(text):
        raise ValueError(f"{text} is not an npz file, or is truncated: save it with {_CURE}.")
    with np.load(text, allow_pickle=False) as arrays:
        missing = needed - set(arrays.files)
        if missing:
            raise ValueError(
                f"{text} has no array {' and no '.join(sorted(missing))}, only {', '.join(arrays.files)}: save it "
                f"with {_CURE}."
            )
        return {name: _array(text, arrays, name) for name in ("x", "y") if name in arrays.files}


def _array(text: str, arrays: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    try:
        array = np.asarray(arrays[name])
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        if "pickle" in str(error):
            raise ValueError(
                f"the array {name} of {text} holds pickled objects, which could run code when opened and are refused: "
                "save plain numbers."
            ) from error
        raise ValueError(f"the array {name} of {text} is damaged ({error}): save it again with {_CURE}.") from error
    if array.ndim == 0 or array.dtype.kind not in "biuf":
        raise ValueError(
            f"the array {name} of {text} has shape {list(array.shape)} and type {array.dtype}: expected numbers, one "
            "entry for each item."
        )
    return array
