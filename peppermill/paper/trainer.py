"""S networks, their optimizer and their step: on a GPU one CUDA graph for each size of batch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from peppermill.paper.machine import Machine
from peppermill.paper.masks import Dropped, mixed
from peppermill.paper.stacked import State, apply_layer, forward, stack

BATCH = 128  # the authors' scripts
ADAM_EPSILON = 1e-7  # Keras' default (the authors' scripts)


@dataclass(frozen=True)
class Schedule:
    """The learning rate of each epoch, the size of a batch, and Adam, or SGD where it has a momentum."""

    learning_rates: tuple[float, ...]
    batch_size: int = BATCH
    momentum: float | None = None

    @property
    def epochs(self) -> int:
        return len(self.learning_rates)


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
        self.compiles = machine.compiled and isinstance(network[0], nn.Conv2d)  # a few products are not worth it
        self.compiled = _compiled(network)
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
        losses, gradients = self._gradients(chosen)
        for parameter, gradient in zip(self.params.values(), gradients, strict=True):
            parameter.grad = gradient.contiguous()  # a convolution's may be channels last
        self.optimizer.step()
        return losses

    def _gradients(self, chosen: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """Summed losses [S] and the gradients of the mean losses."""
        half = self.machine.precision == "bfloat16"
        with torch.autocast(self.images.device.type, torch.bfloat16, enabled=half, cache_enabled=False):
            logits = self._logits(self._images(chosen))
        losses = F.cross_entropy(logits.float(), self.labels[chosen].T, reduction="none").sum(dim=1)
        return losses.detach(), torch.autograd.grad(losses.sum() / len(chosen), list(self.params.values()))

    def _images(self, chosen: Tensor) -> Tensor:
        """The images of items [batch, S]; those of one network lie together where they become vectors at once."""
        if isinstance(self.network[0], nn.Flatten):
            return self._rows(chosen.T).transpose(0, 1)
        return self._rows(chosen)

    def _rows(self, chosen: Tensor) -> Tensor:
        return self.images.index_select(0, chosen.flatten()).view(*chosen.shape, *self.images.shape[1:])

    def _logits(self, images: Tensor) -> Tensor:
        """Logits [S, classes, batch]; by compiled code for full batches, where it is wanted."""
        if self.compiles and len(images) == self.schedule.batch_size:
            return self.compiled(self.state, images, self.dropped.factors(len(images)) if self.dropped else None)
        return forward(self.network, self.state, images, training=True, masks=self.dropped)

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
                    forward(self.network, self.state, self._images(chosen), masks=self.dropped)
                self.dropped.refill(size)
            self.steps[size] = _Step(self.step, chosen, self.graphs)


class Sgd:
    """Stochastic gradient descent with momentum, as plain sums that a CUDA graph can hold."""

    def __init__(self, params: list[Tensor], rate: Tensor, momentum: float) -> None:
        self.params, self.rate, self.momentum = params, rate, momentum
        self.state: dict[Tensor, dict[str, Tensor]] = {  # without momentum the velocity is the gradient
            parameter: {"velocity": torch.zeros_like(parameter)} if momentum else {} for parameter in params
        }

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.params:
            assert parameter.grad is not None
            moving, velocity = self.state[parameter], parameter.grad
            if moving:
                velocity = moving["velocity"].mul_(self.momentum).add_(velocity)
            parameter.addcmul_(velocity, self.rate, value=-1)


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


def _compiled(network: nn.Sequential) -> Callable[[State, Tensor, dict[str, Tensor] | None], Tensor]:
    """A pass in training mode over batches of one size, compiled when it is first called.

    The output layer is left out: its size is another for other classes, and the rest need not be compiled again.
    """
    *hidden, (name, output) = network.named_children()
    body = nn.Sequential(OrderedDict(hidden))

    def run(state: State, images: Tensor, factors: dict[str, Tensor] | None) -> Tensor:
        masks = None if factors is None else lambda name, shape: factors[name]
        return forward(body, state, images, training=True, masks=masks)

    compiled = torch.compile(run, dynamic=False)

    def whole(state: State, images: Tensor, factors: dict[str, Tensor] | None) -> Tensor:
        parts = {key: value for key, value in state.items() if not key.startswith(f"{name}.")}
        return apply_layer(name, output, state, compiled(parts, images, factors))

    return whole


def _has_dropout(network: nn.Sequential) -> bool:
    return any(isinstance(layer, nn.Dropout) for layer in network)
