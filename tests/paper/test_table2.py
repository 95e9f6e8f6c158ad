"""Table 2 on small data: every column, every row, and a run that is killed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import peppermill as pm
from peppermill.cli.app import app
from peppermill.paper import columns, table2, training
from peppermill.paper.columns import METHODS, SCORES
from peppermill.paper.rows import row_data, row_named
from peppermill.paper.stacked import unstack
from peppermill.paper.work import Settings, Work, tiny


def settings(folder: Path, out: Path, **changes: Any) -> Settings:
    base = Settings(data=folder, out=out / "results", checkpoints=out / "work", say=lambda text: None)
    return tiny(base, **changes)


@pytest.mark.parametrize(
    ("row", "changes"),
    [
        ("mnist-mlp", {}),
        ("fashion-mnist", {"validation": 20, "epochs": 1, "size": 2, "our_tuning_size": 2, "dropout_passes": 1}),
        ("cifar100", {"epochs": 1, "size": 2, "our_tuning_size": 2}),
    ],
)
def test_a_row_has_every_column_with_every_score_of_every_model(
    data_folder: Path, tmp_path: Path, row: str, changes: dict[str, Any]
) -> None:
    table2.main(settings(data_folder, tmp_path, rows=(row,), **changes))
    found = json.loads((tmp_path / "results" / f"table2-{row}.json").read_text())
    assert set(found["columns"]) == set(METHODS)
    for name, column in found["columns"].items():
        count = 5 if name == "deep_ensembles" else 3
        assert {score: len(values) for score, values in column["scores"].items()} == dict.fromkeys(SCORES, count)
    assert set(found["provenance"]) >= {"versions", "hardware", "time"}
    assert {"training", "training with dropout", "baseline", "pep"} <= set(found["seconds"])


def test_the_columns_are_what_the_library_says_of_the_same_networks(data_folder: Path, tmp_path: Path) -> None:
    """Baseline, temperature, deep ensemble and MC dropout from the public functions, network by network."""
    asked = settings(data_folder, tmp_path, rows=("mnist-mlp",), ensemble_size=3, ensemble_draws=1)
    found = table2.main(asked)["mnist-mlp"]["columns"]
    row = row_named("mnist-mlp")
    data = row_data(row, data_folder, "cpu", asked.validation)
    state = Work("mnist-mlp", row, asked, data).baseline().state
    models = [unstack(row.build(), state, index) for index in range(3)]
    validation, test = (data.validation.images, data.validation.labels), (data.test.images, data.test.labels)
    for index, model in enumerate(models):
        scores = pm.evaluate(model, test)
        warm = pm.evaluate(pm.fit_temperature(model, validation), test)
        for score in SCORES:
            assert found["baseline"]["scores"][score][index] == pytest.approx(getattr(scores, score).value, rel=1e-4)
            assert found["temperature"]["scores"][score][index] == pytest.approx(getattr(warm, score).value, rel=1e-3)
    ensemble = pm.evaluate(pm.DeepEnsemble(models), test)
    assert found["deep_ensembles"]["scores"]["nll"][0] == pytest.approx(ensemble.nll.value, rel=1e-5)


def test_mc_dropout_of_the_stack_agrees_with_mc_dropout_of_a_network(data_folder: Path, tmp_path: Path) -> None:
    """Other masks, the same law: with 400 passes each the NLL agrees to what so many passes leave open."""
    asked = settings(data_folder, tmp_path, rows=("mnist-mlp",), dropout_passes=400)
    row = row_named("mnist-mlp")
    data = row_data(row, data_folder, "cpu", asked.validation)
    work = Work("mnist-mlp", row, asked, data)
    together = columns.mc_dropout(work)["scores"]["nll"]
    alone = unstack(row.build(dropout=True), work.with_dropout().state, 1)
    expected = pm.evaluate(pm.McDropout(alone, 400), (data.test.images, data.test.labels)).nll.value
    assert together[1] == pytest.approx(expected, abs=0.02)
    assert abs(together[0] - together[1]) > 0.02  # which would not pass for another network


@pytest.mark.parametrize(
    "kill", ["training: epoch  2", "baseline", "training with dropout: epoch  2", "swa", "pep_kernels"]
)
def test_a_run_killed_at_any_moment_ends_with_the_same_table(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill: str, whole: dict[str, Any]
) -> None:
    monkeypatch.setattr(training, "PATIENCE", 0.0)

    def say(text: str) -> None:
        if kill in text:
            raise KeyboardInterrupt

    asked = settings(data_folder, tmp_path, rows=("mnist-mlp",))
    with pytest.raises(KeyboardInterrupt):
        table2.main(replace(asked, say=say))
    assert not (tmp_path / "results").exists()
    said: list[str] = []
    found = table2.main(replace(asked, say=said.append))["mnist-mlp"]
    assert found["columns"] == whole["columns"]
    assert found["training"] == whole["training"]
    again = table2.main(replace(asked, say=said.append))["mnist-mlp"]
    assert again["columns"] == whole["columns"]
    assert said[-1].startswith("MNIST (MLP): done, in")


@pytest.fixture(scope="module")
def whole(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same row, never killed."""
    return table2.main(settings(data_folder, tmp_path_factory.mktemp("whole"), rows=("mnist-mlp",)))["mnist-mlp"]


