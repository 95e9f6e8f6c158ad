"""The probe over checkpoints, its errors and its pictures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy import stats
from torch import nn
from typer.testing import CliRunner

import peppermill as pm
from peppermill.cli.app import app
from peppermill.evaluation.overfitting import NAMES, ProbedCheckpoint, correlations, rank_correlation
from peppermill.report import figures as plots
from peppermill.sources.weight_files import read_checkpoint

MODULE = """
import torch
from torch import nn

def network():
    return nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, 3))

def half(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(60, 5, generator=generator)
    noisy = x[:, :3] + 1.5 * torch.randn(60, 3, generator=generator)
    return x, noisy.argmax(1)

def train(): return half(0)
def validation(): return half(1)
def test(): return half(2)
"""


@pytest.fixture
def series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a network that is overfitted further in each of five checkpoints, and its data."""
    (tmp_path / "overfitted.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(MODULE, names)
    torch.manual_seed(0)
    model: nn.Module = names["network"]()  # type: ignore[operator]
    x, y = names["train"]()  # type: ignore[operator]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for epoch in range(5):
        for _ in range(12):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        save_file(model.state_dict(), tmp_path / f"epoch-{epoch}.safetensors")
    return tmp_path


def arguments(files: list[Path]) -> list[str]:
    data = [part for name in ("train", "validation", "test") for part in (f"--{name}", f"python:overfitted:{name}")]
    return ["probe", *map(str, files), "--model", "python:overfitted:network", *data, "--size", "4", "--probes", "8"]


@pytest.mark.filterwarnings("ignore::peppermill.PepWarning")
def test_the_command_measures_every_checkpoint_and_draws_them_all(series: Path) -> None:
    files = sorted(series.glob("*.safetensors"))
    asked = [*arguments(files), "--out", "probe.json", "--picture", "probe.png"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    content = json.loads((series / "probe.json").read_text())
    points = content["overfitting"]["points"]
    assert [Path(point["name"]).name for point in points] == [file.name for file in files]
    assert content["provenance"]["seed"] == 0
    assert content["format"] == "peppermill run"
    assert (series / "probe.png").stat().st_size > 5000
    overfitting = [point["overfitting"] for point in points]
    for name in NAMES:
        values = [point["effect" if name == "pep_effect" else name] for point in points]
        expected = stats.spearmanr(overfitting, values).statistic
        assert content["overfitting"]["correlations"][name]["rho"] == pytest.approx(expected)
    assert overfitting == sorted(overfitting)  # trained further, overfitted further


@pytest.mark.filterwarnings("ignore::peppermill.PepWarning")
def test_a_point_holds_what_fit_evaluate_and_local_analysis_say_of_that_checkpoint(series: Path) -> None:
    names: dict[str, object] = {}
    exec(MODULE, names)
    model = names["network"]().eval()  # type: ignore[operator]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    data = {name: names[name]() for name in ("train", "validation", "test")}  # type: ignore[operator]
    states = {name: read_checkpoint(series / f"{name}.safetensors") for name in ("epoch-4", "epoch-0", "epoch-2")}
    states["epoch-4"] = {f"module.{name}": value for name, value in states["epoch-4"].items()}  # as DDP saves it
    found = pm.probe_overfitting(model, states, **data, size=4, probes=8)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [point.name for point in found.points] == list(states)
    model.load_state_dict(states["epoch-0"])
    point, pep = found.points[1], pm.fit(model, data["validation"], size=4)
    assert (point.sigma, point.test_nll) == (pep.sigma, pytest.approx(pm.evaluate(model, data["test"]).nll.value))
    assert point.pep_effect == pytest.approx(point.test_nll - pm.evaluate(pep, data["test"]).nll.value)
    local = pm.local_analysis(model, data["validation"], probes=8)
    assert (point.effect_rate, point.laplacian) == (local.effect_rate / 60, local.laplacian / 60)


def one_line_error(asked: list[str]) -> str:
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 2
    return " ".join(result.output.split())


def test_checkpoints_of_another_architecture_are_named_with_the_first_array_that_differs(series: Path) -> None:
    files = sorted(series.glob("*.safetensors"))
    state = read_checkpoint(files[1])
    save_file({**state, "2.weight": torch.zeros(4, 24), "2.bias": torch.zeros(4)}, files[1])
    text = one_line_error(arguments(files)).replace(f"{series}/", "")
    assert "epoch-1.safetensors does not fit this Sequential: size mismatch for 2.weight: " in text
    assert "torch.Size([4, 24]) from checkpoint, the shape in current model is torch.Size([3, 24])" in text
    save_file({name: value for name, value in state.items() if name != "0.bias"}, files[1])
    assert 'Missing key(s) in state_dict: "0.bias"' in one_line_error(arguments(files))
    save_file({**state, "extra": torch.zeros(1)}, files[0])
    text = one_line_error(arguments(files)).replace(f"{series}/", "")
    assert 'epoch-0.safetensors does not fit this Sequential: Unexpected key(s) in state_dict: "extra"' in text
    network = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, 3)).eval()
    data = torch.zeros(4, 5), torch.zeros(4, dtype=torch.long)
    states = {f"epoch {k}": read_checkpoint(file) for k, file in enumerate(files)}
    with pytest.raises(ValueError, match=r"epoch 0 does not fit this Sequential: Unexpected key"):
        pm.probe_overfitting(network, states, train=data, validation=data, test=data)


def test_two_checkpoints_are_too_few(series: Path) -> None:
    files = sorted(series.glob("*.safetensors"))[:2]
    assert "`checkpoints` has 2: give at least 3 different ones" in one_line_error(arguments(files))


def test_the_interval_of_a_rank_correlation_covers_95_times_in_100() -> None:
    """1,000 samples of 30 from a bivariate normal of correlation 0.7, whose Spearman's rho is 6/pi asin(0.35)."""
    generator = np.random.default_rng(0)
    rho = 6 / np.pi * np.arcsin(0.35)
    covered = 0
    for _ in range(1000):
        x = generator.standard_normal(30)
        found = rank_correlation(x, 0.7 * x + np.sqrt(1 - 0.49) * generator.standard_normal(30))
        covered += found.lower < rho < found.upper
    assert covered / 1000 == pytest.approx(0.95, abs=0.021)  # three standard deviations of such a count


def point(overfitting: float, sigma: float) -> ProbedCheckpoint:
    return ProbedCheckpoint("", 0.0, overfitting, overfitting - sigma, sigma, -1.0, 0.1, 2.0, overfitting, 0.1)


def test_a_quantity_that_never_changes_has_no_correlation_and_few_points_have_no_interval() -> None:
    found = correlations([point(0.1, 0.0), point(-0.2, 0.0), point(0.4, 0.0)])
    assert set(found) == {"effect_rate"}
    assert found["effect_rate"].rho == pytest.approx(1)
    few = rank_correlation([1.0, 2.0, 3.0], [1.0, 3.0, 2.0])
    assert (few.rho, few.lower, few.upper) == (pytest.approx(0.5), -1.0, 1.0)


def test_the_scatter_shows_every_point_negative_overfitting_and_no_noise_included(tmp_path: Path) -> None:
    points = (point(-0.2, 0.0), point(0.1, 0.001), point(0.4, 0.02), replace(point(0.5, 0.03), effect_rate=-3.0))
    figure = plots.overfitting_scatter(pm.OverfittingProbe(points, correlations(points)))
    for axis, name in zip(figure.axes, ("pep_effect", "sigma", "effect_rate"), strict=True):
        drawn = axis.collections[0].get_offsets()
        np.testing.assert_allclose(drawn, [[p.overfitting, getattr(p, name)] for p in points])
        assert axis.get_xlim()[0] < -0.2
    plots.save_figure(figure, tmp_path / "scatter.svg")
    assert "rank correlation" in (tmp_path / "scatter.svg").read_text()
