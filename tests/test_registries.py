"""One row is enough: a law, a calibrator or a predictor that is added to its table is known everywhere."""

from __future__ import annotations

import pytest
import torch

import peppermill as pm
from peppermill.calibrators import CALIBRATORS, Calibrator, calibrator_named
from peppermill.noise import LAWS, Law
from peppermill.predictors import PREDICTORS, PredictorRow, predictor_named


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


def test_a_calibrator_is_one_row(monkeypatch):
    monkeypatch.setitem(CALIBRATORS, "none", Calibrator("none", "nothing at all", lambda *given: (1.0, 0.0)))
    assert calibrator_named("none").fit(torch.zeros(1, 2), torch.zeros(1), None) == (1.0, 0.0)
    with pytest.raises(ValueError, match="choose one of temperature, none"):
        calibrator_named("platt")


def test_a_predictor_is_one_row(monkeypatch):
    monkeypatch.setitem(PREDICTORS, "oracle", PredictorRow("oracle", "oracle", "knows everything", torch.nn.Identity))
    assert predictor_named("oracle").title == "oracle"
    with pytest.raises(ValueError, match=r"choose one of single_network, .*, oracle"):
        predictor_named("crystal_ball")


@pytest.mark.parametrize("table", [LAWS, CALIBRATORS, PREDICTORS])
def test_every_row_has_its_name_and_a_line_of_help(table):
    for name, row in table.items():
        assert row.name == name
        assert row.help
        assert "\n" not in row.help
        assert len(row.help) < 80
