"""Train the demo's architecture until it overfits, and keep every epoch: what `peppermill probe` looks at.

    python scripts/train_checkpoints.py --out checkpoints

Everything comes from the embedded data: 2,000 of the test half to train on, 1,000 others to test on, 1,000 of the
validation half to find sigma. Two seeds, ten epochs each; about a minute. `training`, `validation` and `test` are
factories for the command line, as in `--train python:scripts.train_checkpoints:training`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import peppermill.demo

SEEDS, EPOCHS, BATCH, RATE = (0, 1), 10, 64, 1e-3


def training() -> tuple[Tensor, Tensor]:
    images, labels = peppermill.demo.test()
    return images[:2000], labels[:2000]


def test() -> tuple[Tensor, Tensor]:
    images, labels = peppermill.demo.test()
    return images[2000:3000], labels[2000:3000]


def validation() -> tuple[Tensor, Tensor]:
    images, labels = peppermill.demo.validation()
    return images[:1000], labels[:1000]


def train(seed: int, out: Path) -> None:
    torch.manual_seed(seed)
    model, (images, labels) = peppermill.demo.DemoNetwork(), training()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for epoch in range(1, EPOCHS + 1):
        for chosen in torch.randperm(len(labels)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
        save_file(model.state_dict(), out / f"seed-{seed}-epoch-{epoch:02d}.safetensors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("checkpoints"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for seed in SEEDS:
        train(seed, out)
    print(f"wrote {len(SEEDS) * EPOCHS} checkpoints into {out}")


if __name__ == "__main__":
    main()
