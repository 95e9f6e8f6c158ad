"""`peppermill paper ...`: what the options of an experiment say reaches the experiment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from peppermill.cli.app import app
from peppermill.cli.experiments import SHARED, settings_from
from peppermill.paper.machine import Machine
from peppermill.paper.work import Settings

TRAINING = ("table2", "swa", "figure1", "figure2", "figure3", "noise")


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["paper", *map(str, arguments)])


@pytest.mark.parametrize("experiment", TRAINING)
def test_every_experiment_that_trains_refuses_to_train_no_network(experiment: str) -> None:
    found = run(experiment, "--models", 0)
    assert found.exit_code == 2
    assert "error: `--models 0` must be at least 1." in found.stderr


@pytest.mark.parametrize("experiment", [*TRAINING, "ood", "table1"])
def test_every_experiment_refuses_an_arithmetic_that_there_is_not(experiment: str) -> None:
    found = run(experiment, "--precision", "int8")
    assert found.exit_code == 2
    assert "error: `precision='int8'` must be float32, tf32 or bfloat16." in found.stderr


@pytest.mark.parametrize("experiment", [*TRAINING, "ood", "table1"])
@pytest.mark.parametrize("option", ["--device", "--out", "--checkpoints"])
def test_every_experiment_refuses_at_once_what_it_cannot_use(tmp_path: Path, experiment: str, option: str) -> None:
    """No data are there: whoever looked for them first would speak of them."""
    (tmp_path / "file").touch()
    given, message = {
        "--device": ("gpu", "error: `--device gpu` cannot be used here: try `--device cpu`."),
        "--out": (tmp_path / "file", "file/result.json cannot be written"),
        "--checkpoints": (tmp_path / "file", "file/result.json cannot be written"),
    }[option]
    found = run(experiment, "--data", tmp_path, option, given)
    assert found.exit_code == 2
    assert message in found.stderr


def test_a_tiny_run_keeps_away_from_the_files_of_a_whole_one() -> None:
    said = {name: default for name, (_, default) in SHARED.items()} | {"tiny": True, "models": 2}
    found = settings_from(**said)
    assert (found.out, found.checkpoints) == (Path(".local/paper/tiny"), Path(".local/paper/tiny"))
    assert settings_from(**said | {"out": Path("mine")}).out == Path("mine")
    assert found.seeds == (17, 18)


@pytest.mark.parametrize("rows", ["", " , "])
def test_no_row_is_a_mistake(rows: str) -> None:
    found = run("table2", "--rows", rows)
    assert found.exit_code == 2
    assert f"error: `--rows '{rows}'` names no row of Table 2: choose from mnist-mlp," in found.stderr


def test_every_shared_option_reaches_the_settings() -> None:
    said = {"models": 2, "device": "cuda:1", "graphs": False, "precision": "float32", "compiled": True}
    said |= {"rows": " cifar10, mnist-mlp,", "data": Path("d"), "out": Path("o"), "checkpoints": Path("c")}
    said |= {"learning_rate": 1e-3}
    assert {*said, "tiny"} == set(SHARED)
    found = settings_from(**said, tiny=False)  # type: ignore[arg-type]
    assert found.rows == ("cifar10", "mnist-mlp")
    assert found.seeds == (17, 18)
    assert found.machine == Machine("cuda:1", graphs=False, precision="float32", compiled=True)
    assert (found.data, found.out, found.checkpoints) == (Path("d"), Path("o"), Path("c"))
    assert found.learning_rate == 1e-3
    assert settings_from(**said, tiny=True).epochs == 2 < found.epochs  # type: ignore[arg-type]


def test_the_options_default_to_what_the_settings_do() -> None:
    assert replace(settings_from(**{name: default for name, (_, default) in SHARED.items()}), say=print) == Settings()


@pytest.mark.parametrize(("experiment", "option"), [("figure1", "--network"), ("figure2", "--row"), ("noise", "--row")])
def test_an_option_of_an_experiment_s_own_stands_beside_the_shared_ones(
    tmp_path: Path, experiment: str, option: str
) -> None:
    found = run(experiment, option, "mnist-mlpp", "--tiny", "--out", tmp_path)
    assert found.exit_code == 2
    assert "there is no row 'mnist-mlpp'" in found.stderr


def test_an_experiment_says_which_defaults_are_its_own() -> None:
    """25 networks for a table (Section 3.2), one for a curve; the seeds are the authors', 17 to 41."""
    for experiment, models in (("table2", 25), ("figure1", 1), ("figure3", 5)):
        shown = " ".join(run(experiment, "--help").stdout.replace("│", " ").split())
        assert f"with seeds 17, 18, ... [default: {models}]" in shown
        assert "--settings" not in shown
