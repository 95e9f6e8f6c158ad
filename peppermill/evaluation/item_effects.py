"""Who is helped and who is hurt: the items whose true class gains or loses most probability (Figure 2c)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from peppermill.data import Batches
from peppermill.ensemble import PepEnsemble
from peppermill.likelihood import temper
from peppermill.old_engines.loop import MemberPass
from peppermill.parts import part_of
from peppermill.predictions import Predictions, predict
from peppermill.processes.messages import every
from peppermill.processes.together import together
from peppermill.report.thumbnail import thumbnail
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
        """What the true class gains in probability."""
        return self.ensemble - self.network


@dataclass(frozen=True)
class ClassEffects:
    """Of each class, [K]: its items, and their mean negative log-likelihood under the network and the ensemble.

    NaN where a class has no item.
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


@together
def helped_and_hurt(pep: PepEnsemble, data: Data | Batches, *, count: int = COUNT, images: bool = True) -> Effects:
    """The `count` items that the ensemble helps most and those that it hurts most, against its own network.

    With `images`, each has a small picture, where the inputs are images and there is one item for each.
    """
    batches = data if isinstance(data, Batches) else Batches(data, pep.model)
    network = predict(pep.model, batches, likelihood=pep.likelihood)
    found = effects_of(network, pep.member_pass(batches), pep.temperature, count)
    return with_images(found, batches) if images else found


def effects_of(network: Predictions, members: MemberPass, temperature: float = 1.0, count: int = COUNT) -> Effects:
    """The effects from what was already computed: the network's predictions and one pass of the members."""
    if network.likelihood.name == "gaussian":
        raise ValueError("`item_effects` ranks items by the probability of their class: a regression has none.")
    labels = members.labels
    averaged = temper(members.averaged, temperature)
    before, after = network.log_probs.argmax(dim=1), averaged.argmax(dim=1)
    likelihoods = [p.gather(1, labels[:, None]).squeeze(1).double() for p in (network.log_probs, averaged)]
    was, now = (log_likelihood.exp() for log_likelihood in likelihoods)
    order = (now - was).argsort(descending=True, stable=True)

    def effect(i: int) -> Effect:
        said = tuple(members.member_log_likelihoods[:, i].double().exp().tolist())
        return Effect(i, int(labels[i]), int(before[i]), int(after[i]), float(was[i]), float(now[i]), said)

    ranked, reverse = order[:count].tolist(), order.flip(0)[:count].tolist()
    return Effects(
        helped=tuple(effect(i) for i in ranked if now[i] > was[i]),
        hurt=tuple(effect(i) for i in reverse if now[i] < was[i]),
        items=len(labels),
        gained=int((now > was).sum()),
        lost=int((now < was).sum()),
        corrected=int(((before != labels) & (after == labels)).sum()),
        spoiled=int(((before == labels) & (after != labels)).sum()),
        classes=_by_class(averaged.shape[1], labels, *likelihoods),
        temperature=temperature,
    )


def with_images(effects: Effects, batches: Batches) -> Effects:
    """The same effects, each item with its picture; unchanged where the inputs are no images."""
    chosen = {effect.item for effect in (*effects.helped, *effects.hurt)}
    pictures = _pictures(batches, chosen, effects.items)

    def pictured(shown: Iterable[Effect]) -> tuple[Effect, ...]:
        return tuple(replace(effect, image=pictures.get(effect.item)) for effect in shown)

    return replace(effects, helped=pictured(effects.helped), hurt=pictured(effects.hurt))


def _pictures(batches: Batches, chosen: set[int], items: int) -> dict[int, str | None]:
    """The pictures of the chosen items; none where items and inputs are not one to one, as pixels and images are not.

    Of several processes each draws those in its part.
    """
    part = part_of(batches)
    start = offset = part.offset or 0
    found: dict[int, Tensor] = {}
    for inputs, _ in part:
        known = inputs if isinstance(inputs, Tensor) else ()
        found |= {item: known[item - start] for item in chosen if start <= item < start + len(known)}
        start += len(known)
    everybodys = every("pictures", [start - offset, {item: thumbnail(value) for item, value in found.items()}])
    one_to_one = sum(seen for seen, _ in everybodys) == items
    return {int(item): picture for _, drawn in everybodys if one_to_one for item, picture in drawn.items()}


def _by_class(classes: int, labels: Tensor, network: Tensor, ensemble: Tensor) -> ClassEffects:
    """From ln L_i, [N], under the network and under the ensemble."""

    def total(values: Tensor) -> Tensor:
        return torch.zeros(classes, dtype=torch.float64, device=labels.device).index_add_(0, labels, values)

    items = total(torch.ones_like(network))
    return ClassEffects(items.long(), -total(network) / items, -total(ensemble) / items)
