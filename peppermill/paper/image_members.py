"""PEP members of one pre-trained network over a set of images: each is run once at each sigma, kept, and shared.

Members come in groups of one sign: +epsilon_0 to +epsilon_4 are the paper's five while tuning and one half of ten
antithetic ones; +epsilon_5 to +epsilon_9 complete the paper's ten. A group keeps ln L_i(theta_j), from which L(sigma)
of any part of the images follows, and the sum of its members' probabilities. Twenty splits of the images into tuning
and test sets so cost little more than one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from peppermill.engines.joined import JoinedMember
from peppermill.engines.loop import MemberPass
from peppermill.foreign import functional_call
from peppermill.noise import Noise
from peppermill.paper.checkpoint import read_checkpoint, write_checkpoint
from peppermill.paper.machine import Machine, precision
from peppermill.parameters import select
from peppermill.perturbation import Perturbation
from peppermill.types import Params

PATIENCE = 5.0  # seconds of work that may be lost
RESIDENT = 2**32  # bytes of images that are brought to the device once and for all


@dataclass(frozen=True)
class Group:
    """The members sign * epsilon_j, first <= j < last."""

    sign: int
    first: int
    last: int

    def __str__(self) -> str:
        return f"{'+' if self.sign > 0 else '-'}{self.first}-{self.last}"

    def __len__(self) -> int:
        return self.last - self.first


def one_sided(tuning_size: int, size: int) -> tuple[Group, ...]:
    """`size` members with directions of their own; the first `tuning_size` of them are a group."""
    if size <= tuning_size:
        return (Group(1, 0, size),)
    return Group(1, 0, tuning_size), Group(1, tuning_size, size)


def in_pairs(size: int) -> tuple[Group, ...]:
    """`size` members +epsilon_j, -epsilon_j; of an odd number, one fewer."""
    pairs = max(1, size // 2)
    return Group(1, 0, pairs), Group(-1, 0, pairs)


@dataclass(frozen=True)
class LabelledPixels:
    """Images as bytes [N, 3, height, width], their classes, and how a batch becomes the network's input."""

    pixels: Tensor
    labels: Tensor
    prepare: Callable[[Tensor], Tensor]


@dataclass
class ImageMembers:
    """Passes of a network's members over all items of `data`, remembered here and in `folder`."""

    model: nn.Module
    data: LabelledPixels
    parameters: str
    seed: int
    machine: Machine
    folder: Path
    identity: Mapping[str, Any]
    batch_size: int = 50
    say: Callable[[str], None] = lambda text: None
    passes: int = 0  # of one member over all items, paid for by this object
    _saved: float = -math.inf
    _plans: dict[Any, Any] = field(default_factory=dict)
    _directions: dict[int, Params] = field(default_factory=dict)
    _known: dict[tuple[float, Group], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        device = self.machine.device
        self.model = self.model.to(device)
        if self.data.pixels.nbytes <= RESIDENT:
            self.data = LabelledPixels(self.data.pixels.to(device), self.data.labels, self.data.prepare)
        self.labels = self.data.labels.to(device)
        self.perturbation = Perturbation(
            select(self.model, self.parameters), Noise(antithetic=False, seed=self.seed), 1
        )

    def run(self, sigma: float, groups: Sequence[Group], items: Tensor | None = None) -> MemberPass:
        """The ensemble of these groups at sigma on the items, or on all."""
        sigma = float(f"{sigma:.9g}")  # the same point of a lattice, reached on two ways, differs in its last bits
        if sigma == 0:
            groups = (Group(1, 0, 1),)
        parts = [self._group(sigma, group) for group in groups]
        chosen = slice(None) if items is None else items.to(self.labels.device)
        matrix = torch.cat([rows[:, chosen] for rows, _ in parts])
        total = torch.stack([total[chosen].double() for _, total in parts]).logsumexp(dim=0)
        return MemberPass(sigma, matrix, total - math.log(len(matrix)), self.labels[chosen])

    def _group(self, sigma: float, group: Group) -> tuple[Tensor, Tensor]:
        if (sigma, group) not in self._known:
            self._known[sigma, group] = self._continued(sigma, group)
        return self._known[sigma, group]

    def _continued(self, sigma: float, group: Group) -> tuple[Tensor, Tensor]:
        """ln L_i(theta_j) [m, N] in float64 and ln sum_j p_j [N, K] in float32; kept at the end, and now and then."""
        path, settings = self.folder / f"{sigma:.9g}{group}.safetensors", {**self.identity, "sigma": sigma}
        found = read_checkpoint(path, settings, self.machine.device)
        rows, total = (found[0]["rows"], found[0]["total"]) if found else (None, None)
        for stream in range(group.first + (0 if rows is None else len(rows)), group.last):
            log_probs = self._member(group.sign * sigma, stream)
            row = log_probs.gather(1, self.labels[:, None]).T.double()
            rows = row if rows is None else torch.cat([rows, row])
            total = log_probs.float() if total is None else torch.logaddexp(total.double(), log_probs).float()
            if stream == group.last - 1 or time.monotonic() - self._saved > PATIENCE:
                write_checkpoint(path, {"rows": rows, "total": total}, settings)
                self._saved = time.monotonic()
            self.say(f"sigma {sigma:.4g}, member {'+' if group.sign > 0 else '-'}{stream}")
        assert rows is not None
        assert total is not None
        return rows, total

    @torch.no_grad()
    def _member(self, signed_sigma: float, stream: int) -> Tensor:
        """Log-probabilities [N, K] of theta* + sigma epsilon, in float64."""
        params, parts, device = self._params(signed_sigma, stream), [], self.machine.device
        half, call = self.machine.precision == "bfloat16", partial(functional_call, self.model)
        joined = None if half or signed_sigma == 0 else JoinedMember(call, params, self._plans, {})
        with precision(self.machine), torch.autocast(torch.device(device).type, torch.bfloat16, enabled=half):
            for pixels in torch.split(self.data.pixels, self.batch_size):
                inputs = self.data.prepare(pixels.to(device)).contiguous(memory_format=self._layout())
                outputs = joined((inputs,), {}) if joined else call(params, (inputs,), {})
                parts.append(outputs.double().log_softmax(dim=1))
        self.passes += 1
        return torch.cat(parts)

    def _params(self, signed_sigma: float, stream: int) -> Params:
        """theta* + sigma epsilon; on a GPU epsilon is kept, since making it takes a tenth of a pass there."""
        if signed_sigma == 0 or torch.device(self.machine.device).type == "cpu":
            return self.perturbation.member(signed_sigma, stream)
        if stream not in self._directions:
            self._directions[stream] = self.perturbation.direction(stream)
        center, direction = self.perturbation.center, self._directions[stream]
        return {name: (direction[name] * signed_sigma).add_(value) for name, value in center.items()}

    def _layout(self) -> torch.memory_format:
        """The layout in which convolutions are fast: channels last, but for float32 on a GPU."""
        plain = self.machine.precision == "float32" and torch.device(self.machine.device).type == "cuda"
        return torch.contiguous_format if plain else torch.channels_last
