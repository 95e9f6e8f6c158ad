"""`npz:file.npz`: arrays `x` and `y`, inputs and labels."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np


def data(text: str) -> tuple[np.ndarray, np.ndarray]:
    """The pair (x, y). Nothing is unpickled: a file can be from anybody."""
    if not Path(text).is_file():
        raise ValueError(f"there is no file {text}.")
    try:
        with np.load(text, allow_pickle=False) as arrays:
            missing = {"x", "y"} - set(arrays.files)
            if missing:
                raise ValueError(
                    f"{text} has no array {' and no '.join(sorted(missing))}, only {', '.join(arrays.files)}: save it "
                    "with `np.savez(path, x=inputs, y=labels)`."
                )
            return arrays["x"], arrays["y"]
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise ValueError(f"{text} is not an npz file, or is truncated ({error}).") from error
    except ValueError as error:
        raise ValueError(_refused(text, error)) from error


def _refused(text: str, error: ValueError) -> str:
    if "pickle" in str(error):
        return f"{text} holds pickled objects, which could run code when opened and are refused: save plain arrays."
    return str(error)
