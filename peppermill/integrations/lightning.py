"""A Lightning callback: when training ends, sigma and T are found on the validation data of the trainer.

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

from peppermill import metrics
from peppermill.data import Batches, map_tensors
from peppermill.ensemble import PepEnsemble
from peppermill.fitting import fit
from peppermill.plumbing.files import refuse_unwritable
from peppermill.plumbing.optional import importing
from peppermill.predictions import Predictions, predict
from peppermill.types import PepWarning

SPLIT_WEIGHTS = ("FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy")


def _callback_class() -> Any:
    """Of the package that is in use already, else of the one that is installed."""
    failures = []
    for package in sorted(("lightning.pytorch", "pytorch_lightning"), key=lambda name: name not in sys.modules):
        try:
            with importing("PepCallback needs Lightning", package.partition(".")[0], "lightning"):
                return import_module(package).Callback
        except ImportError as error:
            failures.append(error)
    raise max(failures, key=lambda error: not isinstance(error.__cause__, ModuleNotFoundError))  # a broken one first


class PepCallback(_callback_class()):  # type: ignore[misc]
    """At the end of `trainer.fit`, fit PEP on the trainer's validation data: then `callback.pep` is the ensemble.

    It runs once and not after every validation, because it costs about fifteen passes of m members and only the last
    weights are used. For those of another checkpoint: `trainer.validate(module, ckpt_path="best")`, after which the
    ensemble is one of that checkpoint. The LightningModule is as before, in the mode in which it was.

    - `network`: the name of the part of the module that is the network, as in "net"; by default the module itself,
      whose `forward` gives logits.
    - `path`: where the ensemble is saved; by default pep.json beside the checkpoints.
    - `dataloader`: the number of one of several validation loaders; by default all of them, one after another.
    - `batch`: makes (inputs, labels) of what a loader gives, where that is something else.
    - `temperature` and all others: as in `pm.fit`.

    `callback.metrics`, which go to the loggers too: sigma, temperature, and the NLL and ECE on the validation data
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
        known = list(signature(fit).parameters)[2:]
        for name in options.keys() - known:
            raise TypeError(f"`{name}` is no option of PepCallback or `pm.fit`: choose among {', '.join(known)}.")
        self.network, self.path, self.dataloader, self.batch = network, path, dataloader, batch
        self.options = {"temperature": temperature, **options}
        self.pep: PepEnsemble | None = None
        self.metrics: dict[str, float] = {}

    def on_fit_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """What would fail after the training fails before it."""
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
        """A rehearsal on two items, so that data or options which do not fit are known before the training."""
        with _at_rest(pl_module), warnings.catch_warnings():
            warnings.simplefilter("ignore", PepWarning)
            network = self._part(pl_module)
            inputs, labels = next(iter(self._data(trainer, network)))
            two = map_tensors(lambda tensor: tensor[:2], inputs), labels[:2]
            fit(network, two, **{**self.options, "iterations": 1})

    def on_train_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Here, because at `on_fit_end` the module has left its device."""
        self._tune(trainer, pl_module)

    def on_validation_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Only where the user asked for a validation, and not within the training."""
        if trainer.state.fn == "validate":
            self._tune(trainer, pl_module)

    def _tune(self, trainer: Any, pl_module: nn.Module) -> None:
        network = self._part(pl_module)
        with _at_rest(pl_module):
            data = self._data(trainer, network)
            recipe = trainer.strategy.broadcast(fit(network, data, **self.options).recipe)  # the same in all processes
            self.pep = PepEnsemble(network, recipe)
            before, after = predict(network, data, likelihood=recipe.likelihood), self.pep.predict_items(data)
        self.metrics = {"pep/sigma": recipe.sigma, "pep/temperature": recipe.temperature}
        self.metrics |= _scores(before, "_before") | _scores(after, "")
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
                f"`network={self.network!r}` is no part of this {type(pl_module).__name__}: it has {parts}."
            ) from error

    def _data(self, trainer: Any, network: nn.Module) -> Batches:
        found = trainer.val_dataloaders
        loaders = list(found.values() if isinstance(found, Mapping) else found if isinstance(found, list) else [found])
        limited = list(zip(loaders, trainer.num_val_batches, strict=True))
        if self.dataloader is not None:
            if not 0 <= self.dataloader < len(limited):
                raise ValueError(
                    f"`dataloader={self.dataloader}` must be one of the {len(limited)} loaders, from 0 on."
                )
            limited = [limited[self.dataloader]]
        return Batches(_Loaders([_whole(*one) for one in limited], self.batch), network, argument="val_dataloaders")

    def _path(self, trainer: Any) -> Path:
        folder = getattr(trainer.checkpoint_callback, "dirpath", None) or trainer.default_root_dir
        if trainer.state.fn == "validate" and trainer.ckpt_path:
            folder = Path(trainer.ckpt_path).parent
        if self.path is None and "://" in str(folder):
            raise ValueError(f"the ensemble cannot be saved beside the checkpoints in {folder}: give a local `path`.")
        return Path(folder, "pep.json") if self.path is None else Path(self.path)


@dataclass(frozen=True)
class _Loaders:
    """Loaders, one after another, each up to its limit; the same in every pass if they are."""

    limited: list[tuple[Any, int | None]]
    batch: Callable[[Any], tuple[Any, Any]] | None

    def __iter__(self) -> Iterator[Any]:
        for loader, limit in self.limited:
            yield from map(self.batch, islice(loader, limit)) if self.batch else islice(loader, limit)


def _whole(loader: Any, limit: float) -> tuple[Any, int | None]:
    """The loader and its limit, over all items where Lightning has given each process a part of them."""
    if isinstance(loader, DataLoader) and isinstance(loader.sampler, DistributedSampler):
        limit *= loader.sampler.num_replicas
        loader = DataLoader(
            loader.dataset,
            batch_size=loader.batch_size,
            collate_fn=loader.collate_fn,
            num_workers=loader.num_workers,
        )
    return loader, None if limit == float("inf") else int(limit)


@contextmanager
def _at_rest(module: nn.Module) -> Iterator[None]:
    """In evaluation mode; afterwards each part in the mode it had, and the global generator where it was."""
    modes = {part: part.training for part in module.modules()}
    try:
        with torch.random.fork_rng(devices=[]):
            module.eval()
            yield
    finally:
        for part, training in modes.items():
            part.training = training


def _scores(found: Predictions, when: str) -> dict[str, float]:
    scores = {f"pep/nll{when}": float(-found.log_likelihoods.mean())}
    if found.likelihood.name != "gaussian":
        scores[f"pep/ece{when}"] = metrics.expected_calibration_error(found.log_probs, found.labels)
    return scores