def test_another_schedule_of_swa_changes_only_its_column(
    data_folder: Path, tmp_path: Path, whole: dict[str, Any]
) -> None:
    asked = settings(data_folder, tmp_path, rows=("mnist-mlp",))
    table2.main(asked)
    said: list[str] = []
    other = table2.main(replace(asked, swa="plain:start=1", say=said.append))["mnist-mlp"]
    assert [line for line in said if "NLL" in line and ": swa:" not in line] == []
    different = [name for name in METHODS if other["columns"][name] != whole["columns"][name]]
    assert different == ["swa"]
    trained = {"training", "training with dropout", "training SWA plain:start=1"}
    assert set(other["training"]) == trained  # and not by the schedule before
    assert set(other["seconds"]) == trained | set(METHODS)


def test_a_damaged_stage_is_named(data_folder: Path, tmp_path: Path) -> None:
    asked = settings(data_folder, tmp_path, rows=("mnist-mlp",))
    asked.folder.mkdir(parents=True)
    (asked.folder / "mnist-mlp-baseline.json").write_text('{"settings": ')
    with pytest.raises(ValueError, match=r"mnist-mlp-baseline.json is damaged .*: delete it to compute it again"):
        table2.main(asked)


def test_other_layers_change_pep_and_not_the_networks(data_folder: Path, tmp_path: Path, whole: dict[str, Any]) -> None:
    asked = settings(data_folder, tmp_path, rows=("mnist-mlp",), perturbed=r"^output\.weight$", epochs=2)
    found = table2.main(asked)["mnist-mlp"]
    assert found["row_settings"]["perturbed"] == r"^output\.weight$"
    assert found["columns"]["pep"]["sigma"] != whole["columns"]["pep"]["sigma"]
    assert found["columns"]["baseline"] == whole["columns"]["baseline"]
    assert found["columns"]["pep_kernels"] == whole["columns"]["pep_kernels"]


@pytest.mark.parametrize(
    ("perturbed", "message"),
    [
        ("conv9", r"`perturbed='conv9'` matches no kernel of MNIST \(MLP\): it has dense1.weight, dense2.weight"),
        ("(", r"`perturbed='\('` is no regular expression: missing \)"),
    ],
)
def test_layers_that_there_are_not_are_refused_before_anything_is_trained(
    tmp_path: Path, perturbed: str, message: str
) -> None:
    """No data are there: whoever looked for them first would speak of them."""
    with pytest.raises(ValueError, match=message):
        table2.main(settings(tmp_path, tmp_path, rows=("mnist-mlp",), perturbed=perturbed))


def test_another_learning_rate_changes_the_networks_without_dropout_alone(
    data_folder: Path, tmp_path: Path, whole: dict[str, Any]
) -> None:
    found = table2.main(settings(data_folder, tmp_path, rows=("mnist-mlp",), learning_rate=1e-4))["mnist-mlp"]
    assert found["row_settings"]["learning_rate"] == 1e-4
    assert found["columns"]["baseline"] != whole["columns"]["baseline"]
    assert found["columns"]["mc_dropout"] == whole["columns"]["mc_dropout"]
    with pytest.raises(ValueError, match=r"`learning_rate=0` must be above 0 and finite: 5e-4, say."):
        settings(data_folder, tmp_path, learning_rate=0.0)


def test_unknown_rows_and_short_data_are_refused(data_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no row 'svhn' in Table 2: choose from mnist-mlp"):
        table2.main(settings(data_folder, tmp_path, rows=("svhn",)))
    with pytest.raises(ValueError, match="`validation=500` leaves nothing of the 240 training images of mnist"):
        table2.main(settings(data_folder, tmp_path, rows=("mnist-mlp",), validation=500))


def test_the_command_line_runs_a_row(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["paper", "table2", "--rows", "mnist-mlp", "--tiny", "--data", str(data_folder)]
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 0, found.output
    assert not (tmp_path / "results").exists()  # which are those of a whole run
    content = json.loads((tmp_path / ".local" / "paper" / "tiny" / "table2-mnist-mlp.json").read_text())
    assert content["columns"] == whole["columns"]
    assert content["settings"]["seeds"] == [17, 18, 19]
