"""Two processes that fit together, one of which fails: the other ends in time, and not as if all were well."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

SECONDS = 150  # after which a process hangs
JOIN_SECONDS = 20
NETWORKS = (
    "from torch import nn\n\ndef mlp():\n    return nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 3))\n"
)
KINDS = ("other data", "killed", "killed", "interrupted", "other arguments", "broken data", "never starts")


def run(seed: int, count: int, deadline: float) -> dict[str, Any]:
    generator, faults = random.Random(seed), list[str]()
    found = {"cases": 0, "ended": 0, "hang": 0, "silent": 0}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "nets.py").write_text(NETWORKS)
        for data, items in {"data": 60_000, "less": 40_000}.items():
            x = np.random.default_rng(items).normal(size=(items, 6)).astype(np.float32)
            np.savez(folder / f"{data}.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
        (folder / "broken.npz").write_bytes((folder / "data.npz").read_bytes()[:1000])
        while found["cases"] < count and time.monotonic() < deadline:
            kind = KINDS[found["cases"] % len(KINDS)]
            found["cases"] += 1
            outcome, said = tried(folder, kind, generator.uniform(3, 12))
            found[outcome] += 1
            if outcome != "ended" or "Traceback" in said:
                faults.append(f"{outcome}, when a process {kind}: {said.strip().splitlines()[-1:]}")
                print(faults[-1], flush=True)
    return {**found, "faults": faults}


def tried(folder: Path, kind: str, delay: float) -> tuple[str, str]:
    """How process 0 ended when process 1 failed, and what it said."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    first = started(folder, 0, port, ["npz:data.npz", "--size", "4"])
    data = {"other data": "npz:less.npz", "broken data": "npz:broken.npz"}.get(kind, "npz:data.npz")
    second = None
    if kind != "never starts":
        second = started(folder, 1, port, [data, "--size", "3" if kind == "other arguments" else "4"])
    if second and kind in ("killed", "interrupted"):
        time.sleep(delay)
        second.send_signal(signal.SIGKILL if kind == "killed" else signal.SIGINT)
    try:
        said = first.communicate(timeout=SECONDS)[0]
        failed = second is None or second.wait(SECONDS) != 0
        return "ended" if first.returncode or not failed else "silent", said
    except subprocess.TimeoutExpired:
        return "hang", ""
    finally:
        for process in (first, second):
            if process and process.poll() is None:
                process.kill()


def started(folder: Path, rank: int, port: int, words: list[str]) -> subprocess.Popen[str]:
    group = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    own = {"MASTER_PORT": str(port), "PEPPERMILL_JOIN_SECONDS": str(JOIN_SECONDS), "OMP_NUM_THREADS": "1"}
    root = str(Path(__file__).resolve().parent.parent)
    command = [sys.executable, "-m", "peppermill", "fit", "python:nets:mlp", *words, "--out", f"pep{rank}.json"]
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **group, **own, "PYTHONPATH": os.pathsep.join([root, str(folder)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
