"""`npz:file.npz`: arrays `x` and `y`, inputs and labels; inputs alone are enough for predictions.

A network that is called with names, as those of transformers are, finds them after a dot: `x.input_ids`,
`x.attention_mask`, ... in place of `x`.
"""

from __future__ import annotations

import math
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

MAPPED_BYTES = 2**26  # arrays from this size on are read piece by piece
NUMBERS = "biuf"  # NumPy's letters for bools, integers and real numbers
CURE = "`np.savez(path, x=inputs, y=labels)`"


def data(path: str, prepare: object = None, class_names: object = None, needs_labels: bool = True) -> Any:
    """The pair (x, y), x an array or a dict of arrays; x alone if the file has no y, and labels are not needed.

    Nothing is unpickled: a file can be from anybody.
    """
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}: save one with {CURE}.")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not an npz file, or is truncated: save it with {CURE}.")
    with np.load(path, allow_pickle=False) as file:
        named = [name for name in file.files if name.startswith("x.")]
        missing = {"x", *("y" * needs_labels)} - set(file.files) - ({"x"} if named else set())
        if missing:
            raise ValueError(
                f"{path} has no array {' and no '.join(sorted(missing))}, only {', '.join(file.files)}: save it with "
                f"{CURE}."
            )
        wanted = [*(named or ["x"]), *({"y"} & {*file.files})]
        headers = {name: header for name in wanted if (header := _header(file.zip, name))}
        lengths = {name: header["shape"][0] for name, header in headers.items()}
        if len({*lengths.values()}) > 1:
            found = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
            raise ValueError(f"the arrays of {path} have different lengths ({found}): each input needs one label.")
        # Zeros compress a thousandfold, so the size of the file says little.
        size = sum(_bytes_of(header) for header in headers.values() if header["offset"] is None)
        if hasattr(os, "sysconf") and size > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
            raise ValueError(
                f"the arrays of {path} take {size / 1e9:,.0f} GB, more than this machine has: save them with "
                "`np.savez`, which does not compress them, and they are read piece by piece."
            )
        mode = "c" if needs_labels else "r"  # predictions read rows from the file; a fit may write to its copy
        arrays = {name: _array(path, mode, file, name, headers.get(name)) for name in wanted}
        inputs = {name.removeprefix("x."): arrays[name] for name in named} or arrays["x"]
        return (inputs, arrays["y"]) if "y" in arrays else inputs


def _header(archive: zipfile.ZipFile, name: str) -> dict[str, Any] | None:
    """How to map an array into memory, as arguments of `np.memmap`; a compressed one has no `offset`.

    None for an array of no numbers, or a damaged one, which is reported when it is read.
    """
    with suppress(Exception), archive.open(f"{name}.npy") as raw, open(str(archive.filename), "rb") as file:
        info = archive.getinfo(f"{name}.npy")
        oldest = np.lib.format.read_magic(raw) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if oldest else np.lib.format.read_array_header_2_0
        shape, columns_first, kind = read(raw)
        file.seek(info.header_offset + 26)  # the lengths of the two fields before the content
        place = info.header_offset + 30 + sum(struct.unpack("<HH", file.read(4))) + raw.tell()
        if shape and kind.kind in NUMBERS:
            offset = place if info.compress_type == zipfile.ZIP_STORED else None
            return {"dtype": kind, "offset": offset, "shape": shape, "order": "F" if columns_first else "C"}
    return None


def _bytes_of(header: dict[str, Any]) -> int:
    return int(math.prod(header["shape"]) * header["dtype"].itemsize)


def _array(path: str, mode: Any, file: Mapping[str, np.ndarray], name: str, header: dict[str, Any] | None) -> Any:
    """The array; a large one that is not compressed is a memory map, which reads what is used."""
    if header and header["offset"] and _bytes_of(header) >= MAPPED_BYTES:
        return np.memmap(path, mode=mode, **header)
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
