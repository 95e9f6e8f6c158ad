"""The results of an experiment: one JSON file, written whole or not at all, and where its numbers were made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from peppermill.plumbing.files import write_atomically

FOLDERS = {"--data", "--out", "--checkpoints"}


def write_result(path: Path, content: Mapping[str, Any]) -> None:
    """Numbers that are not finite are refused: a table has no place for them."""
    write_atomically(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def where(content: Mapping[str, Any]) -> str:
    """Hardware, versions and date of a result, for the page."""
    made = content["provenance"]
    place = made["hardware"].get("gpu") or f"{made['hardware']['processor']}, {made['hardware']['cores']} cores"
    return f"({place}; torch {made['versions']['torch']}; {made['time'][:10]}.)"


def typed(content: Mapping[str, Any]) -> str:
    """The command that made a result, without the folders that it read and wrote."""
    words: list[str] = content["provenance"]["command"].split()
    return " ".join(
        word for before, word in pairwise(["", *words]) if not {before, word} & FOLDERS and word != "--debug"
    )
