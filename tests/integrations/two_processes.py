"""Trains the module of training.py in two processes: `python two_processes.py FOLDER`, with tests/ in PYTHONPATH."""

import sys
from pathlib import Path

import conftest  # noqa: F401  (torchvision's operators)
import lightning.pytorch
import torch
from training import Module, loader, trainer

import peppermill as pm


class Report(lightning.pytorch.Callback):
    """What each process holds at the end."""

    def __init__(self, callback, folder):
        self.callback, self.folder = callback, folder

    def on_train_end(self, trainer, pl_module):
        pep = self.callback.pep
        (self.folder / f"found-{trainer.global_rank}").write_text(f"{pep.search.items} {pep.sigma!r}")
        if trainer.is_global_zero:
            torch.save(pl_module.state_dict(), self.folder / "weights.pt")


if __name__ == "__main__":
    torch.manual_seed(0)
    folder = Path(sys.argv[1])
    callback = pm.PepCallback(size=2, temperature=False, path=folder / "pep.json")
    report = Report(callback, folder)
    found = trainer(callback, folder, devices=2, strategy="ddp_fork", max_epochs=20, callbacks=[callback, report])
    found.fit(Module(), loader(), loader(seed=2))
