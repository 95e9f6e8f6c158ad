"""`npz:file.npz`: arrays `x` and `y`, inputs and labels; inputs alone are enough for predictions.

A network that is called with names, as those of transformers are, finds them after a dot: `x.input_ids`,
`x.attention_mask`, ... in place of `x`.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

CURE = "`np.savez(path, x=inputs, y=labels)`"


def data(path: str) -> Any:
    """The pair (x, y), x an array or a dict of arrays. Nothing is unpickled: a file can be from anybody."""
    return data_or_inputs(path, needed=("x", "y"))


def data_or_inputs(path: str, *_: object, needed: tuple[str, ...] = ("x",)) -> Any:
    """The pair (x, y), or x alone if the file has no y."""
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}: save one with {CURE}.")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not an npz file, or is truncated: save it with {CURE}.")
    with np.load(path, allow_pickle=False) as file:
        named = [name for name in file.files if name.startswith("x.")]
        missing = set(needed) - set(file.files) - ({"x"} if named else set())
        if missing:
            raise ValueError(
                f"{path} has no array {' and no '.join(sorted(missing))}, only {', '.join(file.files)}: save it with "
                f"{CURE}."
            )
        dictionary = {name.removeprefix("x."): _array(path, file, name) for name in named}
        inputs = dictionary or _array(path, file, "x")
        return (inputs, _array(path, file, "y")) if "y" in file.files else inputs


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
