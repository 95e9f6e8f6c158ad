"""Files from the network: checked, resumed where a download broke off, and never used before they are whole."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from peppermill.plumbing.progress import progress

_CHUNK = 2**18
_TIMEOUT = 30.0  # seconds of silence before an address is given up


@dataclass(frozen=True)
class RemoteFile:
    """A file by name, the SHA-256 that it must have, and the addresses that offer it, the canonical one first."""

    name: str
    sha256: str
    addresses: tuple[str, ...]


def fetch(file: RemoteFile, folder: Path) -> Path:
    """The file in the folder, downloaded where it is not there yet.

    What has arrived is kept beside it as `name.part`, and the next attempt asks for the rest only. A file whose sum is
    wrong is thrown away, and the next address is tried.
    """
    path = folder / file.name
    if path.is_file():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    part, failures = folder / f"{file.name}.part", []
    for address in file.addresses:
        try:
            _complete(part, address, file)
            os.replace(part, path)
            return path
        except (OSError, http.client.HTTPException, ValueError) as error:
            failures.append(f"{address} ({error})")
    raise OSError(f"{file.name} could not be downloaded: {'; '.join(failures)}.")


def _complete(part: Path, address: str, file: RemoteFile) -> None:
    """Bring the part to its full length and check it; once from the beginning, should what was there be of no use."""
    for attempt in ("resumed", "fresh"):
        resumed = part.is_file() and part.stat().st_size > 0
        if not resumed or sha256_of(part) != file.sha256:
            _append(part, address, file.name)
        found = sha256_of(part)
        if found == file.sha256:
            return
        part.unlink()
        if not resumed or attempt == "fresh":
            raise ValueError(f"its SHA-256 is {found[:12]}..., not {file.sha256[:12]}...: it was thrown away")


def _append(part: Path, address: str, name: str) -> None:
    start = part.stat().st_size if part.is_file() else 0
    with _opened(address, start) as response:
        if response is None:  # there is nothing beyond what we have
            return
        resumed = response.status == 206
        length = int(response.headers.get("Content-Length") or 0)
        with part.open("ab" if resumed else "wb") as target, progress(f"downloading {name}", length or None) as tick:
            arrived = 0
            while chunk := response.read(_CHUNK):
                target.write(chunk)
                arrived += len(chunk)
                tick(len(chunk))
        if length and arrived < length:
            raise OSError(f"it broke off after {arrived:,} of {length:,} bytes, which are kept: try again to resume")


@contextmanager
def _opened(address: str, start: int) -> Iterator[http.client.HTTPResponse | None]:
    headers = {"User-Agent": "peppermill"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=_TIMEOUT) as response:
            yield response
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        yield None


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
