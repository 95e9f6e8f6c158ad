"""Pictures made on the spot, and items of files read as one batch."""

from pathlib import Path

import numpy as np
from PIL import Image

from peppermill.data import Batches


def picture(seed=0, height=12, width=16):
    """Noise in three colours, the same for the same seed."""
    return Image.fromarray(np.random.RandomState(seed).randint(0, 256, (height, width, 3)).astype(np.uint8))


def folder_of(path: Path, classes: dict[str, int], **shape) -> Path:
    """One sub-folder for each class, with that many pictures (PNG, so that a pixel stays what it was)."""
    for k, (name, count) in enumerate(classes.items()):
        (path / name).mkdir(parents=True)
        for number in range(count):
            picture(100 * k + number, **shape).save(path / name / f"{number}.png")
    return path


def read(items):
    """All items, or those that can be read if the others may be left out, as one batch."""
    [batch] = Batches(items.readable(), batch_size=1000)
    return batch
