from __future__ import annotations

from pathlib import Path

import pytest
from breaks import BREAKS, ROOT


@pytest.mark.parametrize(("name", "file", "text", "broken", "tests"), BREAKS)
def test_a_deliberate_break_finds_what_it_breaks_and_has_a_row_in_the_table(name, file, text, broken, tests):
    """Run by hand, they would otherwise be out of date before anybody looks."""
    assert text in (ROOT / "peppermill" / file).read_text()
    assert text != broken
    assert (ROOT / "tests" / tests).exists()
    assert f"| {name} |" in Path(ROOT, "tests", "README.md").read_text()
