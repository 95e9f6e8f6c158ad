"""A run: settings, scores, curves and versions, in one JSON file from which a report can be made without model or "
"data."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from peppermill.evaluation.comparison import Comparison, Scores
from peppermill.evaluation.item_effects import Effects
from peppermill.evaluation.member_count import SizeCurve
from peppermill.evaluation.sweep import Sweep
from peppermill.fingerprint import fingerprint
from peppermill.metrics import Reliability, reliability
from peppermill.plumbing.files import read_json, write_atomically
from peppermill.predictions import Predictions

KIND = "peppermill run"
VERSION = 1


@dataclass(frozen=True)
class Method:
    """One method of a run.

    Its scores, its reliability table (none of a regression), its difference from the first method, and what was fitted.
    """

    name: str
    scores: Scores
    reliability: Reliability | None
    comparison: Comparison | None = None
    fitted: Mapping[str, float] = field(default_factory=dict)
    forward_passes: int = 1


@dataclass(frozen=True)
class Run:
    """What was asked, what came out, and where it was computed.

    `curvature`, `overfitting` and `sizes` hold the numbers of further panels of the report (docs/report.md).
    """

    title: str
    settings: Mapping[str, Any]
    methods: tuple[Method, ...]
    sweep: Sweep | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    effects: Effects | None = None
    curvature: Mapping[str, Any] | None = None
    overfitting: Mapping[str, Any] | None = None
    sizes: SizeCurve | None = None


def method_of(
    name: str, predictions: Predictions, scores: Scores, comparison: Comparison | None = None, **more: Any
) -> Method:
    """A method from its predictions: the reliability table has the bins of its scores."""
    classifies = "error" in scores.estimates
    table = reliability(predictions.log_probs, predictions.labels, scores.bins) if classifies else None
    return Method(name, scores, table, comparison, **more)


def provenance(seed: int, network: nn.Module | None = None) -> dict[str, Any]:
    """Versions, hardware, seed, commit, command, time, and the fingerprint of the weights.

    What a reader needs to trust a number.
    """
    return {
        "versions": {name: _version(name) for name in ("peppermill", "torch", "numpy", "scipy")}
        | {"python": platform.python_version()},
        "hardware": hardware(),
        "seed": seed,
        "commit": _commit(),
        "command": _command(sys.argv),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "fingerprint": asdict(fingerprint(network)) if network is not None else None,
    }


def _command(words: list[str]) -> str:
    """What was typed; of a path of this machine alone only the name."""
    program = "peppermill" if Path(words[0]).name == "__main__.py" else Path(words[0]).name
    return " ".join([program, *(Path(word).name if Path(word).is_absolute() else word for word in words[1:])])


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


def write_run(run: Run, path: str | Path) -> None:
    """Write the run as JSON, whole or not at all."""
    content = {"format": KIND, "version": VERSION, **plain(run)}
    write_atomically(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """Anything in a run as lists, dicts and finite numbers; what is not a number is null."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(part) for name, part in vars(value).items()}
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_run(path: str | Path) -> dict[str, Any]:
    """The content of a run file, as plain lists and numbers, checked to be whole and ours."""
    content = read_json(path, KIND, VERSION)
    missing = [name for name in ("title", "settings", "methods", "provenance") if name not in content]
    if missing:
        raise ValueError(f"{path} is damaged: it has no {', '.join(missing)}. Run the command that wrote it again.")
    return content


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "from a checkout" if name == "peppermill" else "not installed"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _commit() -> str | None:
    """The commit of the checkout that this file belongs to; in a copy without history, what PEPPERMILL_COMMIT says."""
    if os.environ.get("PEPPERMILL_COMMIT"):
        return os.environ["PEPPERMILL_COMMIT"]
    here = Path(__file__).resolve().parent
    try:
        asked = ["git", "-C", str(here), "rev-parse", "--short=12", "HEAD"]
        found = subprocess.run(asked, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None if found.returncode == 0 and (here.parent / ".git").exists() else None
