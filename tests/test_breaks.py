"""Tests that pass prove little until they have been seen to fail: each deliberate break makes one fail."""

import pytest
from breaks import BREAKS, ROOT, first_failure


def test_every_break_finds_its_text_once():
    found = {broken.name: (ROOT / "peppermill" / broken.file).read_text().count(broken.text) for broken in BREAKS}
    assert {name: count for name, count in found.items() if count != 1} == {}


@pytest.mark.breaks
@pytest.mark.parametrize("broken", BREAKS, ids=lambda broken: broken.name)
def test_a_deliberate_break_makes_a_test_fail(broken):
    assert first_failure(broken) is not None
