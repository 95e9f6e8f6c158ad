"""epsilon_j of eq. 3: the directions in which the members leave theta*, with mean 0 and variance 1.

Each number depends on (seed, member, parameter name, position) and on nothing else: the counter-based generator
Philox4x32-10 (Salmon et al., 2011) is keyed by seed and name and counts positions and members. There is no generator
state, so batch size, order and number of processes cannot matter. Philox gives integers, the same on every device; the
laws compute in float64 and round to float32, so that devices whose logarithms differ in the last bit still agree.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from peppermill.types import Params

if TYPE_CHECKING:
    from peppermill.types import LawName

MULTIPLIERS, WEYL_STEPS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)  # the constants of Philox
WORD_MASK = 0xFFFFFFFF
CHUNK_COUNTERS = {"cpu": 2**15, "cuda": 2**20}  # drawn at once: a few MB on a CPU, over 100 MB on a GPU

#: Four independent words of 32 random bits for each counter.
Words = tuple[Tensor, Tensor, Tensor, Tensor]


def gaussian(words: Words) -> list[Tensor]:
    """Normal numbers, as in the paper."""
    numbers = []  # by the transform of Box and Muller
    for first, second in (words[:2], words[2:]):
        radius, angle = (-2 * _unit(first).log()).sqrt(), 2 * math.pi * _unit(second)
        numbers += [radius * angle.cos(), radius * angle.sin()]
    return numbers


def uniform(words: Words) -> list[Tensor]:
    """Equally likely between -1.73 and 1.73, so that the variance is 1."""
    return [math.sqrt(3) * (2 * _unit(word) - 1) for word in words]


#: The laws by name. A new law is one function, the first line of its docstring being its help, and one row.
LAWS: dict[str, Callable[[Words], list[Tensor]]] = {"gaussian": gaussian, "uniform": uniform}


@dataclass(frozen=True)
class Noise:
    """The `law` of epsilon_j, whether members are `antithetic` pairs +epsilon and -epsilon, and the `seed`.

    `scales` gives arrays a noise of their own size: (name, factors), with one factor for the array or one for each of
    its filters. `draws` names the draws that are the members, if they were chosen from a larger pool.
    """

    law: LawName = "gaussian"
    antithetic: bool = True
    seed: int = 0
    scales: tuple[tuple[str, tuple[float, ...]], ...] = field(default=(), repr=False)
    draws: tuple[int, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if self.law not in LAWS:
            raise ValueError(f"`noise={self.law!r}` is unknown: choose one of {', '.join(LAWS)}.")
        if not isinstance(self.seed, int):
            raise TypeError(f"`seed={self.seed!r}` must be a whole number, an `int`.")
        if not isinstance(self.antithetic, bool):
            raise TypeError(f"`antithetic={self.antithetic!r}` must be True or False.")

    def draw(self, name: str, member: int, like: Tensor) -> Tensor:
        """epsilon_j for the parameter `name`: float32, with the shape and on the device of `like`."""
        return dict(self.direction(member, {name: like}))[name]

    def direction(self, member: int, like: Params) -> Iterator[tuple[str, Tensor]]:
        """epsilon_j for each parameter in turn. Small neighbours are drawn together, which launches fewer kernels."""
        group, held, device = Params(), 0, None
        for name, value in like.items():
            held += -(-value.numel() // 4)
            if group and (value.device != device or held > CHUNK_COUNTERS.get(value.device.type, 0)):
                yield from self._drawn(member, group)
                group, held = Params(), -(-value.numel() // 4)
            group[name], device = value, value.device
        yield from self._drawn(member, group)

    def _drawn(self, member: int, group: Params) -> Iterator[tuple[str, Tensor]]:
        """epsilon_j for arrays that take one chunk of counters together, or for one larger array."""
        member = self.draws[member] if self.draws else member
        sign, stream = ((-1.0) ** member, member // 2) if self.antithetic else (1.0, member)
        digests = (hashlib.sha256(f"peppermill noise 1\n{self.seed}\n{name}".encode()).digest() for name in group)
        keys: list[Any] = [struct.unpack("<II", digest[:8]) for digest in digests]
        own = next(iter(group.values())).device
        device = own if own.type in CHUNK_COUNTERS else torch.device("cpu")
        counts = [-(-value.numel() // 4) for value in group.values()]
        total, chunk, key = sum(counts), CHUNK_COUNTERS[device.type], keys[0]
        numbers = torch.empty(4 * total, dtype=torch.float32, device=device)
        for start in range(0, total, chunk):
            counters = torch.arange(start, min(start + chunk, total), device=device)
            if len(group) > 1:  # in one chunk: the counters of each array begin at 0, and it has its own key
                counters = torch.cat([torch.arange(count, device=device) for count in counts])
                repeats = torch.tensor(counts, device=device)
                key = torch.tensor(keys, device=device).repeat_interleave(repeats, 0, output_size=total).unbind(1)
            words = philox(counters, stream, key)
            numbers[4 * start : 4 * (start + chunk)] = torch.stack(LAWS[self.law](words), dim=1).flatten()
        parts = torch.split(numbers.mul_(sign), [4 * count for count in counts])
        for (name, value), part in zip(group.items(), parts, strict=True):
            epsilon = part[: value.numel()].view(value.shape).to(value.device)
            factors = dict(self.scales).get(name)
            if factors:
                sized = epsilon.new_tensor(factors).view(-1, *(1,) * (epsilon.ndim - 1))
                epsilon *= sized if epsilon.ndim else factors[0]
            yield name, epsilon


def philox(counters: Tensor, stream: int, key: Sequence[Any]) -> Words:
    """Philox4x32-10 of the 128-bit counters stream * 2^64 + counter: four 32-bit words each, held in int64.

    The key is two words for all counters, or two tensors with the words of each.
    """
    a, b = counters & WORD_MASK, counters >> 32 & WORD_MASK
    c, d = torch.full_like(counters, stream & WORD_MASK), torch.full_like(counters, stream >> 32)
    low, high = key
    for _ in range(10):
        first, second = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
        a, b = (second >> 32) & WORD_MASK ^ b ^ low, second & WORD_MASK
        c, d = (first >> 32) & WORD_MASK ^ d ^ high, first & WORD_MASK
        low, high = (low + WEYL_STEPS[0]) & WORD_MASK, (high + WEYL_STEPS[1]) & WORD_MASK
    return a, b, c, d


def _unit(word: Tensor) -> Tensor:
    """A word as a number strictly between 0 and 1."""
    return (word.double() + 0.5) / 2**32
