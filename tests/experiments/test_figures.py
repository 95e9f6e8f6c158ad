"""Figures 1 to 3, the noise laws and the out-of-distribution experiment run tiny and say what they claim to say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Generator, nn

from experiments import figure1, figure2, figure3, noise_laws, out_of_distribution
from experiments.image_sets import read_image_set
from experiments.out_of_distribution import five_classes, shifted_and_mirrored
from experiments.wide_resnet import WideResNet, initialize


def places(folder: Path, out: Path) -> dict[str, Any]:
    return {"data": folder, "out": out, "checkpoints": out / "work", "say": lambda text: None}


def test_figure_1_has_the_ensemble_its_members_and_the_network_itself(data_folder: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"rows": ("mnist-mlp",), "epochs": 2, "size": 3, "sigmas": (0.01, 0.05)}
    figure1.main(figure1.Settings(**places(data_folder, tmp_path), **options))
    points = json.loads((tmp_path / "figure1.json").read_text())["sweep"]["points"]
    assert [point["sigma"] for point in points] == [0, 0.01, 0.05]
    for point in points:  # the logarithm is concave: an ensemble is at least as good as its members on average
        assert len(point["member_log_likelihoods"]) == 3
        assert point["log_likelihood"] >= np.mean(point["member_log_likelihoods"]) - 1e-9


def test_figure_2_shows_mistakes_that_only_the_ensemble_gets_right(data_folder: Path, tmp_path: Path) -> None:
    """A hundred images: the network makes mistakes, and PEP corrects some of them."""
    options: dict[str, Any] = {"rows": ("mnist-mlp",), "epochs": 2, "items": 100, "size": 4}
    found = figure2.main(figure2.Settings(**places(data_folder, tmp_path), **options))
    assert set(found["reliability"]) == {"network", "temperature scaling", "PEP", "PEP with temperature"}
    assert all(sum(table["count"]) == 100 for table in found["reliability"].values())
    assert len(found["corrected"]) == min(6, found["mistakes"]["corrected"]) > 0
    for one in found["corrected"]:
        assert one["predicted"] != one["label"]
        assert one["ensemble"] == pytest.approx(np.mean(one["members"]), rel=1e-4)


def tiny_figure3(folder: Path, out: Path, **changes: Any) -> figure3.Settings:
    small: dict[str, Any] = {"rows": ("mnist-mlp",), "models": 2, "epochs": 2, "size": 4, "our_tuning_size": 4}
    return figure3.Settings(**places(folder, out), **small | changes)


@pytest.mark.slow
def test_figure_3_keeps_every_point_of_every_epoch_and_the_rows_of_a_run_before(
    data_folder: Path, tmp_path: Path
) -> None:
    asked = tiny_figure3(data_folder, tmp_path)
    found = figure3.main(asked)["experiments"]["mnist-mlp"]
    assert [(p["seed"], p["epoch"]) for p in found["points"]] == [(s, e) for e in (1, 2) for s in (17, 18)]
    both = figure3.main(replace(asked, rows=("cifar10",)))["experiments"]
    assert list(both) == ["cifar10", "mnist-mlp"]
    assert both["mnist-mlp"] == found
    other = figure3.main(replace(asked, size=2))["experiments"]
    assert list(other) == ["mnist-mlp"]  # with other settings they do not belong together


def test_figure_3_killed_after_an_epoch_continues_there(data_folder: Path, tmp_path: Path) -> None:
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if "after epoch 2" in text and len(said) < 20:
            raise KeyboardInterrupt

    asked = replace(tiny_figure3(data_folder, tmp_path, models=1, epochs=3), say=say)
    with pytest.raises(KeyboardInterrupt):
        figure3.main(asked)
    said += [""] * 20
    points = figure3.main(asked)["experiments"]["mnist-mlp"]["points"]
    assert [point["epoch"] for point in points] == [1, 2, 3]
    assert not any("training loss" in line for line in said[said.index("") :])


def test_the_correlations_are_those_of_scipy_over_all_points() -> None:
    drawn = np.random.default_rng(3).uniform(0.1, 1, size=(20, 4)).tolist()
    found = figure3.correlations([figure3.Point(17, 1, *one) for one in drawn])
    training, test, pep, sigma = np.array(drawn).T
    for name, values in (("overfitting and effect", test - pep), ("overfitting and sigma", sigma)):
        assert found[name]["rho"] == pytest.approx(stats.spearmanr(test - training, values).statistic)
        assert found[name]["lower"] < found[name]["rho"] < found[name]["upper"]
    assert figure3.interval({"rho": None}) == "none"
    assert np.isnan(figure3.correlations([figure3.Point(17, 1, *drawn[0])])["overfitting and sigma"]["rho"])


def test_uniform_and_gaussian_noise_are_compared_model_by_model(data_folder: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"models": 3, "epochs": 2, "size": 4}
    found = noise_laws.main(noise_laws.Settings(**places(data_folder, tmp_path), **options))
    gaussian, uniform = (np.array(found["laws"][law]["nll"]) for law in ("gaussian", "uniform"))
    assert len(gaussian) == 3
    assert not np.array_equal(gaussian, uniform)
    expected = stats.ttest_rel(uniform, gaussian)
    assert found["difference"]["mean"] == pytest.approx((uniform - gaussian).mean())
    assert found["difference"]["lower"] == pytest.approx(expected.confidence_interval(0.95).low)
    assert found["p_value"] == pytest.approx(expected.pvalue)


def tiny_ood(folder: Path, out: Path, **changes: Any) -> out_of_distribution.Settings:
    small: dict[str, Any] = {"depth": 10, "width": 1, "epochs": 2, "batch": 32, "size": 4}
    return out_of_distribution.Settings(**places(folder, out), **small | changes)


@pytest.mark.slow
def test_ood_scores_every_method_and_keeps_its_network(data_folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    asked = replace(tiny_ood(data_folder, tmp_path), say=said.append)
    found = out_of_distribution.main(asked)
    assert set(found["methods"]) == {"network", "temperature scaling", "PEP", "PEP with temperature"}
    assert found["items"]["inside"] + found["items"]["outside"] == 100
    assert all(0 <= one["auroc"] <= 1 and one["kl"] >= 0 for one in found["methods"].values())
    assert "KL(p||q) + KL(q||p)" in found["definition"]
    before = len(said)
    assert out_of_distribution.main(asked)["methods"] == found["methods"]
    assert not any("training loss" in line for line in said[before:])
    with pytest.raises(ValueError, match="`epochs=0` must be at least 1"):
        tiny_ood(data_folder, tmp_path, epochs=0)


def test_a_wide_resnet_28_10_has_the_published_size() -> None:
    """36.5 million parameters and 28 layers with weights (Zagoruyko and Komodakis, table 4)."""
    with torch.device("meta"):
        network = WideResNet(10)
    convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    deep = [m for m in convolutions if m.kernel_size == (3, 3)]
    assert round(sum(p.numel() for p in network.parameters()) / 1e6, 1) == 36.5
    assert len(deep) == 25  # the stem and two for each of 12 blocks
    assert len(convolutions) == 28  # and the three projections
    assert {m.out_channels for m in deep} == {16, 160, 320, 640}


def test_a_wide_resnet_halves_the_image_twice() -> None:
    network = initialize(WideResNet(5, depth=10, width=1), 17).eval()
    seen: list[tuple[int, ...]] = []
    for block in network.blocks:
        block.register_forward_hook(lambda module, inputs, output: seen.append(tuple(output.shape[1:])))
    assert network(torch.rand(2, 3, 32, 32)).shape == (2, 5)
    assert seen == [(16, 32, 32), (32, 16, 16), (64, 8, 8)]
    with pytest.raises(ValueError, match="`depth=12` must be 6 n \\+ 4"):
        WideResNet(5, depth=12)


def test_the_five_classes_are_numbered_anew_and_the_others_are_unknown(data_folder: Path, tmp_path: Path) -> None:
    data, everything = five_classes(tiny_ood(data_folder, tmp_path)), read_image_set("cifar10", data_folder)
    labels = everything.test[1]
    assert len(data.unknown) == sum(int((labels == k).sum()) for k in (3, 4, 5, 6, 7))
    first = int((labels == 8).nonzero()[0])  # ship, the fourth of the known classes
    place = int(torch.isin(labels[:first], torch.tensor([0, 1, 2, 8, 9])).sum())
    assert data.known[1][place] == 3
    assert torch.equal(data.known[0][place], everything.test[0][first].float() / 255)


def test_shifted_images_are_windows_of_the_padded_image_or_of_its_mirror() -> None:
    images = torch.rand(6, 3, 8, 8, generator=Generator().manual_seed(0))
    padded = nn.functional.pad(images, (4, 4, 4, 4))
    for before, after in zip(padded, shifted_and_mirrored(images, Generator().manual_seed(1)), strict=True):
        windows = [before[:, y : y + 8, x : x + 8] for y in range(9) for x in range(9)]
        assert any(torch.equal(after, w) or torch.equal(after, w.flip(2)) for w in windows)
