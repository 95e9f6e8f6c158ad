"""Every experiment runs tiny, on data in the published formats, and says what it claims to say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from peppermill.paper import figure1, figure2, figure3, noise_laws, ood, training
from peppermill.paper.work import Settings, tiny

pytestmark = pytest.mark.filterwarnings("ignore::peppermill.PepWarning")  # on so few items noise may not help


def settings(folder: Path, out: Path, **changes: Any) -> Settings:
    return tiny(Settings(data=folder, out=out, checkpoints=out / "work", say=lambda text: None), **changes)


def test_figure_1_has_the_ensemble_its_members_and_the_network_itself(data_folder: Path, tmp_path: Path) -> None:
    curve = figure1.Curve("mnist-mlp", size=3, sigmas=(0.01, 0.05))
    figure1.main(settings(data_folder, tmp_path), curve)
    points = json.loads((tmp_path / "figure1.json").read_text())["sweep"]["points"]
    assert [point["sigma"] for point in points] == [0, 0.01, 0.05]
    for point in points:  # the logarithm is concave: an ensemble is at least as good as its members on average
        assert len(point["member_log_likelihoods"]) == 3
        assert point["log_likelihood"] >= np.mean(point["member_log_likelihoods"]) - 1e-9


def test_figure_2_shows_mistakes_that_only_the_ensemble_gets_right(data_folder: Path, tmp_path: Path) -> None:
    overfitted = settings(data_folder, tmp_path, epochs=20)
    found = figure2.main(overfitted, figure2.Pictures("mnist-mlp", size=4))
    assert set(found["reliability"]) == {"network", "temperature scaling", "PEP", "PEP with temperature"}
    assert all(sum(table["count"]) == 100 for table in found["reliability"].values())
    assert len(found["corrected"]) == min(6, found["mistakes"]["corrected"]) > 0
    for one in found["corrected"]:
        assert one["predicted"] != one["label"]
        assert one["ensemble"] == pytest.approx(np.mean(one["members"]), rel=1e-4)


def test_figure_3_keeps_every_point_of_every_epoch(data_folder: Path, tmp_path: Path) -> None:
    asked = settings(data_folder, tmp_path, rows=("mnist-mlp",))
    found = figure3.main(asked)["experiments"]["mnist-mlp"]
    assert [(p["seed"], p["epoch"]) for p in found["points"]] == [(s, e) for e in (1, 2) for s in (17, 18, 19)]
    again = figure3.main(asked)["experiments"]["mnist-mlp"]
    assert again == found


def test_figure_3_keeps_the_experiments_of_a_run_before_unless_its_settings_were_others(
    data_folder: Path, tmp_path: Path
) -> None:
    first = figure3.main(settings(data_folder, tmp_path, rows=("mnist-mlp",)))["experiments"]
    both = figure3.main(settings(data_folder, tmp_path, rows=("cifar10",)))["experiments"]
    assert list(both) == ["cifar10", "mnist-mlp"]
    assert both["mnist-mlp"] == first["mnist-mlp"]
    elsewhere = settings(data_folder, tmp_path, rows=("cifar10",), size=2, checkpoints=tmp_path / "other")
    other = figure3.main(elsewhere)["experiments"]
    assert list(other) == ["cifar10"]


def test_figure_3_takes_any_row_of_table_2_after_its_own(data_folder: Path, tmp_path: Path) -> None:
    asked = settings(data_folder, tmp_path, rows=("fashion-mnist", "mnist-mlp"), validation=20, epochs=1)
    assert list(figure3.main(asked)["experiments"]) == ["mnist-mlp", "fashion-mnist"]


def test_figure_3_has_no_correlation_of_a_single_point(data_folder: Path, tmp_path: Path) -> None:
    asked = settings(data_folder, tmp_path, rows=("mnist-mlp",), seeds=(17,), epochs=1)
    found = figure3.main(asked)["experiments"]["mnist-mlp"]
    assert len(found["points"]) == 1
    assert figure3.interval(found["correlations"]["overfitting and sigma"]) == "none"


def test_figure_3_killed_while_it_looks_goes_on_there(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "PATIENCE", -1.0)  # a checkpoint after every epoch
    whole = figure3.main(settings(data_folder, tmp_path / "whole", rows=("mnist-mlp",), epochs=4))
    look, looked = figure3._after_epoch, list[int]()

    def killed(epoch: int, *arguments: Any) -> Any:
        looked.append(epoch)
        if looked == [1, 2, 3]:
            raise KeyboardInterrupt
        return look(epoch, *arguments)

    monkeypatch.setattr(figure3, "_after_epoch", killed)
    asked = settings(data_folder, tmp_path / "killed", rows=("mnist-mlp",), epochs=4)
    with pytest.raises(KeyboardInterrupt):
        figure3.main(asked)
    assert figure3.main(asked)["experiments"]["mnist-mlp"]["points"] == whole["experiments"]["mnist-mlp"]["points"]
    assert looked == [1, 2, 3, 3, 4]
    for gone in (asked.folder / "figure3-mnist-mlp.json", asked.folder / "figure3-mnist-mlp-2.json"):
        gone.unlink()
    with pytest.raises(ValueError, match=r"is gone: delete .*figure3-mnist-mlp\.safetensors too, and run again"):
        figure3.main(asked)


def test_the_correlations_are_those_of_scipy_over_all_points() -> None:
    generator = np.random.default_rng(3)
    drawn = generator.uniform(0.1, 1, size=(20, 4)).tolist()
    points = [figure3.Point(17, 1, *one) for one in drawn]
    found = figure3.correlations(points)
    training, test, pep, sigma = np.array(drawn).T
    expected = {"overfitting and effect": test - pep, "overfitting and sigma": sigma}
    for name, values in expected.items():
        assert found[name]["rho"] == pytest.approx(stats.spearmanr(test - training, values).statistic)
        assert found[name]["lower"] < found[name]["rho"] < found[name]["upper"]


def test_uniform_and_gaussian_noise_are_compared_model_by_model(data_folder: Path, tmp_path: Path) -> None:
    found = noise_laws.main(settings(data_folder, tmp_path, rows=("mnist-mlp",)))
    gaussian, uniform = (np.array(found["laws"][law]["nll"]) for law in ("gaussian", "uniform"))
    assert len(gaussian) == 3
    assert not np.array_equal(gaussian, uniform)
    assert found["difference"]["mean"] == pytest.approx((uniform - gaussian).mean())
    assert found["p_value"] == pytest.approx(stats.ttest_rel(uniform, gaussian).pvalue)


def test_out_of_distribution_needs_an_epoch() -> None:
    with pytest.raises(ValueError, match="`epochs=0` must be at least 1"):
        ood.Settings(epochs=0)


def test_ood_scores_every_method_and_continues_after_a_kill(data_folder: Path, tmp_path: Path) -> None:
    base = ood.Settings(data=data_folder, out=tmp_path, checkpoints=tmp_path / "work", say=lambda text: None)
    small = ood.tiny(base)
    found = ood.main(small)
    assert set(found["methods"]) == {"network", "temperature scaling", "PEP", "PEP with temperature"}
    assert found["items"]["inside"] + found["items"]["outside"] == 100
    assert all(0 <= one["auroc"] <= 1 and one["kl"] >= 0 for one in found["methods"].values())
    assert "KL(p||q) + KL(q||p)" in found["definition"]
    assert ood.main(small)["methods"] == found["methods"]
