"""All seeds of a row trained together: Adam on stacked networks, and on a GPU each step as one CUDA graph.

Everything random is a function of (seed, epoch) alone: the initial kernels, the order of the items, the dropout masks.
A network therefore does not depend on its neighbours, and a run that was killed continues from the last epoch as if
nothing had happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from peppermill.paper.checkpoint import read_checkpoint, write_checkpoint
from peppermill.paper.masks import Dropped, mixed
from peppermill.paper.stacked import State, forward, stack

BATCH = 128  # the authors' scripts
ADAM_EPSILON = 1e-7  # Keras' default (the authors' scripts)
PATIENCE = 60.0  # seconds between two checkpoints

#: Called after each epoch with its number (1, 2, ...) and the state of the networks.
Watch = Callable[[int, State], None]


@dataclass(frozen=True)
class Machine:
    """Where and how to compute; nothing here changes what is computed beyond rounding."""

    device: str = "cpu"
    graphs: bool = True  # on a GPU: each step as one CUDA graph
    unfold: bool = False  # convolutions as batched products of patches instead of grouped kernels
    precision: str = "tf32"  # "float32", "tf32" or "bfloat16"; the CPU computes in float32 unless it is "bfloat16"

    def __post_init__(self) -> None:
        if self.precision not in ("float32", "tf32", "bfloat16"):
            raise ValueError(f"`precision={self.precision!r}` must be float32, tf32 or bfloat16.")


@dataclass(frozen=True)
class Schedule:
    """The learning rate of each epoch, the size of a batch, and Adam, or SGD where it has a momentum."""

    learning_rates: tuple[float, ...]
    batch_size: int = BATCH
    momentum: float | None = None

    @property
    def epochs(self) -> int:
        return len(self.learning_rates)


@dataclass(frozen=True)
class Trained:
    """The state of S networks after the last epoch, the mean training loss of every epoch, [epochs, S], and the average
    of the states after the epochs that were to be averaged."""

    state: State
    losses: Tensor
    average: State


def train_together(
    network: nn.Sequential,
    images: Tensor,
    labels: Tensor,
    seeds: Sequence[int],
    schedule: Schedule,
    machine: Machine,
    *,
    averaged: Sequence[int] = (),
    checkpoint: Path | None = None,
    beginning: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    watch: Watch | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Trained:
    """Train one network for each seed on the same items; average the weights after the epochs `averaged` (1, 2, ...).

    With `checkpoint`, what was trained is kept there and taken up again, provided that the settings agree; `watch` then
    sees the epochs of this run only. `beginning` is the checkpoint of another run whose epochs are the first of ours.
    """
    identity = _identity(seeds, schedule, averaged, len(labels), settings)
    found = read_checkpoint(checkpoint, identity, machine.device) if checkpoint else None
    if beginning and not found:
        found = _read_beginning(beginning, seeds, schedule, averaged, len(labels), settings, machine.device)
    if found and found[1]["epoch"] == schedule.epochs:
        return Trained(_part("state", found[0]), found[0]["losses"].cpu(), _part("mean", found[0]))
    with precision(machine):
        trainer = Trainer(network, images, labels, seeds, schedule, machine)
        done, losses = trainer.load(found) if found else (0, torch.empty(0, len(seeds)))
        mean = _part("mean", found[0]) if found else {}
        saved = time.monotonic()
        for epoch in range(done, schedule.epochs):
            began = time.monotonic()
            losses = torch.cat([losses, trainer.epoch(epoch)[None]])
            said = f"epoch {epoch + 1:2d}  training loss {float(losses[-1].mean()):.4f}"
            say(f"{said}  {time.monotonic() - began:.1f} s")
            if watch:
                watch(epoch + 1, trainer.state)
            if epoch + 1 in averaged:
                mean = _averaged(mean, trainer.state, sum(number <= epoch + 1 for number in averaged))
            if checkpoint and (epoch + 1 == schedule.epochs or time.monotonic() - saved > PATIENCE):
                write_checkpoint(checkpoint, trainer.tensors(losses, mean), identity, epoch=epoch + 1)
                saved = time.monotonic()
    return Trained({name: value.detach().clone() for name, value in trainer.state.items()}, losses, mean)


def _identity(
    seeds: Sequence[int], schedule: Schedule, averaged: Sequence[int], items: int, settings: Mapping[str, Any] | None
) -> dict[str, Any]:
    return {
        "seeds": list(seeds),
        "learning_rates": list(schedule.learning_rates),
        "batch_size": schedule.batch_size,
        "momentum": schedule.momentum,
        "items": items,
        "averaged": list(averaged),
        **(settings or {}),
    }


def _read_beginning(
    path: Path,
    seeds: Sequence[int],
    schedule: Schedule,
    averaged: Sequence[int],
    items: int,
    settings: Mapping[str, Any] | None,
    device: str,
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The checkpoint of a finished run of fewer epochs, if its learning rates are the first of ours."""
    for epochs in range(schedule.epochs - 1, 0, -1):
        shorter = replace(schedule, learning_rates=schedule.learning_rates[:epochs])
        found = read_checkpoint(path, _identity(seeds, shorter, (), items, settings), device)
        if found and found[1]["epoch"] == epochs and min(averaged, default=epochs + 1) > epochs:
            return found
    return None


