"""Table 2 on small data: every column, every kind of row, a run that is killed, and stages that do not fit."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

import peppermill as pm
from experiments import table2
from experiments.settings import Settings, paper_layers
from experiments.table2.methods import METHODS, SCORES, item_tests
from experiments.table2.work import Work
from tests.experiments.conftest import tiny, write_data


@pytest.fixture
def copied(whole: tuple[Settings, dict[str, Any]], tmp_path: Path) -> Settings:
    """A copy of the finished row, to change and to damage."""
    shutil.copytree(whole[0].checkpoints, tmp_path / "work")
    return replace(whole[0], out=tmp_path / "results", checkpoints=tmp_path / "work")


@pytest.mark.parametrize("row", ["fashion-mnist", "cifar100"])
@pytest.mark.slow
def test_a_row_has_every_column_with_every_score_of_every_model(data_folder: Path, tmp_path: Path, row: str) -> None:
    asked = tiny(data_folder, tmp_path, rows=(row,), models=1, epochs=1, size=2, items=20, our_tuning_size=2)
    table2.main(asked)
    check_the_row(asked, row)


def test_the_row_of_two_models_is_complete_too(whole: tuple[Settings, dict[str, Any]]) -> None:
    check_the_row(whole[0], "mnist-mlp")


def check_the_row(asked: Settings, row: str) -> None:
    found = json.loads((asked.out / f"table2-{row}.json").read_text())
    assert set(found["columns"]) == set(METHODS)
    for name, column in found["columns"].items():
        count = 3 if name == "deep_ensembles" else asked.models
        assert {score: len(values) for score, values in column["scores"].items()} == dict.fromkeys(SCORES, count)
    assert set(found["provenance"]) >= {"versions", "hardware", "time", "command"}
    trained = {"training", "training with dropout", f"training SWA {asked.swa}"}
    assert set(found["training"]) == trained
    assert set(found["seconds"]) == trained | set(METHODS)


@pytest.mark.parametrize(
    ("row", "layers"),
    [
        ("mnist-mlp", ["dense1.weight", "dense2.weight", "dense3.weight"]),
        ("mnist-cnn", ["conv2.weight", "dense1.weight", "dense2.weight"]),
        ("cifar10", ["dense1.weight"]),
        ("cifar100", ["dense1.weight"]),  # not the 100 outputs
    ],
)
def test_the_perturbed_layers_are_the_papers(row: str, layers: list[str]) -> None:
    network = Work(row, Settings()).build()
    assert [name for name, value in network.named_parameters() if paper_layers(name, value)] == layers


def test_the_columns_are_what_the_library_says_of_the_same_networks(whole: tuple[Settings, dict[str, Any]]) -> None:
    """Temperature, PEP by a golden section of nine steps, the race, and the deep ensemble of all networks."""
    settings, found = whole
    work = Work("mnist-mlp", settings)
    validation, test, columns = work.data.validation, work.data.test, found["columns"]
    for index, (seed, network) in enumerate(zip(settings.seeds, work.networks, strict=True)):
        warm = pm.evaluate(pm.fit_temperature(network, validation), test, bins=20)
        for score in SCORES:
            assert columns["temperature"]["scores"][score][index] == pytest.approx(getattr(warm, score).value, rel=1e-4)
        noise = pm.Noise("gaussian", antithetic=False, seed=seed)
        search = pm.Golden(iterations=9, lower=0.0, upper=0.1)
        layers = r"^dense\d\.weight$"
        pep = pm.fit(network, validation, parameters=layers, size=10, noise=noise, search=search)
        assert columns["pep"]["sigma"][index] == pytest.approx((pep.search.lower + pep.search.upper) / 2)
        chosen = pm.evaluate(
            pm.calibrate(network, validation, settings.our_tuning_size, noise=pm.Noise(seed=seed)), test
        )
        assert columns["race"]["scores"]["nll"][index] == pytest.approx(chosen.nll.value, rel=1e-4)
        joint = columns["pep_temperature"]
        assert joint["scores"]["nll"][index] == pytest.approx(columns["temperature"]["scores"]["nll"][index], abs=0.5)
    ensemble = pm.predict(pm.DeepEnsemble(work.networks), test)
    nll = pm.metrics.nll(ensemble.log_probs, ensemble.labels)
    assert columns["deep_ensembles"]["scores"]["nll"] == pytest.approx([nll] * 3, rel=1e-5)


def test_a_run_killed_at_any_moment_ends_with_the_same_table(
    data_folder: Path, tmp_path: Path, whole: tuple[Settings, dict[str, Any]]
) -> None:
    """In training, at a column, in training with dropout, at a later column: each run goes on until the next kill."""
    asked = tiny(data_folder, tmp_path)
    said: list[str] = []
    for kill in ("seed 18: epoch  2", ": baseline", "dropout, seed 18: epoch  1", ": pep_default"):

        def say(text: str, kill: str = kill) -> None:
            said.append(text)
            if kill in text:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            table2.main(replace(asked, say=say))
        assert kill in said[-1]
        assert not (tmp_path / "results").exists()
    found = table2.main(replace(asked, say=said.append))["mnist-mlp"]
    assert found["columns"] == whole[1]["columns"]
    assert found["training"] == whole[1]["training"]
    assert sum("training, seed 17: epoch  1" in line for line in said) == 1  # it was kept
    assert table2.main(replace(asked, say=said.append))["mnist-mlp"] == found
    assert said[-1].startswith("MNIST (MLP): done, in")


def test_a_choice_of_the_race_is_kept_for_a_run_that_continues(copied: Settings) -> None:
    """The file of the first network is read, whatever it says; the second one, which is not there, is made again."""
    work = Work("mnist-mlp", copied)
    first, second = sorted(work.stages.folder.glob("mnist-mlp-race-4-*.json"))
    pm.PepEnsemble.at_sigma(work.networks[0], 0.125, size=3).save(first)
    before = second.read_text()
    second.unlink()
    kept, again = METHODS["race"](work)
    assert (kept.sigma, kept.size) == (0.125, 3)
    assert json.loads(second.read_text())["sigma"] == json.loads(before)["sigma"] == again.sigma


def test_another_schedule_of_swa_changes_only_its_column(
    copied: Settings, whole: tuple[Settings, dict[str, Any]]
) -> None:
    said: list[str] = []
    other = table2.main(replace(copied, swa="plain:start=1", say=said.append))["mnist-mlp"]
    assert [line for line in said if "NLL" in line and ": swa:" not in line] == []
    assert [name for name in METHODS if other["columns"][name] != whole[1]["columns"][name]] == ["swa"]


def test_a_column_that_a_finished_row_does_not_have_is_added_to_it(
    copied: Settings, whole: tuple[Settings, dict[str, Any]]
) -> None:
    """Only the networks are trained again, and they must be those of the other columns."""
    path, told = copied.out / "table2-mnist-mlp.json", "made earlier"
    row = json.loads((whole[0].out / path.name).read_text()) | {"note": told}
    del row["columns"]["race"], row["tests_over_items"]["race - baseline"]
    path.parent.mkdir()
    path.write_text(json.dumps(row))
    for stage in (copied.checkpoints / "table2").glob("*dropout*"):
        stage.unlink()
    said: list[str] = []
    found = table2.main(replace(copied, say=said.append))["mnist-mlp"]
    assert found["columns"] == whole[1]["columns"]
    assert found["tests_over_items"] == whole[1]["tests_over_items"]
    assert (found["note"], found["earlier"]) == (told, [row["provenance"]])
    assert not any("dropout" in line for line in said)
    row["columns"]["baseline"]["scores"]["nll"][0] += 0.1
    path.write_text(json.dumps(row))
    with pytest.raises(ValueError, match=r"the networks of .*table2-mnist-mlp\.json had other test NLLs"):
        table2.main(copied)


def test_stages_made_from_other_data_are_refused(copied: Settings, tmp_path: Path) -> None:
    """The same folder of checkpoints, other images; and fewer of the same images."""
    other = write_data(tmp_path / "other", seed=1)
    for changed in (replace(copied, data=other), replace(copied, items=50)):
        with pytest.raises(ValueError, match=r"mnist-mlp-.* was made from other data: delete it, or name another"):
            table2.main(changed)


@pytest.mark.parametrize(
    "damage", [lambda text: text[: len(text) // 2], lambda text: text.replace('"over"', '"under"'), lambda text: "[]"]
)
def test_a_damaged_stage_is_named(copied: Settings, damage: Any) -> None:
    stage = copied.checkpoints / "table2" / "mnist-mlp-baseline.json"
    stage.write_text(damage(stage.read_text()))
    with pytest.raises(ValueError, match=r"mnist-mlp-baseline\.json is damaged .*: delete it to compute it again"):
        table2.main(copied)


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ValueError, match="there is no row 'mnist' in Table 2: choose from mnist-mlp"):
        Settings(rows=("mnist",))
    with pytest.raises(ValueError, match=r"`learning_rate=-1` must be above 0 and finite"):
        Settings(learning_rate=-1.0)
    with pytest.raises(ValueError, match="`device='gpu'` cannot be used here: try `--device cpu`"):
        Settings(device="gpu")


def test_tests_over_items_are_paired(whole: tuple[Settings, dict[str, Any]]) -> None:
    """Against scipy, which computes the same statistic from both samples; the normal law replaces Student's."""
    items = {"baseline": [0.5, 1.5, 0.25, 2.0, 0.75], "temperature": [0.75, 1.0, 0.5, 1.25, 0.5]}
    columns = {name: {"nll_by_item": values} for name, values in items.items()}
    found = item_tests(columns)["temperature - baseline"]
    expected = stats.ttest_rel(items["temperature"], items["baseline"])
    assert found["difference"] / found["standard_error"] == pytest.approx(expected.statistic)
    assert found["p"] == pytest.approx(2 * stats.norm.sf(abs(expected.statistic)))
    named = whole[1]["tests_over_items"]
    assert len(named) == 2 * (len(METHODS) - 1)
    means = {name: sum(column["scores"]["nll"]) / 2 for name, column in whole[1]["columns"].items()}
    difference = means["pep_default"] - means["baseline"]
    assert named["pep_default - baseline"]["difference"] == pytest.approx(difference, abs=1e-5)
