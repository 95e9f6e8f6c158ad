"""epsilon_j: the directions in which members leave theta*, with mean 0 and variance 1.

Every number is a function of (seed, member, parameter name, position) and of nothing else: the Philox4x32-10 generator
of Salmon et al. (2011) is keyed by the seed and the name, and counts positions and members. No generator has a state,
so batch size, order, chunking and process count cannot matter. The words are integers, the same on every device; the
Gaussian is computed from them in float64 and rounded to float32, so that devices whose logarithms differ in the last
float64 bit agree all the same.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_CHUNK = 2**15  # counters in flight: bounds the memory of a draw to a few MB, whatever the size of the parameter
_CHUNK_ON_GPU = 2**21  # a few hundred MB, because every launch of a kernel has its price

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def gaussian(words: Words) -> list[Tensor]:
    """Standard normal numbers from uniform words, by the transform of Box and Muller."""
    numbers = []
    for first, second in (words[:2], words[2:]):
        radius = (-2 * (_unit(first)).log()).sqrt()
        angle = 2 * math.pi * _unit(second)
        numbers += [radius * angle.cos(), radius * angle.sin()]
    return numbers


def uniform(words: Words) -> list[Tensor]:
    """Uniform numbers on (-sqrt 3, sqrt 3), whose variance is 1."""
    return [math.sqrt(3) * (2 * _unit(word) - 1) for word in words]


#: The laws that have a name. A new law is one function of four words and one row here.
LAWS: dict[str, Callable[[Words], list[Tensor]]] = {"gaussian": gaussian, "uniform": uniform}


@dataclass(frozen=True)
class Noise:
    """The law of epsilon_j, whether members come in pairs +epsilon, -epsilon, and the seed."""

    law: str = "gaussian"
    antithetic: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.law not in LAWS:
            raise ValueError(f"`noise={self.law!r}` is unknown: choose one of {', '.join(LAWS)}.")
        if not isinstance(self.seed, int):
            raise TypeError(f"`seed={self.seed!r}` must be a whole number, an `int`.")

    def draw(self, name: str, member: int, like: Tensor) -> Tensor:
        """epsilon_j for the parameter `name`: float32, of the shape and on the device of `like`."""
        sign, stream = ((-1.0) ** member, member // 2) if self.antithetic else (1.0, member)
        device = like.device if like.device.type in ("cpu", "cuda") else torch.device("cpu")
        numbers = torch.empty(like.numel(), dtype=torch.float32, device=device)
        for start, counters in _counters(like.numel(), device):
            part = numbers[start : start + 4 * len(counters)]
            drawn = LAWS[self.law](philox(counters, stream, _key(self.seed, name)))
            part.copy_(torch.stack(drawn, dim=1).flatten()[: len(part)])
        return numbers.mul_(sign).view(like.shape).to(like.device)


def philox(counters: Tensor, stream: int, key: tuple[int, int]) -> Words:
    """Philox4x32-10 of the 128-bit counters stream * 2^64 + counter: four 32-bit words each, held in int64."""
    a, b = counters & _WORD, counters >> 32 & _WORD
    c, d = torch.full_like(counters, stream & _WORD), torch.full_like(counters, stream >> 32)
    low, high = key
    for _ in range(10):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (
            (second >> 32) & _WORD ^ b ^ low,
            second & _WORD,
            (first >> 32) & _WORD ^ d ^ high,
            first & _WORD,
        )
        low, high = (low + _WEYL[0]) & _WORD, (high + _WEYL[1]) & _WORD
    return a, b, c, d


def _key(seed: int, name: str) -> tuple[int, int]:
    digest = hashlib.sha256(f"peppermill noise 1\n{seed}\n{name}".encode()).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


def _counters(count: int, device: torch.device) -> Iterator[tuple[int, Tensor]]:
    needed = -(-count // 4)
    chunk = _CHUNK if device.type == "cpu" else _CHUNK_ON_GPU
    for start in range(0, needed, chunk):
        yield 4 * start, torch.arange(start, min(start + chunk, needed), device=device)


def _unit(word: Tensor) -> Tensor:
    """A word as a number strictly between 0 and 1."""
    return (word.double() + 0.5) / 2**32
