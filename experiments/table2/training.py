"""Train one network for each seed. On a GPU a step is one CUDA graph, and the networks run on parallel streams.

Everything random is a function of (seed, epoch): the initial kernels, the order of the items, the dropout masks. A
network therefore does not depend on the networks that are trained beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from experiments.table2.small_networks import SeededDropout, initialize

BATCH = 128  # the authors' scripts
ADAM_EPSILON = 1e-7  # Keras' default (the authors' scripts)
STREAMS = 8  # networks at work at the same time on a GPU
WARMUP_STEPS = 3  # before a graph is captured, as torch asks

State = dict[str, Tensor]


@dataclass(frozen=True)
class Schedule:
    """The learning rate of each epoch, and the epochs (1, 2, ...) whose final weights are kept; the last always is."""

    learning_rates: tuple[float, ...]
    momentum: float | None = None  # of SGD; Adam without it
    keep: tuple[int, ...] = ()

    @property
    def epochs(self) -> int:
        return len(self.learning_rates)


@dataclass(frozen=True)
class Trained:
    """The weights of one network after each epoch that is kept, and the mean training loss of every epoch."""

    states: dict[int, State]
    losses: list[float]


class Training:
    """One network in training: its weights, its optimizer and its step."""

    def __init__(self, network: nn.Sequential, images: Tensor, labels: Tensor, seed: int, schedule: Schedule) -> None:
        device = images.device
        self.images, self.labels, self.seed, self.schedule = images, labels, seed, schedule
        self.network = initialize(network, seed).to(device, memory_format=torch.channels_last).train()
        self.generator = Generator(device)
        for layer in self.network.modules():
            if isinstance(layer, SeededDropout):
                layer.generator = self.generator
        rate = torch.tensor(schedule.learning_rates[0], device=device)  # a tensor, which a graph reads at every step
        options: dict[str, Any] = {"lr": rate, "fused": True}
        if schedule.momentum is None:
            options |= {"eps": ADAM_EPSILON, "capturable": images.is_cuda}
            self.optimizer: torch.optim.Optimizer = torch.optim.Adam(self.network.parameters(), **options)
        else:
            self.optimizer = torch.optim.SGD(self.network.parameters(), momentum=schedule.momentum, **options)
        self.rate: Tensor = self.optimizer.param_groups[0]["lr"]
        self.order = torch.zeros(len(labels), dtype=torch.long, device=device)
        self.offsets = torch.arange(BATCH, device=device)
        self.place = torch.zeros((), dtype=torch.long, device=device)  # of the next item in `order`
        self.total = torch.zeros((), dtype=torch.float64, device=device)  # of the losses in this epoch

    def begin_epoch(self, epoch: int) -> None:
        """A new order of the items and new dropout masks, from the seed and the epoch."""
        order = torch.randperm(len(self.labels), generator=Generator().manual_seed(mixed(self.seed, epoch, 1)))
        self.generator.manual_seed(mixed(self.seed, epoch, 2))
        self.order.copy_(order)
        self.rate.fill_(self.schedule.learning_rates[epoch])
        self.place.zero_()
        self.total.zero_()

    def step(self, count: int = BATCH) -> None:
        """One step on the next `count` items. Nothing here waits for a GPU, so that a graph can hold it."""
        items = self.order[self.place + self.offsets[:count]]
        loss = F.cross_entropy(self.network(self.images[items]), self.labels[items])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.place += count
        self.total += count * loss.detach()

    def capture(self) -> torch.cuda.CUDAGraph:
        """The step as a CUDA graph of the current stream, with the network and its optimizer as they were before."""
        before = {name: value.clone() for name, value in self.network.state_dict().items()}
        for _ in range(WARMUP_STEPS):
            self.place.zero_()
            self.step(min(BATCH, len(self.labels)))
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            self.step()
        self.network.load_state_dict(before)
        for moments in self.optimizer.state.values():
            for value in moments.values():
                if isinstance(value, Tensor):
                    value.zero_()
        return graph


def train(
    build: Callable[[], nn.Sequential],
    images: Tensor,
    labels: Tensor,
    seeds: Sequence[int],
    schedule: Schedule,
    say: Callable[[str], None] = lambda text: None,
) -> list[Trained]:
    """Train one network for each seed on the same items, all of them together."""
    runs = [Training(build(), images, labels, seed, schedule) for seed in seeds]
    steps: list[Callable[[], None]] = [run.step for run in runs]
    places: list[Any] = [nullcontext() for _ in runs]
    if images.is_cuda:
        torch.cuda.synchronize()
        streams = [torch.cuda.Stream() for _ in range(STREAMS)]
        # a network is captured and replayed on one stream: the workspace of its products belongs to that stream
        places = [torch.cuda.stream(streams[k % STREAMS]) for k in range(len(runs))]
        for k, run in enumerate(runs):
            with places[k]:
                steps[k] = run.capture().replay
    found = [Trained({}, []) for _ in runs]
    whole, rest = divmod(len(labels), BATCH)
    for epoch in range(schedule.epochs):
        began = time.monotonic()
        for run, place in zip(runs, places, strict=True):
            with place:
                run.begin_epoch(epoch)
        for _ in range(whole):
            for step, place in zip(steps, places, strict=True):
                with place:
                    step()
        for run, place in zip(runs if rest else (), places, strict=False):
            with place:
                run.step(rest)
        if images.is_cuda:
            torch.cuda.synchronize()
        for run, one in zip(runs, found, strict=True):
            one.losses.append(float(run.total) / len(labels))
            if epoch + 1 in (*schedule.keep, schedule.epochs):
                one.states[epoch + 1] = {name: value.clone() for name, value in run.network.state_dict().items()}
        mean = sum(one.losses[-1] for one in found) / len(found)
        say(f"epoch {epoch + 1:2d}  training loss {mean:.4f}  {time.monotonic() - began:.1f} s")
    return found


def mixed(seed: int, epoch: int, purpose: int) -> int:
    """A seed for one epoch and one purpose; far apart for neighbours, as generators need."""
    number = (seed * 1_000_003 + epoch) * 8 + purpose
    return (number * 0x9E3779B97F4A7C15) % 2**63
