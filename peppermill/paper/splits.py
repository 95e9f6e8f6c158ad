"""Which images tune and which test: the paper's split, and random ones; no image is ever in both."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Places of the images that tune sigma and T, and of those that test; the seed of a random split."""

    tuning: Tensor
    test: Tensor
    seed: int | None = None

    def record(self) -> dict[str, object]:
        """How the split was made, and a digest of its tuning images by which another machine can check it."""
        digest = hashlib.sha256(",".join(map(str, self.tuning.tolist())).encode()).hexdigest()[:16]
        made = "the first images tune" if self.seed is None else f"numpy's default_rng({self.seed}).permutation"
        return {"made": made, "seed": self.seed, "tuning": len(self.tuning), "test": len(self.test), "digest": digest}


def splits_of(items: int, tuning: int, count: int) -> list[Split]:
    """The paper's split, the first `tuning` images against the others; then random splits with the seeds 1, 2, ..."""
    if not 0 < tuning < items:
        raise ValueError(
            f"`tuning={tuning}` must leave images to tune on and to test on, and there are {items:,} in all: the "
            "paper took a tenth; with few images a fifth is a good choice."
        )
    if count < 1:
        raise ValueError(f"`splits={count}` must be at least 1.")
    return [_split(items, tuning, seed) for seed in range(count)]


def _split(items: int, tuning: int, seed: int) -> Split:
    order = np.random.default_rng(seed).permutation(items) if seed else np.arange(items)
    first, rest = (torch.from_numpy(np.sort(part)) for part in (order[:tuning], order[tuning:]))
    return Split(first, rest, seed or None)
