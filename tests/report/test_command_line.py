"""From a network and two npz files to the page, on the command line alone."""

import numpy as np
import pytest
from typer.testing import CliRunner

import peppermill as pm
from peppermill.cli.app import app

from . import small_runs
from .small_runs import CLASS_NAMES, images_and_labels, overconfident_network


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a factory of the small network, its data and the names of its classes."""
    (tmp_path / "stripes.py").write_text(f"from {small_runs.__name__} import overconfident_network as make\n")
    for k, name in enumerate(("validation", "test")):
        images, labels = images_and_labels(200, seed=k)
        np.savez(tmp_path / f"{name}.npz", x=images.numpy(), y=labels.numpy())
    (tmp_path / "names.txt").write_text("\n".join(CLASS_NAMES) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*words):
    found = CliRunner().invoke(app, list(words))
    return found.exit_code, " ".join(found.output.split())


def test_fit_evaluate_and_report_in_three_commands(folder):
    assert invoke("fit", "python:stripes:make", "npz:validation.npz", "--size", "4")[0] == 0
    more = ["--sweep", "npz:validation.npz", "--class-names", "names.txt", "--out", "run.json"]
    code, output = invoke("evaluate", "python:stripes:make", "npz:test.npz", "--pep", "pep.json", *more)
    assert (code, output.endswith("wrote run.json. Next: peppermill report run.json")) == (0, True)
    assert invoke("report", "run.json")[0] == 0
    content, pep = pm.read_run("run.json"), pm.load("pep.json", overconfident_network())
    assert content["class_names"] == list(CLASS_NAMES)
    assert pep.sigma in [point["sigma"] for point in content["sweep"]["points"]]
    assert all(effect["image"] for effect in content["effects"]["helped"])
    assert (folder / "report.html").stat().st_size < 6_000_000


def test_pictures_can_be_kept_out_of_the_file(folder):
    invoke("fit", "python:stripes:make", "npz:validation.npz", "--size", "4")
    invoke("evaluate", "python:stripes:make", "npz:test.npz", "--pep", "pep.json", "--no-images", "--out", "run.json")
    content = pm.read_run("run.json")
    assert {effect["image"] for effect in (*content["effects"]["helped"], *content["effects"]["hurt"])} == {None}
    assert content["sweep"] is None


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--sweep", "npz:validation.npz"), "`--sweep` shows the noise of an ensemble: name it with `--pep pep.json`."),
        (("--class-names", "missing.txt"), "invalid value for '--class-names': file 'missing.txt' does not exist"),
    ],
)
def test_options_that_do_not_fit_are_named(folder, more, message):
    code, output = invoke("evaluate", "python:stripes:make", "npz:test.npz", *more)
    assert code == 2
    assert message in output