def eager_epoch(
    network: nn.Sequential, images: Tensor, labels: Tensor, seed: int, learning_rate: float, steps: int, device: str
) -> float:
    """Seconds that the usual loop takes for so many steps of one network: what training together is compared with."""
    from peppermill.paper.networks import initialize

    model = initialize(network, seed).to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate, eps=ADAM_EPSILON)
    order = torch.randperm(len(labels), generator=Generator().manual_seed(seed)).to(device)
    began = 0.0
    for step in range(-3, steps):  # three steps to warm up
        if step == 0:
            synchronize(device)
            began = time.perf_counter()
        first = (max(step, 0) * BATCH) % (len(order) - BATCH + 1)
        chosen = order[first : first + BATCH]
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(images[chosen]), labels[chosen]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    synchronize(device)
    return time.perf_counter() - began


def synchronize(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def precision(machine: Machine) -> Iterator[None]:
    """The arithmetic of matrix products and convolutions, put back afterwards."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic
    torch.set_float32_matmul_precision("highest" if machine.precision == "float32" else "high")
    torch.backends.cudnn.allow_tf32 = machine.precision != "float32"
    torch.backends.cudnn.deterministic = True  # a run that was killed ends with the same table
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
        torch.backends.cudnn.deterministic = before[2]


class Trainer:
    """S networks, their Adam and their step."""

    def __init__(
        self,
        network: nn.Sequential,
        images: Tensor,
        labels: Tensor,
        seeds: Sequence[int],
        schedule: Schedule,
        machine: Machine,
    ) -> None:
        self.network, self.seeds, self.schedule, self.machine = network, seeds, schedule, machine
        self.images, self.labels = images.to(machine.device), labels.to(machine.device)
        self.state = stack(network, seeds, machine.device)
        names = [name for name, _ in network.named_parameters()]
        self.params = {name: self.state[name].requires_grad_() for name in names}
        on_gpu = torch.device(machine.device).type == "cuda"
        self.graphs = machine.graphs and on_gpu
        self.rate = torch.tensor(schedule.learning_rates[0], device=machine.device)  # a graph reads it at every step
        self.optimizer = self._optimizer(list(self.params.values()))
        self.dropped = Dropped(seeds, machine.device) if _has_dropout(network) else None
        self.steps: dict[int, _Step] = {}
        self._prepare()
        self.begin(stack(network, seeds, machine.device))

    def begin(self, state: State) -> None:
        """Put the networks at this state, and Adam at its beginning."""
        with torch.no_grad():
            for name, value in self.state.items():
                value.copy_(state[name])
            for moments in self.optimizer.state.values():
                for value in moments.values():
                    value.zero_()

    def load(self, found: tuple[dict[str, Tensor], dict[str, Any]]) -> tuple[int, Tensor]:
        """Continue a checkpoint: the number of epochs done and their losses."""
        tensors, more = found
        self.begin({name: tensors[f"state.{name}"] for name in self.state})
        with torch.no_grad():
            for name, parameter in self.params.items():
                for part, value in self.optimizer.state[parameter].items():
                    value.copy_(tensors[f"adam.{part}.{name}"])
        return int(more["epoch"]), tensors["losses"].cpu()

    def tensors(self, losses: Tensor, mean: State) -> dict[str, Tensor]:
        """Everything that a checkpoint needs."""
        adam = {
            f"adam.{part}.{name}": value
            for name, parameter in self.params.items()
            for part, value in self.optimizer.state[parameter].items()
        }
        kept = {f"state.{name}": value for name, value in self.state.items()} | adam
        return kept | {f"mean.{name}": value for name, value in mean.items()} | {"losses": losses}

    def epoch(self, epoch: int) -> Tensor:
        """Every item once, in each seed's own order; the mean loss, [S]."""
        orders = [
            torch.randperm(len(self.labels), generator=Generator().manual_seed(mixed(seed, epoch, 1)))
            for seed in self.seeds
        ]
        order = torch.stack(orders, dim=1).to(self.machine.device)
        self.rate.fill_(self.schedule.learning_rates[epoch])
        if self.dropped:
            self.dropped.restart(epoch)
        total = torch.zeros(len(self.seeds), dtype=torch.float64, device=self.machine.device)
        for chosen in torch.split(order, self.schedule.batch_size):
            total += self.run(chosen)
        return (total / len(self.labels)).float().cpu()

    def run(self, chosen: Tensor) -> Tensor:
        """One step on items [batch, S], with new masks, as a graph where there is one."""
        if self.dropped:
            self.dropped.refill(len(chosen))
        return self.steps[len(chosen)](chosen)

    def step(self, chosen: Tensor) -> Tensor:
        """One step on items [batch, S]: the summed loss of each network, [S]."""
        labels = self.labels[chosen].T
        with torch.autocast(
            self.images.device.type, torch.bfloat16, enabled=self.machine.precision == "bfloat16", cache_enabled=False
        ):
            logits = forward(
                self.network,
                self.state,
                self.images[chosen],
                training=True,
                masks=self.dropped,
                unfold=self.machine.unfold,
            )
        losses = F.cross_entropy(logits.float(), labels, reduction="none").sum(dim=1)
        params = list(self.params.values())
        gradients = torch.autograd.grad(losses.sum() / len(chosen), params)
        for parameter, gradient in zip(params, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        return losses.detach()

    def _optimizer(self, params: list[Tensor]) -> torch.optim.Adam | Sgd:
        if self.schedule.momentum is not None:
            return Sgd(params, self.rate, self.schedule.momentum)
        adam = torch.optim.Adam(params, lr=self.rate, eps=ADAM_EPSILON, fused=True, capturable=self.graphs)
        self.rate = adam.param_groups[0]["lr"]
        return adam

    def _prepare(self) -> None:
        """Learn the shapes of masks, give Adam its moments, and on a GPU capture the step for each size of batch."""
        items, full = len(self.labels), self.schedule.batch_size
        for size in dict.fromkeys(size for size in (min(full, items), items % full) if size):
            chosen = torch.zeros(size, len(self.seeds), dtype=torch.long, device=self.machine.device)
            if self.dropped:
                with torch.no_grad():
                    forward(self.network, self.state, self.images[chosen], masks=self.dropped)
                self.dropped.refill(size)
            self.steps[size] = _Step(self.step, chosen, self.graphs)


class Sgd:
    """Stochastic gradient descent with momentum, as plain sums that a CUDA graph can hold."""

    def __init__(self, params: list[Tensor], rate: Tensor, momentum: float) -> None:
        self.params, self.rate, self.momentum = params, rate, momentum
        self.state = {parameter: {"velocity": torch.zeros_like(parameter)} for parameter in params}

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.params:
            assert parameter.grad is not None
            velocity = self.state[parameter]["velocity"].mul_(self.momentum).add_(parameter.grad)
            parameter.sub_(velocity * self.rate)


class _Step:
    """A step as it is, or as a CUDA graph that reads the chosen items from one place."""

    def __init__(self, step: Callable[[Tensor], Tensor], chosen: Tensor, graphs: bool) -> None:
        self.step, self.chosen, self.graph = step, chosen, None
        if not graphs:
            self.step(chosen)  # Adam makes its moments at its first step; `begin` clears them
            return
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step(chosen)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.losses = step(chosen)

    def __call__(self, chosen: Tensor) -> Tensor:
        if self.graph is None:
            return self.step(chosen)
        self.chosen.copy_(chosen)
        self.graph.replay()
        return self.losses


def _averaged(mean: State, state: State, count: int) -> State:
    """The mean of `count` states, from the mean of those before and the last."""
    if not mean:
        return {name: value.detach().clone() for name, value in state.items()}
    return {name: mean[name] + (value.detach() - mean[name]) / count for name, value in state.items()}


def _part(prefix: str, tensors: Mapping[str, Tensor]) -> State:
    return {name[len(prefix) + 1 :]: value for name, value in tensors.items() if name.startswith(f"{prefix}.")}


def _has_dropout(network: nn.Sequential) -> bool:
    return any(isinstance(layer, nn.Dropout) for layer in network)
