"""How results show themselves: a table as aligned text, the same as HTML for notebooks, and a small curve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import zip_longest
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type[Any])

WIDTH, HEIGHT, MARGIN = 360, 140, 18  # of a curve, in pixels


@dataclass(frozen=True)
class Table:
    """Columns and rows of texts, of one or more lines each; a title above, a note below, and points of a curve."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    note: str = ""
    curve: Sequence[tuple[float, float]] = ()

    def __str__(self) -> str:
        cells = [[text.split("\n") for text in row] for row in (self.columns, *self.rows) if self.rows]
        widths = [max(len(line) for row in cells for line in row[k]) for k in range(len(self.columns))]
        blocks = []
        for row in cells:
            lines = zip_longest(*row, fillvalue="")
            padded = ["  ".join(text.ljust(w) for text, w in zip(line, widths, strict=True)).rstrip() for line in lines]
            blocks.append("\n".join(padded) + "\n" * (len(padded) > 1))
        return "\n".join(filter(None, [self.title, "\n".join(blocks), self.note]))

    def html(self) -> str:
        """The table, and the curve below it; every text is escaped."""
        head = "".join(f"<th>{escape(text)}</th>" for text in self.columns)
        rows = ("".join(f"<td>{escape(text)}</td>".replace("\n", "<br>") for text in row) for row in self.rows)
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if self.rows else ""
        title, note = (f"<p>{escape(text)}</p>" if text else "" for text in (self.title, self.note))
        return title + table + note + (curve_of(self.curve) if len(self.curve) > 2 else "")


def shows_table(shown: Class) -> Class:
    """Give a class with a method `table` its `repr`, and the HTML that a notebook shows."""
    methods: Any = shown
    methods.__repr__ = lambda self: str(self.table())
    methods._repr_html_ = lambda self: self.table().html()
    return shown


def curve_of(points: Sequence[tuple[float, float]]) -> str:
    """L(sigma) as a small SVG: the points, a line through them, the best one larger; a deep fall is cut off."""
    known = sorted((x, y) for x, y in points if math.isfinite(y))
    (left, base), (right, _), (best, top) = known[0], known[-1], max(known, key=lambda point: point[1])
    low = max(min(y for _, y in known), 2 * base - top - 0.1 * abs(top))  # as far below sigma = 0 as the best is above

    def place(x: float, y: float) -> tuple[float, float]:
        down = (top - max(y, low)) / ((top - low) or 1.0)
        across = (x - left) / ((right - left) or 1.0)
        return MARGIN + across * (WIDTH - 2 * MARGIN), MARGIN + down * (HEIGHT - 2 * MARGIN)

    places = [place(*point) for point in known]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="#0072B2"/>' for x, y in places)
    x, y = place(best, top)
    words = f"L(sigma) from sigma = {left:.3g} to {right:.3g}, best at {best:.4g}"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{words}">'
        f'<polyline points="{line}" fill="none" stroke="#0072B2" stroke-width="2"/>{dots}'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="none" stroke="#D55E00" stroke-width="2.5"/>'
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 3}" text-anchor="middle" font-size="11" fill="currentColor">{words}</text>'
        "</svg>"
    )
