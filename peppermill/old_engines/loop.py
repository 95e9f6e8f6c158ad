"""The heart of PEP, and the engine that is always right: one member at a time, the network called with its weights.

Every other engine makes the same outputs in another way, and what is computed from them is computed here. The user's
network is read, never written: see `borrowed.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from peppermill.data import Batches, as_arguments
from peppermill.likelihood import Categorical, ensemble_log_likelihoods
from peppermill.old_engines.borrowed import Call, borrow
from peppermill.old_engines.compiled import compiled_predictions
from peppermill.old_engines.engine import Engine, Group
from peppermill.old_engines.kept import Kept
from peppermill.old_engines.kept import refuse_training_mode as refuse_training_mode
from peppermill.old_engines.members import Members, members_of
from peppermill.old_engines.memory import Room, in_parts
from peppermill.perturbation import Perturbation
from peppermill.types import Batch, Likelihood, Params, Tick

FEW = 16  # classes: as many numbers as a CPU takes at once
TALLIED_ITEMS = 1024  # of small batches, whose outputs are read together
TALLIED_NUMBERS = 2**20  # of several members' outputs, read together


@dataclass(frozen=True)
class MemberPass:
    """What one pass of all members over the data leaves behind: everything else is computed from it."""

    sigma: float
    member_log_likelihoods: Tensor  # ln L_i(theta_j), [m, N]
    averaged: Tensor  # the ensemble's prediction of eq. 9, [N, K]
    labels: Tensor  # [N]


class Loop:
    """One member after another; never more than one perturbed copy is alive, unless all of them fit and are kept."""

    name: ClassVar[str] = "loop"
    report = "loop"

    def __init__(self, precision: str | None = None, kept: Kept | None = None, room: Room | None = None) -> None:
        self.precision, self.kept, self.room = precision, kept or Kept(), room or Room()

    def __reduce__(self) -> Any:
        return type(self), (self.precision,)  # what is kept is not copied

    def groups(
        self, members: Members, args: Any, kwargs: Any, keep: bool = False, which: range | None = None
    ) -> Iterator[Group]:
        """All members, or those of a range."""
        store = self.kept.store(members)
        free = store.shells.setdefault(self.precision, [])
        call = free.pop() if free else borrow(members.model, self.precision, store.has_shell)
        for member in range(members.count) if which is None else which:
            params = store.member(members.sigma, member, keep and members.sigma != 0)
            yield partial(self._outputs, call, params)
            del params  # or two members would be alive while the next one is made
        free.append(call)  # all groups have been used: they are asked for one after another

    def _outputs(self, call: Call, params: Params, args: Any, kwargs: Any) -> Tensor:
        return in_parts(partial(call, params), args, kwargs, self.room).unsqueeze(0)


class OrLoop:
    """An engine with a way of its own, which runs in the loop what does not suit it, and says why."""

    name: ClassVar[str]

    def __init__(self, precision: str | None = None, kept: Kept | None = None, room: Room | None = None) -> None:
        self.precision, self.kept, self.room = precision, kept or Kept(), room or Room()
        self.loop, self.report = Loop(precision, self.kept, self.room), self.name

    def __reduce__(self) -> Any:
        return type(self), (self.precision,)  # what is kept is not copied

    def groups(self, members: Members, args: Any, kwargs: Any, keep: bool = False) -> Iterator[Group]:
        reason = self._unsuitable(members, args, kwargs, keep)
        self.report = f"loop, because {reason}" if reason else self.name
        return (self.loop.groups if reason else self._own_groups)(members, args, kwargs, keep)

    @abstractmethod
    def _unsuitable(self, members: Members, args: Any, kwargs: Any, keep: bool) -> str:
        """Why the members cannot run in this way, if so."""

    @abstractmethod
    def _own_groups(self, members: Members, args: Any, kwargs: Any, keep: bool) -> Iterator[Group]:
        """All members, in this way."""


@torch.no_grad()
def run_members(
    model: nn.Module,
    perturbation: Perturbation,
    sigma: float,
    data: Batches,
    likelihood: Likelihood,
    tick: Tick,
    engine: Engine | None = None,
) -> MemberPass:
    """All members at this sigma over all the data; in float64, so that no order of summing matters."""
    refuse_training_mode(model)
    engine, members = engine or Loop(), members_of(model, perturbation, sigma)
    parts = [_run_chunk(engine, members, chunk, likelihood, tick) for chunk in data.chunks()]
    matrices, averages, labels = zip(*parts, strict=True)
    matrix = torch.cat(matrices, dim=1)
    if not matrix.shape[1] and not data.is_share:
        raise ValueError(f"`{data.argument}` has no item that counts: every label is the ignored one.")
    return MemberPass(sigma, matrix.expand(perturbation.size, -1), torch.cat(averages), torch.cat(labels))


def member_predictions(members: Members, likelihood: Likelihood, args: Any, kwargs: Any, engine: Engine) -> Tensor:
    """Every member's prediction for one batch, [m, ...]; a single one where sigma is 0 and all are the same."""
    if torch.compiler.is_compiling():
        return compiled_predictions(members, likelihood, args, kwargs, engine)
    found = []
    for group in engine.groups(members, args, kwargs, keep=True):
        found.append(group(args, kwargs))
        del group  # as above
    outputs = found[0] if len(found) == 1 else torch.cat(found)
    if _has_few_classes(likelihood, outputs):
        return likelihood.predict(outputs.mT.contiguous())  # as [m, K, batch], which is [B, K, ...]
    beside = outputs.stride(0) < outputs.stride(1)  # members lie beside one another in memory, and stay there
    flat = outputs.transpose(0, 1).flatten(0, 1) if beside else outputs.flatten(0, 1)
    predictions = likelihood.predict(flat)
    if beside:
        return predictions.unflatten(0, (outputs.shape[1], -1)).transpose(0, 1)  # type: ignore[no-untyped-call,no-any-return]
    return predictions.unflatten(0, outputs.shape[:2])  # type: ignore[no-untyped-call,no-any-return]


