"""PEP on S networks at once: the same members, the same numbers as `pm.fit` gives to each network alone.

Directions are those of `peppermill.noise`, keyed by (seed of the network, member, name of the parameter); antithetic
members are the independent ones with alternating signs, so one set of draws serves every column of a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from peppermill.engines.loop import MemberPass
from peppermill.noise import Noise
from peppermill.paper.stacked import State, apply_layer, count_of
from peppermill.paper.training import Machine, precision

KEPT_BYTES = {"cuda": 2**34, "cpu": 2**30}  # activations before the first perturbed layer that may be kept
BATCH = {"cuda": 1000, "cpu": 250}  # images at once


class Directions:
    """epsilon of every network, drawn once: by parameter and stream, [S, ...]."""

    def __init__(self, state: State, seeds: Sequence[int], law: str = "gaussian") -> None:
        self.state, self.noises = state, [Noise(law, antithetic=False, seed=seed) for seed in seeds]
        self.drawn: dict[tuple[str, int], Tensor] = {}

    def of(self, name: str, member: int, antithetic: bool) -> tuple[float, Tensor]:
        """The sign and the draw of one member, as `Noise(antithetic=...)` defines them."""
        stream = member // 2 if antithetic else member
        if (name, stream) not in self.drawn:
            center = self.state[name].detach()
            draws = [noise.draw(name, stream, center[index]) for index, noise in enumerate(self.noises)]
            self.drawn[name, stream] = torch.stack(draws)
        return (-1.0) ** member if antithetic else 1.0, self.drawn[name, stream]


@dataclass(frozen=True)
class Stack:
    """S trained networks, ready to be asked about labelled images."""

    network: nn.Sequential
    state: State
    directions: Directions
    machine: Machine

    def __len__(self) -> int:
        return count_of(self.state)


@dataclass(frozen=True)
class Images:
    """Images [N, channels, height, width] in 0..1 and labels [N], on the device."""

    images: Tensor
    labels: Tensor


class StackedMembers:
    """The members of all networks over one set of images, at a sigma of each network's own."""

    def __init__(self, stack: Stack, data: Images, selected: Sequence[str], size: int, antithetic: bool) -> None:
        self.stack, self.data, self.selected, self.size, self.antithetic = stack, data, selected, size, antithetic
        layers = list(stack.network.named_children())
        first = next(k for k, (name, _) in enumerate(layers) if f"{name}.weight" in selected)
        self.before, self.after = layers[:first], layers[first:]
        self.kept: list[Tensor] | None = None

    @torch.no_grad()
    def run(self, sigmas: Mapping[int, float]) -> dict[int, MemberPass]:
        """`run_members` of every network that has a sigma: ln L_i(theta_j), [m, N], and the averages [N, K]."""
        chosen = sorted(sigmas)
        size = self.size if any(sigmas.values()) else 1
        with precision(self.stack.machine):
            rows, total = self._passes(chosen, [sigmas[index] for index in chosen], size)
        return {
            index: MemberPass(sigmas[index], rows[:, k].expand(self.size, -1), total[k], self.data.labels)
            for k, index in enumerate(chosen)
        }

    def scales(self) -> list[float]:
        """The root mean square of each network's selected weights."""
        squares = sum(self.stack.state[name].detach().double().square().flatten(1).sum(1) for name in self.selected)
        count = sum(self.stack.state[name][0].numel() for name in self.selected)
        return (squares / count).sqrt().tolist()  # type: ignore[union-attr]

    def _passes(self, chosen: list[int], sigmas: list[float], size: int) -> tuple[Tensor, Tensor]:
        """Log-likelihoods [m, S, N] and averaged log-probabilities [S, N, K] in float64."""
        rows, total = [], None
        for member in range(size):
            log_probs = self._member(chosen, sigmas, member)
            rows.append(log_probs.gather(2, self.data.labels.expand(len(chosen), -1).unsqueeze(2)).squeeze(2))
            total = log_probs if total is None else torch.logaddexp(total, log_probs)
        assert total is not None
        return torch.stack(rows), total - torch.tensor(size, dtype=torch.float64).log().item()

    def _member(self, chosen: list[int], sigmas: list[float], member: int) -> Tensor:
        """Log-probabilities [S, N, K] of member j of the chosen networks."""
        everyone = len(chosen) == len(self.stack)
        state = self.stack.state if everyone else {name: v[chosen] for name, v in self.stack.state.items()}
        moved = dict(state)
        for name in self.selected:
            sign, draw = self.stack.directions.of(name, member, self.antithetic)
            scale = torch.tensor([sign * sigma for sigma in sigmas], dtype=torch.float32, device=draw.device)
            part = draw if everyone else draw[chosen]
            moved[name] = torch.addcmul(state[name], part, scale.view(-1, *[1] * (draw.ndim - 1)))
        return torch.cat([log_probs_of(self._rest(moved, value)) for value in self._inputs(chosen)], dim=1)

    def _rest(self, state: State, value: Tensor) -> Tensor:
        for name, layer in self.after:
            value = apply_layer(name, layer, state, value, unfold=self.stack.machine.unfold)
        return value

    def _inputs(self, chosen: list[int]) -> Iterator[Tensor]:
        """What reaches the first perturbed layer, batch after batch: the same for every member, so kept if it fits."""
        everyone = len(chosen) == len(self.stack)
        if self.kept is None and everyone and self._bytes() <= KEPT_BYTES[self.data.images.device.type]:
            self.kept = list(self._compute_inputs(self.stack.state))
        if self.kept is not None:
            yield from (value if everyone else self._only(value, chosen) for value in self.kept)
        else:
            state = self.stack.state if everyone else {name: v[chosen] for name, v in self.stack.state.items()}
            yield from self._compute_inputs(state)

    def _compute_inputs(self, state: State) -> Iterator[Tensor]:
        for batch in torch.split(self.data.images, BATCH[self.data.images.device.type]):
            value = batch.unsqueeze(1).expand(-1, count_of(state), -1, -1, -1)
            for name, layer in self.before:
                value = apply_layer(name, layer, state, value, unfold=self.stack.machine.unfold)
            yield value

    def _only(self, value: Tensor, chosen: list[int]) -> Tensor:
        """The chosen networks' part of an activation, in any of the forms of `stacked.py`."""
        if value.ndim == 3:
            return value[:1].expand(len(chosen), -1, -1) if value.stride(0) == 0 else value[chosen]
        if value.ndim == 5:
            return value[:, : len(chosen)]
        parts = value.view(len(value), len(self.stack), -1, *value.shape[2:])[:, chosen]
        return parts.reshape(len(value), -1, *value.shape[2:])

    def _bytes(self) -> int:
        """The size of all activations before the first perturbed layer; a view of the images takes none."""
        probe = next(self._compute_inputs(self.stack.state))
        shared = probe.stride(1 if probe.ndim == 5 else 0) == 0
        batches = -(-len(self.data.labels) // BATCH[self.data.images.device.type])
        return 0 if shared else probe.nbytes * batches


def log_probs_of(logits: Tensor) -> Tensor:
    """Logits [S, K, batch] as log-probabilities [S, batch, K]: the softmax in float32, sums of members in float64."""
    return logits.float().log_softmax(dim=1).transpose(1, 2).double()
