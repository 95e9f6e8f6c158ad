"""A Lightning callback: when training ends, it calibrates the network on the validation data of the trainer.

Works with `lightning` and with `pytorch_lightning`, whose callbacks have the same hooks.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

import peppermill as pm
from peppermill.data import Batches
from peppermill.datasets.loaders import rebuild_loader
from peppermill.plumbing.files import refuse_unwritable
from peppermill.plumbing.nested import map_tensors
from peppermill.plumbing.optional import importing
from peppermill.race import fit_or_calibrate
from peppermill.tuning import OLD_KEYWORDS

SPLIT_WEIGHTS = ("FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy")


def _callback_class() -> Any:
    """`Callback` of the Lightning package that is already imported, else of the one that is installed."""
    failures = []
    for package in sorted(("lightning.pytorch", "pytorch_lightning"), key=lambda name: name not in sys.modules):
        try:
            with importing("PepCallback needs Lightning", package.partition(".")[0], "lightning"):
                return import_module(package).Callback
        except ImportError as error:
            failures.append(error)
    raise max(failures, key=lambda error: not isinstance(error.__cause__, ModuleNotFoundError))  # a broken one first


class PepCallback(_callback_class()):  # type: ignore[misc]
    """At the end of `trainer.fit`, calibrate on the trainer's validation data: then `callback.pep` is the ensemble.

    It runs once and not after every validation, because it costs a few hundred forward passes (`pep.race.spent`) and
    only the last weights are used. For the weights of another checkpoint call `trainer.validate(module,
    ckpt_path="best")`; the ensemble is then one of that checkpoint. The LightningModule and its mode are not changed.

    - `network`: the name of the part of the module that is the network, as in "net"; by default the module itself,
      whose `forward` gives logits.
    - `path`: where the ensemble is saved; by default pep.json beside the checkpoints.
    - `dataloader`: the number of one of several validation loaders; by default all of them, one after another.
    - `batch`: a function that makes (inputs, labels) from a batch of another form.
    - `options`: `size` is the most passes that a prediction may cost; `parameters`, `noise`, `likelihood`, `views`,
      `engine` are those of `pm.calibrate`, which chooses calibrator and members. Any other option is one of `pm.fit`,
      as is `temperature=False`, and takes the place of the race; with a temperature, one pass still wins unless the
      members are better by more than a standard error.

    `callback.metrics`, also sent to the loggers, holds sigma, temperature, and the NLL and ECE on the validation data
    before and after.
    """

    def __init__(
        self,
        *,
        network: str = "",
        path: str | Path | None = None,
        dataloader: int | None = None,
        batch: Callable[[Any], tuple[Any, Any]] | None = None,
        temperature: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        known = [one.name for one in signature(pm.fit).parameters.values() if one.kind is one.KEYWORD_ONLY]
        for name in options.keys() - {*known, *OLD_KEYWORDS}:
            raise TypeError(f"`{name}` is not an option of PepCallback or `pm.fit`: choose among {', '.join(known)}.")
        self.network, self.path, self.dataloader, self.batch = network, path, dataloader, batch
        self.options = {"temperature": temperature, **options}
        self.pep: pm.PepEnsemble | None = None
        self.metrics: dict[str, float] = {}

    def on_fit_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Fail before the training if something would fail after it."""
        if not trainer.enable_validation:
            raise ValueError(
                "PepCallback finds sigma on validation data, and this trainer has none: give `trainer.fit` a loader of "
                "them and the module a `validation_step`, and let `limit_val_batches` be above 0."
            )
        if type(trainer.strategy).__name__ in SPLIT_WEIGHTS:
            raise ValueError(
                f"{type(trainer.strategy).__name__} splits the weights between processes, and noise needs them whole: "
                "train without PepCallback, then load the checkpoint in one process and use `pm.fit`."
            )
        self._part(pl_module)
        refuse_unwritable(self._path(trainer))

    def on_sanity_check_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Try everything on two items, so that wrong data or options show before the training."""
        with _evaluating(pl_module), warnings.catch_warnings():
            warnings.simplefilter("ignore", pm.PepWarning)
            network = self._part(pl_module)
            two = map_tensors(lambda tensor: tensor[:2], next(iter(self._data(trainer, network))))
            fit_or_calibrate(network, two, **{**self.options, "search": pm.Golden(iterations=1)})

    def on_validation_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Fit PEP if the user asked for this validation; those within the training are ignored."""
        if trainer.state.fn == "validate":
            self.on_train_end(trainer, pl_module)

    def on_train_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Fit PEP; not in `on_fit_end`, because the module has left its device by then."""
        network = self._part(pl_module)
        with _evaluating(pl_module):
            data = self._data(trainer, network)
            recipe = fit_or_calibrate(network, data, **self.options).recipe
            recipe = trainer.strategy.broadcast(recipe)  # the same in every process
            self.pep = pm.PepEnsemble(network, recipe)
            before, after = pm.predict(network, data, likelihood=recipe.likelihood), self.pep.predict_items(data)
        self.metrics = {"pep/sigma": recipe.sigma, "pep/temperature": self.pep.temperature}
        for when, found in (("_before", before), ("", after)):
            self.metrics[f"pep/nll{when}"] = float(-found.log_likelihoods.mean())
            if recipe.likelihood.name != "gaussian":
                self.metrics[f"pep/ece{when}"] = pm.metrics.expected_calibration_error(found.log_probs, found.labels)
        if trainer.is_global_zero and not trainer.fast_dev_run:
            self.pep.save(self._path(trainer))
            for logger in trainer.loggers:
                logger.log_metrics(self.metrics, step=trainer.global_step)

    def _part(self, pl_module: nn.Module) -> nn.Module:
        try:
            return pl_module.get_submodule(self.network)
        except AttributeError as error:
            parts = ", ".join(name for name, _ in pl_module.named_children()) or "none"
            raise ValueError(
                f"`network={self.network!r}` is not a part of this {type(pl_module).__name__}: it has {parts}."
            ) from error

    def _data(self, trainer: Any, network: nn.Module) -> Batches:
        found = trainer.val_dataloaders
        loaders = list(found.values() if isinstance(found, Mapping) else found if isinstance(found, list) else [found])
        limited: list[tuple[Any, int | None]] = []
        for loader, limit in zip(loaders, trainer.num_val_batches, strict=True):
            if isinstance(loader, DataLoader) and isinstance(loader.sampler, DistributedSampler):
                limit *= loader.sampler.num_replicas  # all items, not the share that Lightning gave this process
                loader = rebuild_loader(loader, sampler=None)
            limited.append((loader, None if limit == float("inf") else int(limit)))
        if self.dataloader is not None:
            if not 0 <= self.dataloader < len(limited):
                raise ValueError(f"`dataloader={self.dataloader}` must be one of the {len(limited)} loaders, from 0.")
            limited = [limited[self.dataloader]]
        return Batches(_Loaders(limited, self.batch), network, argument="val_dataloaders")

    def _path(self, trainer: Any) -> Path:
        folder = getattr(trainer.checkpoint_callback, "dirpath", None) or trainer.default_root_dir
        if trainer.state.fn == "validate" and trainer.ckpt_path:
            folder = Path(trainer.ckpt_path).parent
        if self.path is None and "://" in str(folder):
            raise ValueError(f"the ensemble cannot be saved beside the checkpoints in {folder}: give a local `path`.")
        return Path(folder, "pep.json") if self.path is None else Path(self.path)


@dataclass(frozen=True)
class _Loaders:
    """Loaders, one after another, each up to its limit."""

    limited: list[tuple[Any, int | None]]
    batch: Callable[[Any], tuple[Any, Any]] | None

    def __iter__(self) -> Iterator[Any]:
        for loader, limit in self.limited:
            yield from map(self.batch, islice(loader, limit)) if self.batch else islice(loader, limit)


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Put the module into evaluation mode; restore the mode of each part and the global generator afterwards."""
    modes = {part: part.training for part in module.modules()}
    try:
        with torch.random.fork_rng(devices=[]):
            module.eval()
            yield
    finally:
        for part, training in modes.items():
            part.training = training
