"""`npz:file.npz`: arrays `x` and `y`, inputs and labels; inputs alone are enough for predictions.

A network that is called with names, as those of transformers are, finds them after a dot: `x.input_ids`,
`x.attention_mask`, ... in place of `x`.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

CURE = "`np.savez(path, x=inputs, y=labels)`"

Inputs = np.ndarray | dict[str, np.ndarray]


def data(text: str) -> tuple[Inputs, np.ndarray]:
    """The pair (x, y), x an array or a dict of arrays. Nothing is unpickled: a file can be from anybody."""
    inputs, labels = _arrays(text, {"x", "y"})
    assert labels is not None
    return inputs, labels


def data_or_inputs(text: str, *_: object) -> tuple[Inputs, np.ndarray] | Inputs:
    """The pair (x, y), or x alone if the file has no y."""
    inputs, labels = _arrays(text, {"x"})
    return inputs if labels is None else (inputs, labels)


def _arrays(path: str, needed: set[str]) -> tuple[Inputs, np.ndarray | None]:
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}: save one with {CURE}.")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not an npz file, or is truncated: save it with {CURE}.")
    with np.load(path, allow_pickle=False) as file:
        named = [name for name in file.files if name.startswith("x.")]
        missing = needed - set(file.files) - ({"x"} if named else set())
        if missing:
            raise ValueError(
                f"{path} has no array {' and no '.join(sorted(missing))}, only {', '.join(file.files)}: save it with "
                f"{CURE}."
            )
        arrays = {name: _array(path, file, name) for name in named or ["x"]}
        labels = _array(path, file, "y") if "y" in file.files else None
    return {name.removeprefix("x."): array for name, array in arrays.items()} if named else arrays["x"], labels


def _array(path: str, file: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    try:
        array = np.asarray(file[name])
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        reason = f"is damaged ({error}): save it again with {CURE}"
        if "pickle" in str(error):
            reason = "holds pickled objects, which could run code when opened and are refused: save plain numbers"
        raise ValueError(f"the array {name} of {path} {reason}.") from error
    if array.ndim == 0 or array.dtype.kind not in "biuf":
        raise ValueError(
            f"the array {name} of {path} has shape {list(array.shape)} and type {array.dtype}: expected numbers, one "
            "entry for each item."
        )
    return array
