"""Libraries that not everybody has: absent, the error says what to install; broken, why it does not import."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

#: What cures a library that is there.
VERSIONS = f"install it, and what it imports, in versions for torch {torch.__version__}"


@contextmanager
def importing(need: str, package: str, extra: str) -> Iterator[None]:
    """Within this a package is imported, for `need`, a sentence as in "pictures need Pillow".

    To install again what is there cures nothing, unless something that it imports is absent.
    """
    try:
        yield
    except Exception as error:  # torchvision, beside another build of torch, raises a RuntimeError
        absent = (error.name or package).partition(".")[0] if isinstance(error, ModuleNotFoundError) else None
        broken = "" if absent == package else f", which is installed but does not import ({reason(error)})"
        cure = f'`pip install "peppermill[{extra}]"`' if absent else VERSIONS
        raise ImportError(f"{need}{broken}: {cure}.") from error


def reason(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split()).rstrip('.')[:300]}"
