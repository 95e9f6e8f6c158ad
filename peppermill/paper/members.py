"""PEP on S networks at once: the same members, the same numbers as `pm.fit` gives to each network alone.

Directions are those of `peppermill.noise`, keyed by (seed of the network, member, name of the parameter); antithetic
members are the independent ones with alternating signs, so one set of draws serves every column of a table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from peppermill.data import Batches
from peppermill.engines.loop import MemberPass
from peppermill.likelihood import Categorical
from peppermill.noise import Noise
from peppermill.paper.folding import Folded
from peppermill.paper.machine import Machine, precision
from peppermill.paper.stacked import State, apply_layer, count_of, entered
from peppermill.tuning.subsample import Sample, sample_of

KEPT_BYTES = {"cuda": 2**34, "cpu": 5 * 2**29}  # of the first perturbed layer
BATCH = {"cuda": 2000, "cpu": 128}  # images at once; vectors of a CPU are full where it is a power of two


class Directions:
    """epsilon of every network, drawn once: by parameter and stream, [S, ...]."""

    def __init__(self, state: State, seeds: Sequence[int], law: str = "gaussian") -> None:
        self.state, self.noises = state, [Noise(law, antithetic=False, seed=seed) for seed in seeds]
        self.drawn: dict[tuple[str, int], Tensor] = {}

    def of(self, name: str, stream: int) -> Tensor:
        """The draw of one parameter: that of member `stream`, or of the antithetic pair number `stream`."""
        if (name, stream) not in self.drawn:
            center = self.state[name].detach()
            draws = [noise.draw(name, stream, center[index]) for index, noise in enumerate(self.noises)]
            self.drawn[name, stream] = torch.stack(draws)
        return self.drawn[name, stream]


@dataclass(frozen=True)
class Images:
    """Images [N, channels, height, width] in 0..1 and labels [N], on the device.

    Or those of each of S networks, [N, S, channels, height, width] and [S, N].
    """

    images: Tensor
    labels: Tensor

    @property
    def batch_size(self) -> int:
        return BATCH[self.images.device.type]

    @property
    def room(self) -> int:
        """Bytes of activations that may be kept."""
        return KEPT_BYTES[self.images.device.type]


@dataclass(frozen=True)
class Stack:
    """S trained networks, ready to be asked about labelled images, and the first layers that are kept of them."""

    network: nn.Sequential
    state: State
    directions: Directions
    machine: Machine
    kept: dict[tuple[int, str], FirstLayer] = field(default_factory=dict)

    def __len__(self) -> int:
        return count_of(self.state)

    def chosen(self, indices: Sequence[int]) -> State:
        """The state of some of the networks."""
        everyone = len(indices) == len(self)
        return self.state if everyone else {name: value[list(indices)] for name, value in self.state.items()}


class FirstLayer:
    """The first perturbed layer, and all before it, of every network on one set of images.

    A layer is linear in its kernel: layer(theta* + sigma epsilon) = layer(theta*) + sigma layer(epsilon). Both parts
    are computed once, where they fit, and every sigma after that costs no more than a sum.
    """

    def __init__(self, stack: Stack, data: Images, name: str) -> None:
        self.stack, self.data, self.name = stack, data, name
        layers = list(stack.network.named_children())
        first = [layer for layer, _ in layers].index(name)
        self.before, self.layer, self.after = layers[:first], layers[first][1], layers[first + 1 :]
        self.centers: list[Tensor] = []
        self.responses: dict[int, list[Tensor]] = {}

    def streams_kept(self) -> int:
        """For how many draws the response can be kept, beside the layer at theta* itself."""
        probe = self._apply(self.stack.state, self.data.images[: self.data.batch_size])
        if probe.ndim == 4 and probe.is_cuda:
            return 0  # to read so much takes longer than to convolve again
        share = min(self.data.batch_size, len(self.data.labels)) / len(self.data.labels)
        return max(0, int(self.data.room * share / probe.nbytes) - 1)

    def direct(self, state: State) -> Iterator[Tensor]:
        """The layer's outputs for a state, batch after batch."""
        for batch in torch.split(self.data.images, self.data.batch_size):
            yield self._apply(state, batch)

    def kept(self, scales: Tensor, stream: int, chosen: Sequence[int]) -> Iterator[Tensor]:
        """The same from what is kept: `scales` is +-sigma of each chosen network."""
        if not self.centers:
            self.centers = list(self.direct(self.stack.state))
        if stream not in self.responses:
            state = dict(self.stack.state)
            state[f"{self.name}.weight"] = self.stack.directions.of(f"{self.name}.weight", stream)
            state[f"{self.name}.bias"] = torch.zeros_like(state[f"{self.name}.bias"])
            self.responses[stream] = list(self.direct(state))
        for center, response in zip(self.centers, self.responses[stream], strict=True):
            yield torch.addcmul(self._only(center, chosen), self._only(response, chosen), self._spread(scales, center))

    def _apply(self, state: State, batch: Tensor) -> Tensor:
        value = entered(batch, count_of(state))
        for name, layer in [*self.before, (self.name, self.layer)]:
            value = apply_layer(name, layer, state, value)
        return value

    def _only(self, value: Tensor, chosen: Sequence[int]) -> Tensor:
        """The chosen networks' part of an activation, an image's or a vector's."""
        if len(chosen) == len(self.stack):
            return value
        if value.ndim != 4:
            return value[list(chosen)]
        return torch.unflatten(value, 1, (len(self.stack), -1))[:, list(chosen)].flatten(1, 2)

    def _spread(self, scales: Tensor, value: Tensor) -> Tensor:
        if value.ndim != 4:
            return scales.view(-1, *[1] * (value.ndim - 1))
        return scales.repeat_interleave(value.shape[1] // len(self.stack)).view(1, -1, 1, 1)


class StackedMembers:
    """The members of all networks over one set of images, at a sigma of each network's own."""

    def __init__(
        self, stack: Stack, data: Images, selected: Sequence[str], size: int, antithetic: bool = False
    ) -> None:
        self.stack, self.data, self.selected, self.size, self.antithetic = stack, data, selected, size, antithetic
        first = next(name for name, _ in stack.network.named_children() if f"{name}.weight" in selected)
        self.first = stack.kept.setdefault((id(data), first), FirstLayer(stack, data, first))
        self.rest = Folded(self.first.after, stack.state)
        self.whole = Folded(list(stack.network.named_children()), stack.state)
        self.streams_kept = self.first.streams_kept()

    def sample(self, network: MemberPass) -> Sample | None:
        """`fit`'s sample of the images for one network, from its pass at sigma = 0."""
        return sample_of(self._batches, network, Categorical())

    @cached_property
    def _batches(self) -> Batches:
        """The images as `fit` reads them."""
        batches = Batches((self.data.images, self.data.labels), self.stack.network.to(self.data.images.device))
        for _ in batches.chunks():  # it knows its sizes after that
            pass
        return batches

    def run(self, sigmas: Mapping[int, float]) -> dict[int, MemberPass]:
        """`run_members` of every network that has a sigma: ln L_i(theta_j), [m, N], and the averages [N, K]."""
        labels = dict.fromkeys(sigmas, self.data.labels)
        return self._run(sigmas, self.data, labels)

    def run_samples(self, sigmas: Mapping[int, float], samples: Mapping[int, Sample]) -> dict[int, MemberPass]:
        """The same, each network over a sample of its own; the shorter ones repeat an image, which is then left out."""
        own = [_joined(samples[index]) for index in sorted(sigmas)]
        labels = {index: one.labels for index, one in zip(sorted(sigmas), own, strict=True)}
        rows = [_lengthened(len(one.labels), max(map(len, labels.values())), one.labels.device) for one in own]
        together = Images(
            torch.stack([one.images[chosen] for one, chosen in zip(own, rows, strict=True)], dim=1),
            torch.stack([one.labels[chosen] for one, chosen in zip(own, rows, strict=True)]),
        )
        return self._run(sigmas, together, labels)

    @torch.no_grad()
    def _run(self, sigmas: Mapping[int, float], data: Images, labels: Mapping[int, Tensor]) -> dict[int, MemberPass]:
        """Of each network, its own labels' items, which are the first of the data."""
        chosen = sorted(sigmas)
        size = self.size if any(sigmas.values()) else 1
        with precision(self.stack.machine):
            rows, total = self._passes(data, chosen, [sigmas[index] for index in chosen], size)
        return {
            index: MemberPass(
                sigmas[index],
                rows[:, k, : len(labels[index])].expand(self.size, -1),
                total[k, : len(labels[index])],
                labels[index],
            )
            for k, index in enumerate(chosen)
        }

    def scales(self) -> list[float]:
        """The root mean square of each network's selected weights."""
        squares = sum(self.stack.state[name].detach().double().square().flatten(1).sum(1) for name in self.selected)
        count = sum(self.stack.state[name][0].numel() for name in self.selected)
        return (squares / count).sqrt().tolist()  # type: ignore[union-attr]

    def _passes(self, data: Images, chosen: list[int], sigmas: list[float], size: int) -> tuple[Tensor, Tensor]:
        """Log-likelihoods [m, S, N] and averaged log-probabilities [S, N, K] in float64."""
        rows, total = [], None
        labels = data.labels.expand(len(chosen), -1).unsqueeze(2)
        for member in range(size):
            log_probs = self._member(data, chosen, sigmas, member)
            rows.append(log_probs.gather(2, labels).squeeze(2))
            total = log_probs if total is None else torch.logaddexp(total, log_probs)
        assert total is not None
        return torch.stack(rows), total - math.log(size)

    def _member(self, data: Images, chosen: list[int], sigmas: list[float], member: int) -> Tensor:
        """Log-probabilities [S, N, K] of member j of the chosen networks."""
        stream, sign = (member // 2, (-1.0) ** member) if self.antithetic else (member, 1.0)
        scales = torch.tensor([sign * sigma for sigma in sigmas], device=data.images.device)
        state = dict(self.stack.chosen(chosen))
        for name in self.selected:
            draw = self.stack.directions.of(name, stream)
            part = draw if len(chosen) == len(self.stack) else draw[chosen]
            state[name] = torch.addcmul(state[name], part, scales.view(-1, *[1] * (draw.ndim - 1)))
        if stream < self.streams_kept and data is self.data:
            found = self.rest.run(state, self.first.kept(scales, stream, chosen))
        else:
            batches = torch.split(data.images, data.batch_size)
            found = self.whole.run(state, (entered(batch, len(chosen)) for batch in batches))
        return torch.cat([log_probs_of(logits) for logits in found], dim=1)


def _joined(sample: Sample) -> Images:
    images, labels = (torch.cat(parts) for parts in zip(*sample.data, strict=True))
    return Images(images, labels)


def _lengthened(count: int, length: int, device: torch.device) -> Tensor:
    """The numbers of so many rows, and then the last one again and again."""
    return torch.arange(length, device=device).clamp(max=count - 1)


def log_probs_of(logits: Tensor) -> Tensor:
    """Logits [S, K, batch] as log-probabilities [S, batch, K]: the softmax in float32, sums of members in float64."""
    return logits.float().log_softmax(dim=1).transpose(1, 2).double()
