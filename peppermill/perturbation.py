"""Eq. 3 and 5: theta_j = theta* + sigma * epsilon_j."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from peppermill.noise import Noise
from peppermill.types import Params

MAX_SIZE = 1_000_000  # more are a mistake: a fit of 10 members takes minutes, and one of 10^12 would never end


@dataclass(frozen=True)
class Perturbation:
    """The m members theta_j around theta*, as a function of sigma.

    The directions epsilon_j do not depend on sigma (common random numbers): with fresh noise for each sigma, L(sigma)
    would be a noisy function, and a search for its maximum would mean nothing.
    """

    center: Params
    noise: Noise
    size: int

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or not 1 <= self.size <= MAX_SIZE:
            raise ValueError(
                f"`size={self.size!r}` must be a whole number of members, 1 to {MAX_SIZE:,}; 10 is the paper's choice."
            )
        if self.noise.draws and self.size > len(self.noise.draws):
            raise ValueError(
                f"`size={self.size}` is more than the {len(self.noise.draws)} members that were chosen from a pool: "
                "fit again with as many."
            )

    def direction(self, member: int) -> Params:
        """epsilon_j, in float32."""
        return dict(self.noise.direction(member, self.center))

    def member(self, sigma: float, member: int, direction: Params | None = None) -> Params:
        """theta_j; theta* itself if sigma is 0. `direction` is epsilon_j, if it was drawn before.

        Noise is added in float32 at least and then rounded to the type of the weights.
        """
        if sigma == 0:
            return dict(self.center)
        params = {}
        for name, epsilon in direction.items() if direction else self.noise.direction(member, self.center):
            value = self.center[name]
            wide = epsilon.to(torch.promote_types(value.dtype, torch.float32))
            params[name] = (sigma * wide + value).to(value.dtype)
        return params

    def members(self, sigma: float) -> Iterator[Params]:
        """theta_1 to theta_m, one at a time; only one if sigma is 0, when all are the same."""
        for member in range(self.size if sigma != 0 else 1):
            yield self.member(sigma, member)

    def scale(self) -> float:
        """The root mean square of the selected weights, to which a sigma compares; 1 if all weights are zero."""
        squares = sum(float(value.double().square().sum()) for value in self.center.values())
        return math.sqrt(squares / sum(value.numel() for value in self.center.values())) or 1.0
