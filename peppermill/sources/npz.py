"""`npz:file.npz`: arrays `x` and `y`, inputs and labels; inputs alone are enough for predictions.

A network that is called with names, as those of transformers are, finds them after a dot: `x.input_ids`,
`x.attention_mask`, ... in place of `x`.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

NUMBERS = "biuf"  # NumPy's letters for bools, integers and real numbers
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
        wanted = [*(named or ["x"]), *({"y"} & {*file.files})]
        _refuse_unread(path, file.zip, wanted)
        arrays = {name: _array(path, file, name) for name in wanted}
        inputs = {name.removeprefix("x."): arrays[name] for name in named} or arrays["x"]
        return (inputs, arrays["y"]) if "y" in arrays else inputs


def _refuse_unread(path: str, archive: zipfile.ZipFile, names: list[str]) -> None:
    """Raise before the arrays are read if they differ in length or exceed the machine's memory.

    Zeros compress a thousandfold, so the size of the file says little.
    """
    size, lengths = 0, dict[str, int]()
    for name in names:
        with suppress(Exception), archive.open(f"{name}.npy") as raw:  # damage is reported when the array is read
            size += archive.getinfo(f"{name}.npy").file_size
            oldest = np.lib.format.read_magic(raw) == (1, 0)
            read = np.lib.format.read_array_header_1_0 if oldest else np.lib.format.read_array_header_2_0
            shape, _, kind = read(raw)
            lengths |= {name: shape[0]} if shape and kind.kind in NUMBERS else {}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
        raise ValueError(f"the arrays of {path} have different lengths ({found}): each input needs one label.")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else size
    if size > memory:
        raise ValueError(f"the arrays of {path} take {size / 1e9:,.0f} GB, more than this machine has: save a part.")


def _array(path: str, file: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    try:
        array = np.asarray(file[name])
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, MemoryError) as error:
        reason = f"is damaged ({error}): save it again with {CURE}"
        if "pickle" in str(error):
            reason = "holds pickled objects, which could run code when opened and are refused: save plain numbers"
        raise ValueError(f"the array {name} of {path} {reason}.") from error
    if array.ndim == 0 or array.dtype.kind not in NUMBERS:
        raise ValueError(
            f"the array {name} of {path} has shape {list(array.shape)} and type {array.dtype}: expected numbers, one "
            "entry for each item."
        )
    return array
