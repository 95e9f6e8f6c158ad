"""Warnings that point at the user's own line, not at a line of this library."""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import Path

import torch

#: Code between the user and a warning: this package, and the decorators of torch and of Python.
_BETWEEN = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent), contextlib.__file__)


class PepWarning(UserWarning):
    """A problem that a careful user should know about, but that does not stop the work."""


def warn_user(message: str) -> None:
    """Warn with a PepWarning on the user's line that led here."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, PepWarning, stacklevel=level)
