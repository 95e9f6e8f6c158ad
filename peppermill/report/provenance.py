"""Provenance of a run: versions, hardware, seed, commit, command, time, and the fingerprint of the weights."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from peppermill.recipe import fingerprint, versions


def provenance(seed: int, network: nn.Module | None = None) -> dict[str, Any]:
    """Versions, hardware, seed, commit, command, time and the network's fingerprint: enough to repeat a number."""
    program = "peppermill" if Path(sys.argv[0]).name == "__main__.py" else Path(sys.argv[0]).name
    words = (
        Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]
    )  # no folders of this machine
    return {
        "versions": {**versions(), "numpy": version("numpy"), "scipy": version("scipy")},
        "hardware": hardware(),
        "seed": seed,
        "commit": _commit(),
        "command": " ".join([program, *words]),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "fingerprint": asdict(fingerprint(network)) if network is not None else None,
    }


def hardware() -> dict[str, Any]:
    """The processor, its cores, and the GPU if there is one."""
    found: dict[str, Any] = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _commit() -> str | None:
    """The commit of this checkout; for a copy without history, the value of PEPPERMILL_COMMIT."""
    if os.environ.get("PEPPERMILL_COMMIT"):
        return os.environ["PEPPERMILL_COMMIT"]
    package = Path(__file__).resolve().parents[1]
    if not (package.parent / ".git").exists():
        return None
    command = ["git", "-C", str(package), "rev-parse", "--short=12", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None
