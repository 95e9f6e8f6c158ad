"""Files that are complete or absent, JSON that says what is wrong with it, and the versions that wrote it."""

from __future__ import annotations

import errno
import json
import os
import platform
import secrets
from pathlib import Path
from typing import Any

import peppermill

MAX_NAME_BYTES = 255  # on every common file system
MAX_JSON_BYTES = 25_000_000  # a thousand times a usual run file; a matrix for 1,000 classes fits


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Write beside the path, then rename: an interrupted write leaves the old file, or none.

    The user's umask decides who may read the file. A symbolic link stays, and the file that it points to is replaced.
    """
    refuse_unwritable(path)
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(
                f"the disk is full: {path} was not written, and what was finished is kept. Make room and run it again."
            ) from error
        raise


def refuse_unwritable(path: str | Path | None) -> None:
    """Raise if a file cannot be written: better before the work than after it.

    A folder, a device or a pipe is refused: renaming a file over it would replace it.
    """
    if path is None:
        return
    path = Path(path)
    folder = next(parent for parent in path.absolute().parents if os.path.exists(parent))
    taken = os.path.exists(path) and not os.path.isfile(path)
    too_long = len(os.fsencode(path.name)) > MAX_NAME_BYTES
    if taken or too_long or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f"{path} cannot be written: give the path of a file, in a folder that you may write to.")


def cache_folder() -> Path:
    """Where downloads are kept: `$XDG_CACHE_HOME/peppermill`, which is `~/.cache/peppermill` for most users."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "peppermill"


def read_json(path: str | Path, kind: str, newest: int) -> dict[str, Any]:
    """The object in a file that this library wrote as `kind`, of a version no newer than `newest`."""
    content = read_object(path)
    if not isinstance(content, dict) or content.get("format") != kind:
        raise ValueError(f"{path} is not a {kind}: it was written by another tool, or holds something else.")
    version = content.get("version")
    if not isinstance(version, int) or version > newest:
        raise ValueError(
            f"{path} has version {version}, and this library reads up to {newest}: install a newer peppermill."
        )
    return content


def read_object(path: str | Path) -> Any:
    """The content of a JSON file."""
    if not os.path.exists(path):
        raise FileNotFoundError(f"there is no file {path}.")
    if not os.path.isfile(path):
        raise ValueError(f"{path} cannot be read: it is a folder, a device or a pipe.")
    if os.path.getsize(path) > MAX_JSON_BYTES:
        raise ValueError(f"{path} is larger than {MAX_JSON_BYTES // 10**6} MB: this library did not write it.")
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file: it is corrupted or holds something else.") from error
    except (ValueError, RecursionError) as error:
        line = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise ValueError(f"{path} is not JSON{line}: it is truncated or corrupted. Write it again.") from error


def versions() -> dict[str, str]:
    """The versions on which a result depends."""
    import torch  # which readers of files do without

    own = peppermill.__version__
    return {"peppermill": own, "torch": torch.__version__, "python": platform.python_version()}