def _has_few_classes(likelihood: Likelihood, outputs: Tensor) -> bool:
    """Whether a CPU is faster with many items at once than with the classes of one."""
    few = outputs.is_cpu and outputs.ndim == 3 and outputs.shape[0] > 1 and outputs.shape[2] < FEW
    return few and isinstance(likelihood, Categorical) and likelihood.class_dimension == 1


def averaged(likelihood: Likelihood, predictions: Tensor) -> Tensor:
    """Eq. 9 for one batch, from the members' predictions [m, ...]."""
    if likelihood.name != "gaussian":
        beside = predictions.ndim == 3 and predictions.stride(2) != 1  # items lie side by side, and not their classes
        if beside:
            return ensemble_log_likelihoods(predictions.mT).mT.contiguous()
        return ensemble_log_likelihoods(predictions)
    total = None
    for prediction in predictions:
        total = likelihood.accumulate(total, prediction)
    assert total is not None
    return likelihood.average(total, len(predictions))


def _run_chunk(
    engine: Engine, members: Members, chunk: list[Batch], likelihood: Likelihood, tick: Tick
) -> tuple[Tensor, Tensor, Tensor]:
    """Members outside, data inside: ln L_i [m, n], averaged predictions [n, K] and labels [n] of one chunk."""
    tallies = [_Tally(batches, likelihood, refuse_non_finite=members.sigma == 0) for batches in _runs(chunk)]
    for group in engine.groups(members, *as_arguments(chunk[0][0])):
        for tally in tallies:
            tally.add(tally.outputs(group, tick))
        del group  # as above
    rows, averages, counted = zip(*(tally.result() for tally in tallies), strict=True)
    return torch.cat(rows, dim=1), torch.cat(averages), torch.cat(counted)


def _runs(chunk: list[Batch]) -> Iterator[list[Batch]]:
    """Small batches with a label for each input, in a row: their outputs are read together, or calls cost the most."""
    run, count = [chunk[0]], len(chunk[0][1])
    for batch in chunk[1:]:
        count += len(batch[1])
        if count > TALLIED_ITEMS or not run[-1][1].ndim == batch[1].ndim == 1:
            yield run
            run, count = [], len(batch[1])
        run.append(batch)
    yield run


class _Tally:
    """What the members said so far about a few batches; in float64."""

    def __init__(self, batches: list[Batch], likelihood: Likelihood, refuse_non_finite: bool) -> None:
        self.batches, self.likelihood, self.refuse_non_finite = batches, likelihood, refuse_non_finite
        self.given = torch.cat([labels for _, labels in batches])
        self.rows: list[Tensor] = []
        self.total: Tensor | None = None

    def outputs(self, group: Group, tick: Tick) -> Tensor:
        """Of some members, [group, ...]."""
        found = []
        for inputs, labels in self.batches:
            found.append(group(*as_arguments(inputs)))
            if not self.rows:
                self.likelihood.check(found[-1][0], labels)
            tick(len(found[-1]) * len(labels))
        return found[0] if len(found) == 1 else torch.cat(found, dim=1)

    def add(self, outputs: Tensor) -> None:
        """Outputs [group, ...]: the items of several members in a row, as long as these are few numbers."""
        for some in torch.split(outputs, max(1, TALLIED_NUMBERS // max(1, outputs[0].numel()))):
            predictions, labels = self._items(some)
            count, rows = len(labels) // len(some), self.likelihood.log_likelihoods(predictions, labels)
            self.labels = labels[:count]
            self.rows.append(rows.reshape(len(some), count))
            for one in predictions.reshape(len(some), count, *predictions.shape[1:]):
                self.total = self.likelihood.accumulate(self.total, one)

    def _items(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Predictions and labels of the items that count, one member's behind the other's."""
        labels = self.given.repeat(len(outputs), *[1] * (self.given.ndim - 1))
        predictions, labels = self.likelihood.items(self.likelihood.predict(outputs.flatten(0, 1)), labels)
        predictions = predictions.to(_widest(predictions.device))
        if self.refuse_non_finite:
            _refuse_non_finite(predictions)
        return predictions, labels

    def result(self) -> tuple[Tensor, Tensor, Tensor]:
        """ln L_i(theta_j) [m, n], the averaged predictions [n, K] and the labels [n] of the items that count."""
        assert self.total is not None
        rows = torch.cat(self.rows)
        return rows, self.likelihood.average(self.total, len(rows)), self.labels


def _refuse_non_finite(predictions: Tensor) -> None:
    if not bool(predictions.isfinite().all()):
        raise ValueError(
            "the network itself, without any noise, gives outputs that are NaN or infinite on these data: check its "
            "weights and the inputs before calibrating it."
        )


def _widest(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64
