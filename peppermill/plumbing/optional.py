"""Optional libraries: if one is missing, the error says what to install; if one is broken, why it does not import."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

#: The cure for a library that is installed and does not import.
VERSIONS = f"install it, and what it imports, in versions for torch {torch.__version__}"


@contextmanager
def importing(need: str, package: str, extra: str) -> Iterator[None]:
    """Import a package inside this context; `need` opens the error's sentence, as in "pictures need Pillow".

    Installing again helps only if the package, or something that it imports, is missing.
    """
    try:
        yield
    except Exception as error:  # torchvision, beside another build of torch, raises a RuntimeError
        missing = (error.name or package).partition(".")[0] if isinstance(error, ModuleNotFoundError) else None
        broken = "" if missing == package else f", which is installed but does not import ({reason(error)})"
        cure = f'`pip install "peppermill[{extra}]"`' if missing else VERSIONS
        raise ImportError(f"{need}{broken}: {cure}.") from error


def reason(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split()).rstrip('.')[:300]}"
