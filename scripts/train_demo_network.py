"""Train the embedded network on Fashion-MNIST's 60,000 training images, and on nothing else.

    python scripts/train_demo_network.py --data FOLDER [--out peppermill/demo]

FOLDER holds `train-images-idx3-ubyte.gz` and `train-labels-idx1-ubyte.gz` as published
(https://github.com/zalandoresearch/fashion-mnist). The script never opens the 10,000 test images, on which the demo
tunes and tests. It trains as the paper does (Adam, batches of 128, 15 epochs, the last one kept, no augmentation, no
weight decay): the training error ends far below the error on new images. Such networks are overconfident, and that is
what PEP is for.

One thread and one seed make the run repeatable: the same versions on the same kind of processor give the same weights
to the bit, other processors the same to rounding. About two minutes on one core. Beside the weights it writes
`training.json`: settings, versions, the loss of every epoch and the SHA-256 of what it wrote.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import platform
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from peppermill.demo import DemoNetwork

SETTINGS = {
    "seed": 17,  # the paper's first seed
    "epochs": 15,  # the paper's
    "batch_size": 128,  # the paper's
    "learning_rate": 1e-3,  # Adam's own default
    "adam_epsilon": 1e-7,  # Keras' default, which the paper used
}


def read_idx(path: Path) -> np.ndarray:
    """An idx file of unsigned bytes as an array of its own shape."""
    raw = gzip.decompress(path.read_bytes())
    dimensions = raw[3]
    shape = np.frombuffer(raw, ">i4", dimensions, offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def training_set(folder: Path) -> tuple[Tensor, Tensor]:
    images = read_idx(folder / "train-images-idx3-ubyte.gz")
    labels = read_idx(folder / "train-labels-idx1-ubyte.gz")
    return torch.from_numpy(images.astype(np.float32) / 255).unsqueeze(1), torch.from_numpy(labels.astype(np.int64))


def train(images: Tensor, labels: Tensor, settings: dict[str, float]) -> tuple[DemoNetwork, list[dict[str, float]]]:
    torch.manual_seed(int(settings["seed"]))
    network = DemoNetwork().train()
    optimizer = torch.optim.Adam(network.parameters(), lr=settings["learning_rate"], eps=settings["adam_epsilon"])
    epochs = []
    for epoch in range(int(settings["epochs"])):
        losses, mistakes = [], 0
        for chosen in torch.randperm(len(labels)).split(int(settings["batch_size"])):
            logits = network(images[chosen])
            loss = nn.functional.cross_entropy(logits, labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            mistakes += int((logits.argmax(1) != labels[chosen]).sum())
        epochs.append({"loss": float(np.mean(losses)), "error": mistakes / len(labels)})
        print(
            f"epoch {epoch + 1:2d}  training loss {epochs[-1]['loss']:.4f}  error {epochs[-1]['error']:.2%}", flush=True
        )
    return network.eval(), epochs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the two training files")
    parser.add_argument("--out", type=Path, default=Path("peppermill/demo"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    network, epochs = train(*training_set(arguments.data), SETTINGS)
    weights = arguments.out / "network.safetensors"
    save_file(network.state_dict(), weights)
    record = {
        "settings": SETTINGS,
        "epochs": epochs,
        "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "hardware": platform.processor() or platform.machine(),
    }
    (arguments.out / "training.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
