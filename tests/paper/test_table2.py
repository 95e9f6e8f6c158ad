"""Table 2 on small data: every column, every row, and a run that is killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peppermill.paper import table2
from peppermill.paper.columns import METHODS, SCORES
from peppermill.paper.work import Settings, tiny


def settings(folder: Path, out: Path, **changes: object) -> Settings:
    base = Settings(data=folder, out=out / "results", checkpoints=out / "work", say=lambda text: None)
    return tiny(base, **changes)


@pytest.mark.parametrize("row", ["mnist-mlp", "fashion-mnist", "cifar100"])
def test_a_row_has_every_column_with_every_score_of_every_model(data_folder: Path, tmp_path: Path, row: str) -> None:
    table2.main(settings(data_folder, tmp_path, rows=(row,)))
    found = json.loads((tmp_path / "results" / f"table2-{row}.json").read_text())
    assert set(found["columns"]) == set(METHODS)
    for name, column in found["columns"].items():
        count = 5 if name == "deep_ensembles" else 3
        assert {score: len(values) for score, values in column["scores"].items()} == dict.fromkeys(SCORES, count)
