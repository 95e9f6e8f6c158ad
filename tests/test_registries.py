"""One row is enough: a law, a calibrator or a predictor that is added to its table is known everywhere."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import peppermill as pm
from peppermill.calibrators import CALIBRATORS, Calibrator
from peppermill.noise import LAWS, Law
from peppermill.predictors import PREDICTORS, PredictorRow

sys.path.append(str(Path(__file__).parents[1] / "scripts"))

import update_docs


def signs(words):
    """+1 or -1, with equal chances: mean 0 and variance 1."""
    return [1.0 - 2.0 * (word & 1).double() for word in words]


def test_a_law_is_one_row(monkeypatch, overfitted):
    monkeypatch.setitem(LAWS, "signs", Law("signs", "plus or minus one", signs))
    model, validation, _ = overfitted
    pep = pm.fit(model, validation, size=2, noise="signs")
    assert pep.recipe.noise.law == "signs"
    assert set(pep.perturbation.direction(0)["0.weight"].unique().tolist()) == {-1.0, 1.0}
    with pytest.raises(ValueError, match="choose one of gaussian, uniform, signs"):
        pm.fit(model, validation, noise="cauchy")


@pytest.mark.parametrize(
    ("table", "row"),
    [
        (LAWS, Law("signs", "plus or minus one", signs)),
        (CALIBRATORS, Calibrator("none", "nothing at all", lambda *given: (1.0, 0.0))),
        (PREDICTORS, PredictorRow("oracle", "oracle", "knows everything", torch.nn.Identity)),
    ],
)
def test_a_row_is_in_the_pages(monkeypatch, table, row):
    monkeypatch.setitem(table, row.name, row)
    assert f"| `{row.name}` | {row.help} |" in update_docs.registries()


@pytest.mark.parametrize("table", [LAWS, CALIBRATORS, PREDICTORS])
def test_every_row_has_its_name_and_a_line_of_help(table):
    for name, row in table.items():
        assert row.name == name
        assert row.help
        assert "\n" not in row.help
        assert len(row.help) < 80
