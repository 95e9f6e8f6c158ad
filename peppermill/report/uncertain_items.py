"""Does uncertainty go with mistakes? A histogram of each measure, the most uncertain items, and maps over pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from peppermill import metrics
from peppermill.plumbing.nested import output_tensor
from peppermill.predictions import Predictions
from peppermill.report.thumbnail import heat, thumbnail
from peppermill.uncertainty import without_members

BINS = 20  # of each histogram
CARDS = 6  # items that are shown: two rows of three on a page
MAPS = 3  # pictures with a map
MAP_SIDE = 192  # pixels


def uncertain_items(method: str, found: Predictions) -> dict[str, Any] | None:
    """The panel of a classifier whose predictions know their uncertainty; None for any other.

    Measures that are the same for all items are left out. The most uncertain items have the largest mutual
    information, or entropy without members. Where an example has several items (pixels), examples are ranked by the
    mean of theirs.
    """
    if found.uncertainty is None or found.likelihood.name == "gaussian":
        return None
    values = {name: value for name, value in found.uncertainty.values.items() if bool(value.min() < value.max())}
    ranked = next((name for name in ("mutual_information", "entropy") if name in values), None)
    if ranked is None:
        return None
    confidence, right = metrics.top_label(found.log_probs, found.labels)
    value, examples = values[ranked], found.examples
    count = len(value) if examples is None else int(examples[-1]) + 1
    if examples is not None and count < len(value):  # pixels
        means = torch.zeros(count, dtype=value.dtype, device=value.device).index_add_(0, examples, value)
        means /= torch.bincount(examples)
        shown = [{"item": k, "value": float(means[k])} for k in _largest(means, MAPS)]
    else:
        columns = {"label": found.labels, "predicted": found.log_probs.argmax(dim=1), "confidence": confidence}
        columns["value"] = value
        shown = [
            {"item": k, **{name: column[k].item() for name, column in columns.items()}} for k in _largest(value, CARDS)
        ]
    return {
        "method": method,
        "items": len(right),
        "examples": count,
        "wrong": int((~right).sum()),
        "measures": [_histogram(name, value, right) for name, value in values.items()],
        "ranked": ranked,
        "shown": shown,
    }


def with_pictures(panel: Mapping[str, Any], predictor: Any, inputs: Mapping[int, Tensor], found: Predictions) -> Any:
    """The same panel with the picture of each card; an example of several items has a map over its picture."""
    shown = []
    for one in panel["shown"]:
        own, item = dict(one), inputs.get(one["item"])
        if item is not None and "label" in one:
            own["image"] = thumbnail(item)
        elif item is not None and (image := thumbnail(item, MAP_SIDE)):
            layer = _uncertainty(predictor, item[None], found).values[panel["ranked"]][0]
            own |= {"image": image, "heat": heat(layer / layer.max(), MAP_SIDE)} if layer.ndim == 2 else {}
        shown.append(own)
    return {**panel, "shown": shown}


@torch.no_grad()
def _uncertainty(predictor: Any, inputs: Tensor, found: Predictions) -> Any:
    if hasattr(predictor, "uncertainty"):
        return predictor.uncertainty(inputs)
    return without_members(found.likelihood.predict(output_tensor(predictor(inputs))), found.likelihood)


def _largest(values: Tensor, count: int) -> list[int]:
    return values.argsort(descending=True, stable=True)[:count].tolist()


def _histogram(name: str, value: Tensor, right: Tensor) -> dict[str, Any]:
    """Counts of right and wrong items in equal bins from 0, and how well the measure separates them."""
    value, right = value.double().cpu(), right.cpu()
    upper = 1.0 if name in ("confidence", "disagreement") else float(value.max())
    parts = {"right": value[right], "wrong": value[~right]}
    counts = {kind: torch.histc(part, BINS, 0.0, upper).long().tolist() for kind, part in parts.items()}
    sign = -1 if name == "confidence" else 1
    known = len(parts["right"]) and len(parts["wrong"])
    auroc = metrics.auroc(sign * parts["right"], sign * parts["wrong"]) if known else None
    return {"name": name, "upper": upper, **counts, "auroc": auroc}
