"""One row is enough: what is added to a registry is known to the library, its messages, its help and its pages.

A row of `metrics.SCORES` is followed into every table in report/test_score_row.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch

import peppermill as pm
from peppermill.calibrators import CALIBRATORS, CalibratorRow
from peppermill.engines import ENGINES, PRECISIONS, LazyRow
from peppermill.likelihood import LIKELIHOODS
from peppermill.noise import LAWS
from peppermill.predictors import PREDICTORS, PredictorRow
from peppermill.tuning import SEARCHES
from peppermill.types import CalibratorName, EngineName, LawName, LikelihoodLike, Precision, SearchName
from peppermill.views import VIEWS, View

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "scripts"))

import update_docs  # noqa: E402


def signs(words):
    """+1 or -1, with equal chances: mean 0 and variance 1."""
    return [1.0 - 2.0 * (word & 1).double() for word in words]


def test_a_law_is_one_row(monkeypatch, overfitted):
    monkeypatch.setitem(LAWS, "signs", signs)
    model, validation, _ = overfitted
    pep = pm.fit(model, validation, size=2, noise="signs")
    assert pep.recipe.noise.law == "signs"
    assert set(pep.perturbation.direction(0)["0.weight"].unique().tolist()) == {-1.0, 1.0}
    with pytest.raises(ValueError, match="choose one of gaussian, uniform, signs"):
        pm.fit(model, validation, noise="cauchy")


def test_an_engine_is_one_row(monkeypatch, overfitted):
    row = LazyRow("slow", "the loop under another name", "peppermill.engines.loop:loop")
    monkeypatch.setitem(ENGINES, "slow", row)
    model, validation, _ = overfitted
    expected = pm.fit(model, validation, size=2, engine="loop")
    assert pm.fit(model, validation, size=2, engine="slow").sigma == expected.sigma
    with pytest.raises(ValueError, match=r"`engine='fast'` is unknown: choose one of auto, .*, slow"):
        expected.with_engine("fast")


def test_a_search_is_one_row(monkeypatch, overfitted):
    row = LazyRow("classic", "golden section under another name", "peppermill.tuning.golden:Golden")
    monkeypatch.setitem(SEARCHES, "classic", row)
    model, validation, _ = overfitted
    expected = pm.fit(model, validation, size=2, search="golden")
    assert pm.fit(model, validation, size=2, search="classic").sigma == expected.sigma
    with pytest.raises(ValueError, match=r"`search='best'` is unknown: choose one of two_stage, golden, classic"):
        pm.fit(model, validation, search="best")


def test_a_view_is_one_row(monkeypatch, overfitted, tmp_path):
    monkeypatch.setitem(VIEWS, "rolled", View("rolled", "rolled by one", lambda x: x.roll(1, dims=-1)))
    model, validation, _ = overfitted
    pep = pm.fit(model, validation, size=2, views="rolled")
    pep.save(tmp_path / "pep.json")
    assert [view.name for view in pm.load(tmp_path / "pep.json", model).recipe.views] == ["identity", "rolled"]
    with pytest.raises(ValueError, match=r"`views='turned'` is unknown: choose from .*, rolled, or give a function"):
        pm.fit(model, validation, views="turned")


def test_rows_are_in_the_help_of_the_command_line():
    """In a process of its own, which adds the rows before the command is imported."""
    code = """
from peppermill.engines import ENGINES, LazyRow
from peppermill.noise import LAWS
from peppermill.tuning import SEARCHES
from peppermill.views import VIEWS, View
VIEWS["rolled"] = View("rolled", "rotund", None)
LAWS["signs"] = type("Signs", (), {"__doc__": "plusminus"})
ENGINES["slow"] = LazyRow("slow", "leisurely", "")
SEARCHES["classic"] = LazyRow("classic", "antiquated", "")
from peppermill.cli.app import app
app(["fit", "--help"])
"""
    environment = {**os.environ, "COLUMNS": "200", "PYTHONPATH": str(ROOT)}
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment).stdout
    words = ("signs", "plusminus", "slow", "leisurely", "classic", "antiquated", "rolled", "rotund")
    assert [word for word in words if word not in shown] == []


@pytest.mark.parametrize(
    ("table", "row"),
    [
        (CALIBRATORS, CalibratorRow("none", "nothing at all", "temperature:temperature_scaling", lambda k: 0)),
        (PREDICTORS, PredictorRow("oracle", "knows everything", torch.nn.Identity)),
        (ENGINES, LazyRow("slow", "the loop under another name", "peppermill.engines.loop:loop")),
        (SEARCHES, LazyRow("classic", "golden section under another name", "peppermill.tuning.golden:Golden")),
        (VIEWS, View("rolled", "rolled by one", torch.nn.Identity())),
    ],
)
def test_a_row_is_in_the_pages(monkeypatch, table, row):
    monkeypatch.setitem(table, row.name, row)
    assert f"| `{row.name}` | {row.help} |" in update_docs.registries()


def test_a_law_is_in_the_pages_with_the_first_line_of_its_docstring(monkeypatch):
    monkeypatch.setitem(LAWS, "signs", signs)
    assert "| `signs` | +1 or -1, with equal chances: mean 0 and variance 1. |" in update_docs.registries()


@pytest.mark.parametrize("table", [CALIBRATORS, PREDICTORS, ENGINES, SEARCHES, VIEWS])
def test_every_row_has_its_name_and_a_line_of_help(table):
    for name, row in table.items():
        assert row.name == name
        assert row.help
        assert "\n" not in row.help
        assert len(row.help) < 80


def literals(kind):
    """The strings that a type takes."""
    return [text for part in get_args(kind) for text in ([part] if isinstance(part, str) else literals(part))]


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (LawName, LAWS),
        (SearchName, SEARCHES),
        (CalibratorName, CALIBRATORS),
        (LikelihoodLike, LIKELIHOODS),
        (Precision, PRECISIONS),
        (EngineName, [*ENGINES, *(f"{name}:{low}" for low in PRECISIONS for name in ENGINES)]),
    ],
)
def test_type_checkers_and_editors_know_every_name(kind, names):
    assert literals(kind) == list(names)


def test_a_precision_in_the_name_of_an_engine_is_understood_everywhere(overfitted, tmp_path):
    model, validation, _ = overfitted
    pep = pm.PepEnsemble.at_sigma(model, 0.01, size=2, engine="loop:bfloat16")
    pep.save(tmp_path / "pep.json")
    for found in (
        pep,
        pep.with_engine("auto:bfloat16"),
        pm.load(tmp_path / "pep.json", model, engine="loop:bfloat16"),
        pm.calibrate(model, validation, passes=1, engine="loop:bfloat16"),
    ):
        assert found.engine.precision == "bfloat16"
    with pytest.raises(ValueError, match="`precision='int3'` is unknown: choose one of bfloat16, float16"):
        pep.with_engine("loop:int3")
