"""What turns a network into an ensemble, and the fingerprint of the network to which it belongs.

A member is a number and not a copy of the weights, so a recipe is small; on other weights it means nothing.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from peppermill.likelihood import likelihood_named
from peppermill.noise import Noise
from peppermill.parameters import rule_name, select
from peppermill.plumbing.display import Table, shows_table
from peppermill.tuning.result import SigmaSearch
from peppermill.views import ViewsLike, views_named

if TYPE_CHECKING:
    from peppermill.calibrators import Calibrator
    from peppermill.datasets.splitting import Split
    from peppermill.parameters import Selection
    from peppermill.types import LawName, Likelihood, LikelihoodLike
    from peppermill.views import View

VERDICTS = ("chosen", "worse", "not better by a standard error")  # on a candidate of a race


@dataclass(frozen=True)
class Candidate:
    """One entry of the race: what it is, what it costs, and how it did."""

    name: str
    passes: int
    parameters: int  # fitted numbers
    nll: float  # cross-fitted, per item
    difference: float  # of the NLL from the choice's
    error: float  # the standard error of that difference, paired by example
    verdict: str  # one of VERDICTS


@shows_table
@dataclass(frozen=True)
class Race:
    """All candidates, best first, on the items of the validation data; `spent` counts passes over all of them."""

    candidates: tuple[Candidate, ...]
    items: int
    spent: float
    note: str

    @property
    def choice(self) -> Candidate:
        return next(candidate for candidate in self.candidates if candidate.verdict == "chosen")

    def table(self) -> Table:
        """Each candidate: name, passes, NLL, difference from the choice with its standard error, verdict."""
        rows = []
        for c in self.candidates:
            difference = f"{c.difference:+.4f} ± {c.error:.4f}" if c.verdict != "chosen" else ""
            rows.append((c.name, str(c.passes), f"{c.nll:.4f}", difference, c.verdict))
        return Table(("candidate", "passes", "NLL", "difference", "verdict"), rows, note=self.note)


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


def recipe_at(
    model: nn.Module,
    sigma: float,
    parameters: Selection,
    size: int,
    noise: LawName | Noise,
    likelihood: LikelihoodLike,
    views: ViewsLike,
    calibrator: Calibrator,
) -> Recipe:
    """The recipe of an ensemble at this sigma, without a search."""
    return Recipe(
        sigma=sigma,
        size=size,
        noise=noise if isinstance(noise, Noise) else Noise(noise),
        rule=rule_name(parameters),
        selected=tuple(select(model, parameters)),
        likelihood=likelihood_named(likelihood),
        calibrator=calibrator,
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
        architecture=digest(f"{name}{list(value.shape)}".encode() for name, value in state.items()),
        parameters=digest(_bytes(value) for name, value in state.items() if name in learned),
        buffers=digest(_bytes(value) for name, value in state.items() if name not in learned),
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


def versions() -> dict[str, str]:
    """The versions on which a result depends."""
    try:
        own = version("peppermill")
    except PackageNotFoundError:
        own = "not installed"
    return {"peppermill": own, "torch": torch.__version__, "python": platform.python_version()}


def digest(parts: Iterable[bytes]) -> str:
    """Sixteen digits of the SHA-256 of these bytes."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()[:16]


def _bytes(value: Tensor) -> bytes:
    return bytes(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
