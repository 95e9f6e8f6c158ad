"""SIGKILL at random moments of a long prediction: the files in the end are those of an undisturbed one, byte for byte.

A part, once it has its name, must stay as it is: the process that goes on neither writes it again nor changes it.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import peppermill as pm
from stress.kills import ends_before

CLASSES, INPUTS, ITEMS = 100, 8, 400_000
FORMATS = ("parquet", "npz")


def run(seed: int, count: int, deadline: float) -> dict[str, Any]:
    generator, faults = random.Random(seed), list[str]()
    items = min(ITEMS, 4_000 * count)
    found = {"cases": 0, "jobs": 0, "torn": 0, "twice": 0, "different": 0, "items": items}
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder, whole = Path(name) / "killed", {form: Path(name) / form for form in FORMATS}
        for form in FORMATS:
            started = time.monotonic()
            predict(items, whole[form], form)
            seconds = time.monotonic() - started
        expected = {form: contents(whole[form]) for form in FORMATS}
        while found["cases"] < count and time.monotonic() < deadline:
            form = FORMATS[found["jobs"] % len(FORMATS)]
            before = parts_of(folder)
            ended = ends_before(generator.uniform(0, 0.5 * seconds), predict, items, folder, form)
            found["cases"] += not ended
            fault = fault_of(folder, before, expected[form], ended)
            if fault:
                found[fault] += 1
                faults.append(f"{fault}: {form}")
                print(faults[-1], flush=True)
            if fault or ended:  # from the beginning
                found["jobs"] += ended
                shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():  # the last job, to its end
            predict(items, folder, FORMATS[found["jobs"] % len(FORMATS)])
            if contents(folder) != expected[FORMATS[found["jobs"] % len(FORMATS)]]:
                found["different"] += 1
                faults.append("different: the files after the last kill")
            found["jobs"] += 1
    return {**found, "faults": faults}


def predict(items: int, folder: Path, form: str) -> None:
    """Rows of 100 classes by a small linear network, in parts that take a fraction of a second each."""
    torch.manual_seed(0)
    network, x = nn.Linear(INPUTS, CLASSES).eval(), torch.randn(items, INPUTS)
    pep = pm.PepEnsemble.at_sigma(network, 0.05, size=2)
    pm.write_predictions(pep, x, folder, columns="probabilities,predicted", part_items=items // 40, format=form)


def fault_of(folder: Path, before: dict[str, Any], expected: dict[str, bytes], ended: bool) -> str:
    after = parts_of(folder)
    if any(after.get(name) != state for name, state in before.items()):
        return "twice"
    if any((folder / "parts" / name).read_bytes() != expected.get(f"parts/{name}") for name in after):
        return "torn"
    return "different" if ended and contents(folder) != expected else ""


def parts_of(folder: Path) -> dict[str, tuple[int, int]]:
    """The finished parts by name, with inode and time of writing: a part that is written again has others."""
    paths = [path for path in folder.glob("parts/*") if not path.name.startswith(".")]
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
