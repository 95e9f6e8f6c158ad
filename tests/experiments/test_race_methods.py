"""The experiment on the race: which splits and seeds run, and what their page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import race
from experiments.resume import read_result

pytestmark = pytest.mark.filterwarnings("ignore::peppermill.PepWarning")  # 100 images are few


def test_seeds_splits_and_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first split runs with every seed, the second with its own; T is tuned once a split; the page has each row."""
    monkeypatch.setattr(race, "PAGE", tmp_path / "race.md")
    said: list[str] = []
    settings = race.Settings(
        out=tmp_path,
        checkpoints=tmp_path,
        splits=2,
        noise_seeds=2,
        images=200,
        passes=2,
        additions=False,
        say=said.append,
    )
    race.main(settings)
    assert [line.split(":")[0] for line in said] == [
        "demo, split 1, noise 1",
        "demo, split 1, noise 2",
        "demo, split 2, noise 2",
    ]
    found = read_result(tmp_path / "race-demo.json", race.KIND)
    assert found is not None
    assert found["runs"] == 3
    assert found["methods"]["temperature scaling"]["passes"] == 1
    assert found["methods"]["temperature scaling"]["over seeds"] == 0 <= found["methods"]["PEP, T"]["over seeds"]
    page = (tmp_path / "race.md").read_text()
    assert found["methods"].keys() == {name for name in race.WITHOUT_ADDITIONS if "mirror" not in name}
    assert all(f"| {name} |" in page for name in found["methods"])
    assert "Splits of 200 images: 2; seeds of the noise on the first one: 2." in page
