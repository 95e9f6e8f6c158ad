"""Files that are whole or absent, and JSON that says what is wrong with it."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Write beside the path, then rename: an interrupted write leaves the old file, or none."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def refuse_unwritable(path: str | Path | None) -> None:
    """Raise where a file cannot be written: cheaper to know before the work than after it."""
    if path is None:
        return
    folder = next(parent for parent in Path(path).absolute().parents if parent.exists())
    if Path(path).is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f"{path} cannot be written: give the path of a file, in a folder that you may write to.")


def cache_folder() -> Path:
    """Where downloads are kept: `$XDG_CACHE_HOME/peppermill`, which is `~/.cache/peppermill` for most."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "peppermill"


def spare_folder() -> Path:
    """Where large temporary files go: `TMPDIR` where it is set, else the cache folder.

    `/tmp` is held in memory on many machines.
    """
    if os.environ.get("TMPDIR"):
        return Path(tempfile.gettempdir())
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.gettempdir())
    return folder if os.access(folder, os.W_OK) else Path(tempfile.gettempdir())


def read_json(path: str | Path, kind: str, newest: int) -> dict[str, Any]:
    """The object in a file that this library wrote as `kind`, of a version no newer than `newest`."""
    text = _read_text(path)
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path} is not JSON (line {error.lineno}): it is truncated or corrupted. Write it again."
        ) from error
    if not isinstance(content, dict) or content.get("format") != kind:
        raise ValueError(f"{path} is not a {kind}: it was written by another tool, or holds something else.")
    version = content.get("version")
    if not isinstance(version, int) or version > newest:
        raise ValueError(
            f"{path} has version {version}, and this library reads up to {newest}: install a newer peppermill."
        )
    return content


def _read_text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no file {path}.") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file: it is corrupted or holds something else.") from error
