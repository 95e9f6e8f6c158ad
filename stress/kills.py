"""SIGKILL at a random moment of work that saves as it goes: files are whole or absent, and starting again goes on."""

from __future__ import annotations

import json
import os
import random
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import peppermill as pm
from experiments.resume import Stages

STAGES = 4


def run(seed: int, count: int, deadline: float) -> dict[str, Any]:
    generator, faults = random.Random(seed), list[str]()
    found = {"cases": 0, "torn": 0, "different": 0}
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        whole, folder = Path(name) / "whole", Path(name) / "killed"
        finish(Path(name) / "first")  # imports take longer than the work
        started = time.monotonic()
        finish(whole)
        seconds, expected = time.monotonic() - started, results(whole)
        folder.mkdir()
        while found["cases"] < count and time.monotonic() < deadline:
            ended = ends_before(generator.uniform(0, 1.1 * seconds), finish, folder)
            found["cases"] += not ended
            fault = "torn" if torn(folder) else "different" if ended and results(folder) != expected else ""
            if fault:
                found[fault] += 1
                faults.append(f"{fault}: {torn(folder) or 'the results'}")
                print(faults[-1], flush=True)
            if fault or ended:  # from the beginning
                for path in folder.iterdir():
                    path.unlink()
        finish(folder)
        if results(folder) != expected:
            found["different"] += 1
            faults.append("different: the results after the last kill")
    return {**found, "faults": faults}


def ends_before(seconds: float, work: Callable[..., None], *arguments: Any) -> bool:
    """Whether the work, in a process of its own, ends before it is killed after that time."""
    child = os.fork()
    if child == 0:
        try:
            work(*arguments)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in (0, -signal.SIGKILL):
        raise RuntimeError(f"the work failed before it was killed, with exit code {code}")
    return code == 0


def finish(folder: Path) -> None:
    """Fit, predict and record in stages; what an earlier process finished is not computed again."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    data = torch.randn(60, 6), torch.arange(60) % 3
    folder.mkdir(exist_ok=True)
    stages = Stages(folder, "the data")
    for k in range(STAGES):
        stages.json(
            f"stage{k}", {"k": k}, lambda k=k: pm.fit(model, data, size=2 + k % 2, noise=pm.Noise(seed=k)).sigma
        )
        pep = pm.PepEnsemble.at_sigma(model, 0.1 + k, size=2)
        pep.save(folder / "pep.json")
    pm.write_run(pm.record_run({"network": model, "PEP": pep}, data, title="all stages"), folder / "run.json")


def results(folder: Path) -> Any:
    run = pm.read_run(folder / "run.json")
    kept = [json.loads((folder / f"stage{k}.json").read_text()) for k in range(STAGES)]
    return kept, (folder / "pep.json").read_text(), run["title"], run["methods"]


def torn(folder: Path) -> str:
    """The name of a file that is neither whole nor absent."""
    for path in sorted(folder.glob("*.json")):
        try:
            json.loads(path.read_text())
        except ValueError:
            return path.name
    return ""
