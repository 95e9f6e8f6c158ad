"""Tables in Markdown, and Holm's correction of the p-values in them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

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
