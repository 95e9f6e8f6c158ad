"""Tables in Markdown, what they call a network, and Holm's correction of the p-values in them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from experiments.settings import ROWS
from experiments.table1.imagenet_networks import NETWORKS

Key = TypeVar("Key", bound=Hashable)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A head, a rule and one line for each row."""
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def holm(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """The p-values after Holm's correction for their number."""
    order, found, largest = sorted(p_values, key=p_values.__getitem__), dict[Key, float](), 0.0
    for rank, key in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[key]))
        found[key] = largest
    return found


def title_of(name: str) -> str:
    """What a page calls a network of Table 1, a row of Table 2, or the demo's."""
    if name in NETWORKS:
        return NETWORKS[name].title
    return f"{ROWS[name].title} (Table 2)" if name in ROWS else f"The {name} network"


def p_text(p: float) -> str:
    """A p-value with two digits; one that underflows is not shown as zero."""
    return f"p = {p:.2g}" if p > 0 else "p < 1e-300"
