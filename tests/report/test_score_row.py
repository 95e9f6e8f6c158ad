"""A new score is one row of `metrics.SCORES`: it then appears wherever scores are listed, without another edit."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import peppermill as pm
from peppermill.cli.app import app
from peppermill.report.page import payload
from peppermill.report.run import plain, run_table

from . import small_runs
from .small_runs import images_and_labels, overconfident_network
from .test_page import Reader, squeezed


@pytest.fixture
def accuracy(monkeypatch):
    """The share of correct items, in percent, of which more is better."""
    row = pm.metrics.Score(
        "accuracy",
        "Hits",
        "share of hits",
        lambda predictions, _: 1 - pm.metrics.item_errors(predictions.log_probs, predictions.labels),
        percent=True,
        decimals=3,
        lower_is_better=False,
        binary=True,
    )
    monkeypatch.setitem(pm.metrics.SCORES, row.name, row)


@pytest.fixture
def run(accuracy):
    network, data = overconfident_network(), images_and_labels(200, 0)
    pep = pm.fit(network, data, size=4)
    sweep = pm.sweep_around(pep, data)
    return pm.record_run({"network": network, "PEP": pep}, data, title="a run", sweep=sweep)


def test_it_is_evaluated_compared_and_swept(run):
    first, second = run.methods
    point = run.sweep.points[2]
    assert point.accuracy == pytest.approx(1 - point.error)
    assert first.scores.accuracy.value == pytest.approx(1 - first.scores.error.value)
    assert second.comparison.accuracy.value == pytest.approx(-second.comparison.error.value)
    assert second.comparison.accuracy.test == "McNemar"


def test_it_is_in_the_table_of_a_run_file(run, tmp_path):
    pm.write_run(run, tmp_path / "run.json")
    content = pm.read_run(tmp_path / "run.json")
    value = run.methods[0].scores.accuracy.value
    assert run_table(content).columns == ["method", "NLL", "Brier", "ECE % (20 bins)", "error %", "AURC %", "Hits %"]
    assert run_table(content).rows[0][-1].split("\n")[0] == f"{100 * value:.1f}"
    swept = run.sweep.table()
    assert swept.columns[-2] == "Hits %"
    assert swept.rows[0][-2] == f"{100 * run.sweep.points[0].accuracy:.1f}"


def test_it_is_on_the_page(run, tmp_path):
    """Tile, sentence, slider and table; of several runs also in the comparison."""
    found = Reader(pm.write_report(run, tmp_path / "one.html").read_text(encoding="utf-8"))
    text = squeezed(found.text)
    before, after = (f"{100 * method.scores.accuracy.value:.1f}\u00a0%" for method in run.methods)
    assert f"its share of hits goes from {before} to {after} (Hits; " in found.text
    assert f"Share of hits Hits {squeezed(after)} was {squeezed(before)}" in text
    assert "Smaller is better in every column but Hits" in text
    assert "share of hits, Hits" in text
    assert {"accuracy"} <= {attrs.get("data-score") for _, attrs in found.elements}
    shown = json.loads(found.scripts[0])["runs"][0]["sweep"]
    assert shown["titles"]["accuracy"] == "Hits"
    assert shown["texts"][0]["values"]["accuracy"] == f"{100 * run.sweep.points[0].accuracy:.1f}\u00a0%"
    both = Reader(pm.write_report([run, run], tmp_path / "two.html").read_text(encoding="utf-8"))
    assert ("accuracy", "change") in {(a.get("data-score"), a.get("data-figure")) for _, a in both.elements}
    assert json.loads(both.scripts[0])["formats"]["accuracy"] == ".1%"


def test_more_of_it_is_better(run):
    """Where the accuracy rises, the slider shows the change as an improvement, and where it falls as a loss."""
    for texts, point in zip(payload(plain(run))["sweep"]["texts"], run.sweep.points, strict=True):
        assert texts["ways"]["accuracy"] == texts["ways"]["error"], point.sigma


def test_the_command_line_shows_it(accuracy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stripes.py").write_text(f"from {small_runs.__name__} import overconfident_network as make\n")
    images, labels = images_and_labels(60, seed=0)
    np.savez(tmp_path / "data.npz", x=images.numpy(), y=labels.numpy())
    for command in (["evaluate"], ["sweep", "--size", "2", "--sigmas", "0.1"]):
        found = CliRunner().invoke(app, [command[0], "python:stripes:make", "npz:data.npz", *command[1:]])
        assert (found.exit_code, "Hits %" in found.output) == (0, True)
