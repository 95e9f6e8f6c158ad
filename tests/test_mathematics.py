"""docs/the_mathematics.md names every equation of the paper once, and functions that exist."""

import re
from importlib import import_module
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "the_mathematics.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (A?\d+(?:–A?\d+)?) \|.*?\|(.*)\|$", PAGE.partition("## Figures")[0], re.MULTILINE)
ROWS += re.findall(r"^\| (A\d+(?:–A\d+)?) \|.*?\|(.*)\|$", PAGE, re.MULTILINE)
FUNCTIONS = sorted(set(re.findall(r"`((?:\w+\.)+\w+)`", PAGE.partition("## What one pass")[0])))


def equations(prefix: str) -> list[int]:
    """The numbers of the rows, with ranges written out."""
    found = []
    for row, _ in ROWS:
        first, _, last = row.replace("A", "").partition("–")
        found += range(int(first), int(last or first) + 1) if row.startswith("A") == (prefix == "A") else []
    return found


def test_every_equation_of_the_paper_is_there_once():
    """20 in the text, 34 in the appendix, whose numbers begin again."""
    assert equations("") == list(range(1, 21))
    assert equations("A") == list(range(1, 35))


@pytest.mark.parametrize(("row", "functions"), ROWS, ids=[row for row, _ in ROWS])
def test_an_equation_has_a_function_or_a_reason(row, functions):
    assert functions.strip().startswith(("`", "none: ", "none in "))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_named_function_exists(name):
    parts = name.split(".")
    for place in range(len(parts) - 1, 0, -1):
        try:
            thing = import_module(f"peppermill.{'.'.join(parts[:place])}")
        except ModuleNotFoundError:
            continue
        for part in parts[place:]:
            thing = getattr(thing, part)
        return
    raise AssertionError(f"there is no module in peppermill.{name}")
