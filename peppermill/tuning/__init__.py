"""Eq. 8: the searches for sigma*, one row for each."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from peppermill.passes import Request
    from peppermill.tuning.result import SigmaSearch


class SigmaTuner(Protocol):
    """A search for sigma*, with its settings."""

    def tune(self, request: Request, joint: bool = False) -> SigmaSearch:
        """The best sigma, or the best sigma and T; sigma = 0 always competes."""
        ...


@dataclass(frozen=True)
class SearchRow:
    """One search: its name, a line of help, and the class that implements it."""

    name: str
    help: str
    place: str  # module:class, imported when the search is used


#: The searches by name. A new one is one file and one row.
SEARCHES = {
    row.name: row
    for row in (
        SearchRow("two_stage", "a subsample, then a few passes over all items", "peppermill.tuning.two_stage:TwoStage"),
        SearchRow("golden", "the paper's golden section, eleven passes or more", "peppermill.tuning.golden:Golden"),
    )
}
OTHER_NAMES = {"quick": "two_stage"}  # names of version one


def usual_items(tuner: SigmaTuner, items: int | None, size: int, joint: bool) -> int | None:
    """Forward passes of one item that a search of size m usually needs, for its progress; None if nobody knows."""
    passes = getattr(tuner, "usual_passes", None)
    return round(items * size * passes(items, joint)) if items and passes else None


def search_named(name: str | None, **settings: Any) -> SigmaTuner:
    """The search of this name with these settings, None meaning the default; `iterations` alone mean golden section."""
    given = {setting: value for setting, value in settings.items() if value is not None}
    name = name or ("golden" if "iterations" in given else "two_stage")
    row = SEARCHES.get(OTHER_NAMES.get(name, name))
    if row is None:
        raise ValueError(f"`search={name!r}` is unknown: choose one of {', '.join(SEARCHES)}.")
    if row.name != "golden" and "iterations" in given:
        raise ValueError(
            f'`iterations={given["iterations"]}` is for the golden section: leave it out, or use `search="golden"`.'
        )
    module, _, kind = row.place.partition(":")
    made: SigmaTuner = getattr(import_module(module), kind)(**given)
    return made
