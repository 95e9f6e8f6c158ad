"""Dropout at rate 1/2 for S networks: masks from a generator of each network's own, cheap to draw."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from peppermill.paper.networks import RATE

assert RATE == 0.5  # one bit decides

SECOND_BITS = 0x0202020202020202  # of each byte of a word


class Dropped:
    """The factors of dropout, 0 or 2, for every activation of every network.

    They are filled before a step, outside a CUDA graph, which reads them where they lie. Each byte of a random word
    gives one factor, by its second bit; all layers' factors of a network lie in one row, filled by one call.
    """

    def __init__(self, seeds: Sequence[int], device: str) -> None:
        self.seeds, self.device = seeds, device
        self.generators = [Generator(device) for _ in seeds]
        self.places: dict[int, dict[tuple[str, tuple[int, ...]], slice]] = {}  # by size of batch: where a layer's lie
        self.words: dict[int, Tensor] = {}  # by size of batch: [S, words]

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The factors of a layer, [S, batch, ...], as bytes; filled by `refill`, and zero until then."""
        known = self.places.setdefault(shape[1], {})
        if (name, shape) not in known:
            count, end = torch.Size(shape[1:]).numel(), max((place.stop for place in known.values()), default=0)
            known[name, shape] = slice(end, end + -(-count // 8) * 8)
            return torch.zeros(shape, dtype=torch.uint8, device=self.device)
        place = known[name, shape]
        return (
            self.words[shape[1]]
            .view(torch.uint8)[:, place.start : place.start + torch.Size(shape[1:]).numel()]
            .view(shape)
        )

    def factors(self, batch: int) -> dict[str, Tensor]:
        """All factors of a batch of that size, by layer."""
        return {name: self(name, shape) for name, shape in self.places[batch]}

    def knows(self, batch: int) -> bool:
        """Whether the masks of a batch of that size have been asked for before."""
        return batch in self.places

    def restart(self, part: int) -> None:
        """Begin the stream of one epoch, or of one pass."""
        for seed, generator in zip(self.seeds, self.generators, strict=True):
            generator.manual_seed(mixed(seed, part, 2))

    def refill(self, batch: int) -> None:
        """New factors for a batch of that size."""
        if batch not in self.words:
            end = max(place.stop for place in self.places[batch].values())
            self.words[batch] = torch.zeros(len(self.seeds), end // 8, dtype=torch.int64, device=self.device)
        words = self.words[batch]
        for row, generator in zip(words, self.generators, strict=True):
            row.random_(generator=generator)
        words.bitwise_and_(SECOND_BITS)


def mixed(seed: int, part: int, purpose: int) -> int:
    """A seed for one epoch and one purpose; far apart for neighbours, as generators with neighbouring seeds need."""
    number = (seed * 1_000_003 + part) * 8 + purpose
    return (number * 0x9E3779B97F4A7C15) % 2**63
