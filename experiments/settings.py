"""The settings of the experiments. The defaults are the paper's, and every setting names its source on its own line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SEEDS = tuple(range(17, 42))  # the authors' scripts
EPOCHS = 15  # Section 3.2
DEFAULT_SWA = "sgd:first=0.1,swa=0.01"  # the paper publishes no schedule: docs/paper.md says why this one


@dataclass(frozen=True)
class Row:
    """One row of Table 2, with learning rates, validation set and members while tuning from the authors' scripts."""

    title: str
    data: str
    classes: int
    network: str
    learning_rate: float
    dropout_learning_rate: float
    validation: int  # images at the end of the training set
    tuning_size: int  # members while tuning


ROWS: dict[str, Row] = {
    "mnist-mlp": Row("MNIST (MLP)", "mnist", 10, "mnist_mlp", 2.5e-3, 2.5e-3, 10_000, 10),
    # the scripts have 2.5e-4 for MNIST (CNN), but the networks whose numbers they print learned at 5e-4: docs/paper.md
    "mnist-cnn": Row("MNIST (CNN)", "mnist", 10, "mnist_cnn", 5e-4, 5e-4, 10_000, 5),
    "fashion-mnist": Row("Fashion MNIST", "fashion-mnist", 10, "mnist_cnn", 2.5e-4, 5e-4, 10_000, 5),
    "cifar10": Row("CIFAR-10", "cifar10", 10, "cifar_cnn", 2.5e-4, 5e-4, 5_000, 10),
    "cifar100": Row("CIFAR-100", "cifar100", 100, "cifar_cnn", 2.5e-4, 5e-4, 5_000, 10),  # not in the scripts
}


def paper_layers(name: str, value: Tensor) -> bool:
    """What the paper perturbs in Table 2: kernels with more than 32 outputs (the authors' scripts), not the last."""
    return value.ndim > 1 and len(value) > 32 and not name.startswith("output")


@dataclass(frozen=True)
class Machine:
    """Where an experiment reads, computes and writes: what every experiment has."""

    data: Path | None = None  # the folder of the data sets; PEPPERMILL_DATA without it
    out: Path = Path("results/paper")  # the folder of the results
    checkpoints: Path = Path(".local/paper")  # trained weights and finished stages; safe to delete
    device: str = "cpu"  # cpu, cuda, cuda:1
    precision: str = "tf32"  # of products on a GPU: float32 or tf32
    say: Callable[[str], None] = print

    def __post_init__(self) -> None:
        if self.precision not in ("float32", "tf32", "bfloat16", "float16"):
            raise ValueError(f"`precision={self.precision!r}` must be float32, tf32, bfloat16 or float16.")
        try:
            usable = torch.device(self.device).type != "cuda" or torch.cuda.is_available()
        except RuntimeError:
            usable = False
        if not usable:
            raise ValueError(f"`device={self.device!r}` cannot be used here: try `--device cpu`.")
        for folder in (self.out, self.checkpoints):
            if folder.is_file():
                raise ValueError(f"{folder} is a file: name a folder.")

    def identity(self) -> dict[str, Any]:
        """The settings that decide the numbers: a stage made with other ones is computed again."""
        kept = {name: value for name, value in vars(self).items() if name not in NOT_IN_IDENTITY}
        return json.loads(json.dumps(kept, default=str))  # type: ignore[no-any-return]


NOT_IN_IDENTITY = ("data", "out", "checkpoints", "device", "say", "rows", "models", "learning_rate", "batch_size",
                   "networks", "imagenet", "labels", "weights", "only")  # fmt: skip


@dataclass(frozen=True)
class Settings(Machine):
    """Experiments on the networks of Table 2."""

    rows: tuple[str, ...] = tuple(ROWS)  # of Table 2
    models: int = len(SEEDS)  # networks of each row (the authors' scripts)
    epochs: int = EPOCHS  # Section 3.2
    size: int = 25  # members at test (the authors' scripts)
    dropout_passes: int = 25  # the authors' scripts
    ensemble_size: int = 10  # networks of a deep ensemble (the authors' scripts)
    ensemble_draws: int = 100  # the authors' scripts
    our_tuning_size: int = 10  # members while tuning in our columns: the default of `pm.fit`
    bins: int = 20  # of the ECE (the authors' scripts)
    swa: str = DEFAULT_SWA  # the paper publishes none: docs/paper.md
    learning_rate: float | None = None  # of networks without dropout, in place of the row's own
    items: int | None = None  # at most this many images of each part, for a quick look

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.rows:
            if name not in ROWS:
                raise ValueError(f"there is no row {name!r} in Table 2: choose from {', '.join(ROWS)}.")
        if not self.rows or min(self.models, self.epochs) < 1:
            raise ValueError("`rows` must name a row of Table 2, `models` and `epochs` must be at least 1.")
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise ValueError(f"`learning_rate={self.learning_rate:g}` must be above 0 and finite: 5e-4, say.")

    @property
    def seeds(self) -> tuple[int, ...]:
        """17, 18, ...: one for each model."""
        return tuple(range(SEEDS[0], SEEDS[0] + self.models))

    def identity(self) -> dict[str, Any]:
        return super().identity() | {"seeds": list(self.seeds)}

    def row(self, name: str) -> Row:
        """The row of this name, with what these settings change in it."""
        row = ROWS[name]
        return row if self.learning_rate is None else replace(row, learning_rate=self.learning_rate)

    def row_identity(self, name: str) -> dict[str, Any]:
        """What decides the numbers of one row."""
        return self.identity() | {"row": asdict(self.row(name))}


@contextmanager
def arithmetic(precision: str) -> Iterator[None]:
    """Products in TF32 or in full float32 on a GPU, and repeatable convolutions; restored afterwards."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic
    torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
    torch.backends.cudnn.allow_tf32 = precision != "float32"
    torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = before[1:]
