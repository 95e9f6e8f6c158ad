"""Eq. 8: the searches for sigma*, one row for each, and what their user should know about a result."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from peppermill.calibrators.temperature import warn_at_limit
from peppermill.engines import LazyRow
from peppermill.noise import Noise
from peppermill.plumbing.warnings import warn_user

if TYPE_CHECKING:
    from peppermill.passes import Request
    from peppermill.tuning.result import SigmaSearch


class SigmaTuner(Protocol):
    """A search for sigma*, with its settings."""

    def tune(self, request: Request, joint: bool = False) -> SigmaSearch:
        """The best sigma, or the best sigma and T; sigma = 0 always competes."""


#: The searches by name. A new one is one file and one row.
SEARCHES = {
    row.name: row
    for row in (
        LazyRow("two_stage", "a subsample, then a few passes over all items", "peppermill.tuning.two_stage:TwoStage"),
        LazyRow("golden", "the paper's golden section, eleven passes or more", "peppermill.tuning.golden:Golden"),
    )
}
OTHER_NAMES = {"quick": "two_stage"}  # names of version one
OLD_KEYWORDS = ("antithetic", "seed", "lower", "upper", "iterations", "precision")  # of version one's `fit`


def usual_items(tuner: SigmaTuner, items: int | None, size: int, joint: bool) -> int | None:
    """Forward passes of one item that a search of size m usually needs, for its progress; None if nobody knows."""
    passes = getattr(tuner, "usual_passes", None)
    return round(items * size * passes(items, joint)) if items and passes else None


def search_named(name: str | SigmaTuner | None, **settings: Any) -> SigmaTuner:
    """A search itself, or the one of this name, with these settings; None is golden section if it has `iterations`."""
    given = {setting: value for setting, value in settings.items() if value is not None}
    if name is not None and not isinstance(name, str):
        return replace(name, **given) if given else name  # type: ignore[type-var]
    name = name or ("golden" if "iterations" in given else "two_stage")
    row = SEARCHES.get(OTHER_NAMES.get(name, name))
    if row is None:
        raise ValueError(f"`search={name!r}` is unknown: choose one of {', '.join(SEARCHES)}.")
    if row.name != "golden" and "iterations" in given:
        raise ValueError(
            f'`iterations={given["iterations"]}` is for the golden section: leave it out, or use `search="golden"`.'
        )
    made: SigmaTuner = row.load()(**given)
    return made


def from_old_keywords(noise: Any, search: Any, old: dict[str, Any]) -> tuple[Noise, SigmaTuner]:
    """The settings that version one's keywords stand for; they work for one more release."""
    for name in old.keys() - set(OLD_KEYWORDS):
        raise TypeError(f"fit() got an unexpected keyword argument {name!r}")
    for_noise = {name: old[name] for name in ("antithetic", "seed") if name in old}
    for_search = {name: old[name] for name in ("lower", "upper", "iterations") if name in old}
    noise = replace(noise if isinstance(noise, Noise) else Noise(noise), **for_noise)
    search = search_named(None if search == "two_stage" else search, **for_search)
    new = ([f"noise=pm.{noise}"] if for_noise else []) + ([f"search=pm.{search}"] if for_search else [])
    message = f"{', '.join(old)} of `fit` will be removed in the next release: write `{', '.join(new)}`."
    warnings.warn(message, FutureWarning, stacklevel=3)
    return noise, search


def check_interval(lower: float | None, upper: float | None) -> None:
    """Refuse what is not an interval of sigma."""
    if lower is not None and not 0 <= lower < math.inf:
        raise ValueError(f"`lower={lower}` must be a size of noise, zero or positive.")
    if upper is not None and not (lower or 0.0) < upper < math.inf:
        raise ValueError(f"`lower={lower or 0.0}` must be below `upper={upper}`: exchange them or widen the interval.")


def warn_about(search: SigmaSearch, tuner: SigmaTuner) -> None:
    """Warn if noise does not help, if sigma or T sits at an end of its interval, and if L(sigma) has two peaks."""
    sigma, gain = search.best.sigma, search.gain * search.items
    ends = [(name, getattr(tuner, name, None)) for name in ("upper", "lower")]
    edges = [f"`{name}={end:g}`" for name, end in ends if end and math.isclose(sigma, end)]
    if sigma == 0:
        warn_user(
            "noise does not help here: no sigma that was tried beats sigma = 0 on the validation data, so the "
            f"ensemble is the network without noise{', with a temperature' if search.joint else ''}."
        )
    elif edges:
        warn_user(
            f"the best sigma, {sigma:.3g}, sits at {edges[0]}: widen the interval, or leave it out and `fit` finds one."
        )
    if gain > 0 and count_peaks(search.points, depth=0.05 * gain) > 1:
        warn_user(
            "L(sigma) has more than one peak on the validation data, and the search may have found the lower one: look "
            "at `pm.sweep_sigma`, and use more members (`size`) or more validation items."
        )
    if search.joint:
        warn_at_limit(search.best.temperature)


def count_peaks(points: tuple[tuple[float, float], ...], depth: float) -> int:
    """The number of maxima among the points; a valley shallower than `depth` does not separate two."""
    values = [value for _, value in sorted(points)]
    peaks, climbing, extreme = 0, True, values[0]
    for value in values:
        if climbing and value < extreme - depth:
            peaks, climbing, extreme = peaks + 1, False, value
        elif not climbing and value > extreme + depth:
            climbing, extreme = True, value
        extreme = max(extreme, value) if climbing else min(extreme, value)
    return peaks + climbing
