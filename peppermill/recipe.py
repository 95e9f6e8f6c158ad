"""What turns a network into an ensemble, and the fingerprint of the network to which it belongs.

A member is a number and not a copy of the weights, so a recipe is small; on other weights it means nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from peppermill.calibrators import UNCALIBRATED, Calibrator
from peppermill.likelihood import likelihood_named
from peppermill.noise import Noise
from peppermill.parameters import Selection, rule_name, select
from peppermill.plumbing.nested import raw_bytes, sha256
from peppermill.tuning.result import SigmaSearch
from peppermill.types import LawName, Likelihood, LikelihoodLike
from peppermill.views import View, ViewsLike, views_named

if TYPE_CHECKING:
    from peppermill.datasets.splitting import Split
    from peppermill.race import Race


@dataclass(frozen=True)
class Fingerprint:
    """Counts and digests of a network's state, coarse to fine, so that a difference can be named."""

    tensors: int
    numbers: int
    types: str
    architecture: str  # names and shapes
    parameters: str  # values
    buffers: str  # values


@dataclass(frozen=True)
class Recipe:
    """sigma*, m, the noise, the selection, the likelihood, the calibrator, and how they were found, for one network."""

    sigma: float
    size: int
    noise: Noise
    rule: str
    selected: tuple[str, ...]
    likelihood: Likelihood
    calibrator: Calibrator
    search: SigmaSearch
    fingerprint: Fingerprint
    views: tuple[View, ...] = ()
    one_pass: Calibrator | None = None  # the rival: the best calibrator of the network alone, on the same items
    split: Split | None = None  # the items on which sigma was tuned; the others are for testing
    race: Race | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.sigma < math.inf:
            raise ValueError(f"`sigma={self.sigma}` must be a size of noise, zero or positive, and finite.")

    @property
    def method(self) -> str:
        """What tables call it; PEP only if there is noise."""
        views = f"{seen} views" if (seen := len(self.views[: self.size])) > 1 else ""
        factors = max((len(factors) for _, factors in self.noise.scales), default=0)  # of an array: a sigma each
        noise = ("PEP by filter" if factors > 1 else "PEP by layer" if factors else "PEP") if self.sigma else ""
        members = " and ".join(filter(None, (noise, views)))
        if self.calibrator == UNCALIBRATED:
            return members or "network"
        after = f"{self.calibrator.name} scaling"
        return f"{members} with {after}".replace("with temperature scaling", "with temperature") if members else after


def recipe_at(
    model: nn.Module,
    sigma: float,
    parameters: Selection,
    size: int,
    noise: LawName | Noise,
    likelihood: LikelihoodLike,
    views: ViewsLike,
) -> Recipe:
    """The recipe of an ensemble at this sigma, without a search."""
    return Recipe(
        sigma=sigma,
        size=size,
        noise=noise if isinstance(noise, Noise) else Noise(noise),
        rule=rule_name(parameters),
        selected=tuple(select(model, parameters)),
        likelihood=likelihood_named(likelihood),
        calibrator=UNCALIBRATED,
        search=SigmaSearch((), sigma, sigma, 0, False, 0.0),
        fingerprint=fingerprint(model),
        views=() if views is None else views_named(views),
    )


def fingerprint(model: nn.Module) -> Fingerprint:
    """The fingerprint of the network as it is now, the same on every device."""
    state, learned = model.state_dict(), dict(model.named_parameters(remove_duplicate=False))
    return Fingerprint(
        tensors=len(state),
        numbers=sum(value.numel() for value in state.values()),
        types=",".join(sorted({str(value.dtype).removeprefix("torch.") for value in state.values()})),
        architecture=sha256(f"{name}{list(value.shape)}".encode() for name, value in state.items()),
        parameters=sha256(raw_bytes(value) for name, value in state.items() if name in learned),
        buffers=sha256(raw_bytes(value) for name, value in state.items() if name not in learned),
    )


def difference(saved: Fingerprint, found: Fingerprint) -> str:
    """The difference in words, empty if there is none."""
    counts = (
        f"it has {found.tensors} arrays with {found.numbers:,} numbers, the saved one has {saved.tensors} with "
        f"{saved.numbers:,}: another architecture"
    )
    words = {
        "tensors": counts,
        "numbers": counts,
        "architecture": "its arrays have other names or shapes: another architecture",
        "types": f"its numbers are {found.types}, the saved one's are {saved.types}: convert it first",
        "parameters": "its parameters have other values: it was trained further, or its weights were not loaded "
        "(did you forget `--weights`?)",
        "buffers": "its parameters are the same, but its buffers (batch-norm statistics, say) have other values",
    }
    return next((text for name, text in words.items() if getattr(saved, name) != getattr(found, name)), "")
