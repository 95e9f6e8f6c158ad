"""The items whose true class gains or loses most probability (Figure 2c)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from peppermill.calibrators import UNCALIBRATED, Calibrator
from peppermill.data import Batches
from peppermill.ensemble import PepEnsemble
from peppermill.passes import MemberPass
from peppermill.predictions import Predictions, predict
from peppermill.types import Data

COUNT = 6  # items of each kind: two rows of three on a page


@dataclass(frozen=True)
class Effect:
    """One item: its true class, and the most probable class before and after.

    `network` and `ensemble` are the probabilities of the true class under theta* and by eq. 9, `members` those under
    each theta_j, L_i(theta_j). `image` is a small PNG in base64.
    """

    item: int
    label: int
    before: int
    after: int
    network: float
    ensemble: float
    members: tuple[float, ...]
    image: str | None = None

    @property
    def gain(self) -> float:
        """The gain in probability of the true class."""
        return self.ensemble - self.network


@dataclass(frozen=True)
class ClassEffects:
    """For each class, [K]: its items, and their mean negative log-likelihood under the network and the ensemble.

    A class without items has NaN.
    """

    items: Tensor
    network: Tensor
    ensemble: Tensor


@dataclass(frozen=True)
class Effects:
    """The items that gain most, those that lose most, and how many of all N do either.

    `corrected` counts mistakes of the network that the ensemble does not make, `spoiled` the reverse.
    """

    helped: tuple[Effect, ...]
    hurt: tuple[Effect, ...]
    items: int
    gained: int
    lost: int
    corrected: int
    spoiled: int
    classes: ClassEffects
    temperature: float = 1.0
    method: str = "PEP"

    @property
    def shown(self) -> set[int]:
        """The numbers of the items that are named."""
        return {effect.item for effect in (*self.helped, *self.hurt)}


def helped_and_hurt(pep: PepEnsemble, data: Data | Batches, *, count: int = COUNT, images: bool = True) -> Effects:
    """The `count` items that the ensemble helps most and those that it hurts most, against its own network.

    With `images`, each item has a small picture if the inputs are images, one for each item.
    """
    batches = data if isinstance(data, Batches) else Batches(data, pep.model)
    network = predict(pep.model, batches, likelihood=pep.likelihood)
    found = effects_of(network, pep.member_pass(batches), pep.calibrator, count)
    return with_images(found, inputs_of(batches, found.shown, found.items)) if images else found


def effects_of(
    network: Predictions, members: MemberPass, calibrator: Calibrator = UNCALIBRATED, count: int = COUNT
) -> Effects:
    """The effects from the network's predictions and one pass of the members."""
    if network.likelihood.name == "gaussian":
        raise ValueError("`helped_and_hurt` ranks items by the probability of their class: a regression has none.")
    labels, both = members.labels, (network.log_probs, calibrator(members.averaged))
    before, after = (log_probs.argmax(dim=1) for log_probs in both)
    log_likelihoods = [log_probs.gather(1, labels[:, None]).squeeze(1).double() for log_probs in both]
    was, now = (log_likelihood.exp() for log_likelihood in log_likelihoods)
    order = (now - was).argsort(descending=True, stable=True)
    counts = torch.bincount(labels.cpu(), minlength=both[1].shape[1])
    sums = (torch.bincount(labels.cpu(), -each.cpu(), minlength=len(counts)) for each in log_likelihoods)

    def effect(i: int) -> Effect:
        each = tuple(members.member_log_likelihoods[:, i].double().exp().tolist())
        return Effect(i, int(labels[i]), int(before[i]), int(after[i]), float(was[i]), float(now[i]), each)

    return Effects(
        helped=tuple(effect(i) for i in order[:count].tolist() if now[i] > was[i]),
        hurt=tuple(effect(i) for i in order.flip(0)[:count].tolist() if now[i] < was[i]),
        items=len(labels),
        gained=int((now > was).sum()),
        lost=int((now < was).sum()),
        corrected=int(((before != labels) & (after == labels)).sum()),
        spoiled=int(((before == labels) & (after != labels)).sum()),
        classes=ClassEffects(counts, *(total / counts for total in sums)),
        temperature=getattr(calibrator, "temperature", 1.0),
    )


def inputs_of(batches: Batches, wanted: Collection[int], count: int) -> dict[int, Tensor]:
    """The inputs with these numbers; none if they are not tensors, or not one for each of `count` items.

    In a segmentation an item is a pixel and has no input of its own.
    """
    found, start = dict[int, Tensor](), 0
    for inputs, _ in batches:
        known = inputs if isinstance(inputs, Tensor) else ()
        found |= {k: known[k - start] for k in wanted if start <= k < start + len(known)}
        start += len(known)
    return found if start == count else {}


def with_images(effects: Effects, inputs: Mapping[int, Tensor]) -> Effects:
    """The same effects, each item with the picture of its input if that is an image."""
    from peppermill.report.thumbnail import thumbnail  # only here does an evaluation draw something

    def pictured(shown: Iterable[Effect]) -> tuple[Effect, ...]:
        return tuple(replace(e, image=thumbnail(inputs[e.item]) if e.item in inputs else None) for e in shown)

    return replace(effects, helped=pictured(effects.helped), hurt=pictured(effects.hurt))
