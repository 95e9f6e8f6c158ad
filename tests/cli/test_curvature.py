"""`peppermill curvature`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import peppermill as pm
from peppermill.cli.app import app
from peppermill.curvature.analysis import EffectPoint
from peppermill.report import figures

MODULE = """
import torch
from torch import nn

def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))

def data():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(60, 4, generator=generator), torch.randint(3, (60,), generator=generator)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "curved.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_prints_writes_and_draws_what_the_library_says(folder: Path) -> None:
    asked = ["curvature", "python:curved:network", "python:curved:data", "--probes", "8", "--size", "6"]
    result = CliRunner().invoke(app, [*asked, "--out", "c.json", "--picture", "c.svg"])
    assert result.exit_code == 0, result.output
    names: dict[str, object] = {}
    exec(MODULE, names)
    expected = pm.local_analysis(names["network"]().eval(), names["data"](), probes=8)  # type: ignore[operator]
    content = json.loads((folder / "c.json").read_text())
    found = content["curvature"]
    for name in ("laplacian", "fisher_trace", "effect_rate", "effect_rate_error", "step"):
        assert found[name] == getattr(expected, name)
    assert found["believable_range"] == list(expected.believable_range)
    assert found["sigmas"][3] == pytest.approx(expected.believable_range[1])
    assert found["predicted"][0] == pytest.approx(
        expected.predicted_effect(expected.believable_range[1] / 4), rel=1e-12
    )
    assert content["provenance"]["commit"] is None or len(content["provenance"]["commit"]) == 12
    for text in ("Laplacian of the log-likelihood", "exact", f"{expected.effect_rate:.5g}", "of lowest likelihood"):
        assert text in result.output
    assert "measured" in (folder / "c.svg").read_text()
    assert CliRunner().invoke(app, ["info", "c.json"]).exit_code == 0


def test_sigmas_may_be_given_and_mistakes_have_one_line(folder: Path) -> None:
    asked = ["curvature", "python:curved:network", "python:curved:data", "--probes", "8", "--size", "6", "--sigmas"]
    result = CliRunner().invoke(app, [*asked, "0.01,0.02"])
    assert result.exit_code == 0
    assert "0.02" in result.output
    result = CliRunner().invoke(app, [*asked, "a,b"])
    assert result.exit_code == 2
    assert "`--sigmas a,b` must be numbers separated by commas" in " ".join(result.output.split())


def test_the_picture_shows_both_curves_and_the_believable_range() -> None:
    points = [EffectPoint(s, 100 * s**2, 5 * s**2, 90 * s**2, 3 * s**2) for s in (0.1, 0.2, 0.4)]
    axis = figures.effect_curves(points, items=10, upper=0.2).axes[0]
    predicted, measured = axis.lines[0], axis.containers[0].lines[0]
    assert float(predicted.get_ydata()[-1]) == pytest.approx(100 * 0.16 / 10)
    assert list(measured.get_ydata()) == pytest.approx([0.09, 0.36, 1.44])
    assert axis.patches[0].get_width() == pytest.approx(0.2)
