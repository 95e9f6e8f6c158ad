"""The generated parts of the pages are those that the code gives today."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import update_docs  # noqa: E402


@pytest.mark.parametrize(("page", "mark", "content"), update_docs.GENERATED, ids=lambda part: str(part)[:20])
def test_a_generated_part_is_current(page, mark, content):
    """`python scripts/update_docs.py` writes it."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert text == update_docs.updated(text, mark, content())
