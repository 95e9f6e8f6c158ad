"""A small LightningModule, data for it and trainers, for the tests of this folder and the processes they start."""

import lightning.pytorch
import networks
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

QUIET = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "logger": False}


def module_class(package):
    class Module(package.LightningModule):
        """A network with dropout and batch norm, so that a change of mode or of statistics would be noticed."""

        def __init__(self, learning_rate=0.05):
            super().__init__()
            self.net = networks.seeded(
                lambda: nn.Sequential(
                    nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3)
                )
            ).train()
            self.learning_rate = learning_rate

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch):
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            self.log("val_loss", nn.functional.cross_entropy(self(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=self.learning_rate)

    return Module


Module = module_class(lightning.pytorch)


def loader(count=60, seed=1, batch_size=16, shuffle=False):
    inputs, labels = networks.items(count, seed=seed)
    labels = torch.where(inputs[:, 0] > 0.3, 0, labels)  # something to learn, and much that cannot be
    return DataLoader(TensorDataset(inputs, labels), batch_size=batch_size, shuffle=shuffle)


def trainer(callback, folder, package=lightning.pytorch, **options):
    return package.Trainer(**{**QUIET, "default_root_dir": folder, "max_epochs": 8, "callbacks": [callback], **options})


def together(data):
    inputs, labels = zip(*data, strict=True)
    return torch.cat(inputs), torch.cat(labels)
