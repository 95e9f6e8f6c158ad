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

_CURE = "`np.savez(path, x=inputs, y=labels)`"


Inputs = np.ndarray | dict[str, np.ndarray]


def data(text: str) -> tuple[Inputs, np.ndarray]:
    """The pair (x, y), x an array or a dict of arrays. Nothing is unpickled: a file can be from anybody."""
    inputs, labels = _arrays(text, {"x", "y"})
    assert labels is not None
    return inputs, labels


def data_or_inputs(text: str, *_: object) -> tuple[Inputs, np.ndarray] | Inputs:
    """The pair (x, y), or x alone if the file has no y. No preparation is needed."""
    inputs, labels = _arrays(text, {"x"})
    return inputs if labels is None else (inputs, labels)


def _arrays(text: str, needed: set[str]) -> tuple[Inputs, np.ndarray | None]:
    if not Path(text).is_file():
        raise ValueError(f"there is no file {text}: save one with {_CURE}.")
    if not zipfile.is_zipfile(text):
        raise ValueError(f"{text} is not an npz file, or is truncated: save it with {_CURE}.")
    with np.load(text, allow_pickle=False) as arrays:
        named = [name for name in arrays.files if name.startswith("x.")]
        missing = needed - set(arrays.files) - ({"x"} if named else set())
        if missing:
            raise ValueError(
                f"{text} has no array {' and no '.join(sorted(missing))}, only {', '.join(arrays.files)}: save it "
                f"with {_CURE}."
            )
        inputs = {name.removeprefix("x."): _array(text, arrays, name) for name in named}
        labels = _array(text, arrays, "y") if "y" in arrays.files else None
        return inputs or _array(text, arrays, "x"), labels


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
