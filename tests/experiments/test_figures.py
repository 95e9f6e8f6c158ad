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
from sklearn.metrics import roc_auc_score
from torch import Generator, nn

import peppermill as pm
from experiments import figure1, figure2, figure3, learning_rate, noise_laws, out_of_distribution
from experiments.image_sets import read_image_set
from experiments.out_of_distribution import five_classes, shifted_and_mirrored
from experiments.settings import Settings
from experiments.table2.methods import METHODS as TABLE2_METHODS
from experiments.table2.work import Work
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


def test_another_learning_rate_has_the_numbers_of_a_table_with_that_rate(data_folder: Path, tmp_path: Path) -> None:
    """T and sigma* as Table 2 has them; the NLL after the first epoch is that of a training of one epoch."""
    shared: dict[str, Any] = places(data_folder, tmp_path) | {"models": 2, "items": 60, "learning_rate": 1e-3}
    asked = learning_rate.Settings(**shared, rows=("mnist-mlp",), epochs=2)
    found = learning_rate.main(asked)["networks"]
    work = Work("mnist-mlp", Settings(**shared, epochs=2))
    fitted = {"sigma": TABLE2_METHODS["pep"], "temperature": TABLE2_METHODS["temperature"]}
    for name, method in fitted.items():
        assert [one[name] for one in found] == [getattr(predictor, name) for predictor in method(work)]
    short = Work("mnist-mlp", Settings(**shared, epochs=1))
    alone = [pm.predict(network, short.data.test) for network in short.networks]
    assert [one["first_epoch_nll"] for one in found] == [pm.metrics.nll(one.log_probs, one.labels) for one in alone]
    assert found[0] != found[1]


def tiny_figure3(folder: Path, out: Path, **changes: Any) -> figure3.Settings:
    small: dict[str, Any] = {"rows": ("mnist-mlp",), "models": 2, "epochs": 2, "size": 4, "our_tuning_size": 4}
    return figure3.Settings(**places(folder, out), **small | changes)


@pytest.mark.slow
def test_figure_3_keeps_every_point_of_every_epoch_and_the_rows_of_a_run_before(
    data_folder: Path, tmp_path: Path
) -> None:
    asked = tiny_figure3(data_folder, tmp_path, items=60)
    found = figure3.main(asked)["experiments"]["mnist-mlp"]
    for one in figure3.layer_choices(found).values():
        assert [(p["seed"], p["epoch"]) for p in one["points"]] == [(s, e) for e in (1, 2) for s in (17, 18)]
    both = figure3.main(replace(asked, rows=("cifar10",)))["experiments"]
    assert list(both) == ["cifar10", "mnist-mlp"]
    assert both["mnist-mlp"] == found
    other = figure3.main(replace(asked, size=2))["experiments"]
    assert list(other) == ["mnist-mlp"]  # with other settings they do not belong together


@pytest.mark.slow
def test_figure_3_examines_the_same_networks_with_noise_on_other_layers(data_folder: Path, tmp_path: Path) -> None:
    """In MNIST (MLP) every kernel but the last is perturbed in Table 2, so that only PEP's numbers differ."""
    asked = tiny_figure3(data_folder, tmp_path, models=1, epochs=8, items=60)  # so few that noise helps in the end
    said: list[str] = []
    found = figure3.main(replace(asked, say=said.append))["experiments"]["mnist-mlp"]
    assert sum("training loss" in line for line in said) == 8  # one training of eight epochs
    choices = figure3.layer_choices(found)
    assert list(choices) == ["every kernel", "layers of Table 2"]
    for every, some in zip(*(one["points"] for one in choices.values()), strict=True):
        same = ("seed", "epoch", "training_nll", "test_nll")
        assert [every[key] for key in same] == [some[key] for key in same]
    assert every["sigma"] != some["sigma"]
    assert every["pep_nll"] != some["pep_nll"]
    for one in choices.values():
        expected = figure3.correlations([figure3.Point(**point) for point in one["points"]])
        assert one["correlations"]["overfitting and effect"]["rho"] == expected["overfitting and effect"]["rho"]


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
    small: dict[str, Any] = {"depth": 10, "width": 1, "epochs": 2, "batch": 32, "size": 2, "seeds": (17, 18)}
    return out_of_distribution.Settings(**places(folder, out), **small | changes)


METHODS = {"network", "temperature scaling", "PEP", "PEP with temperature"}


@pytest.mark.slow
def test_ood_run_seed_by_seed_is_only_assembled_at_the_end(data_folder: Path, tmp_path: Path) -> None:
    """Two runs with a seed each give the numbers of their networks; the run with both trains nothing."""
    said: list[str] = []
    asked = replace(tiny_ood(data_folder, tmp_path), say=said.append)
    alone = [out_of_distribution.main(replace(asked, seeds=(seed,))) for seed in (18, 17)]
    before = len(said)
    assert sum("training loss" in line for line in said) == 4  # two epochs each
    found = out_of_distribution.main(asked)
    assert not any("training loss" in line for line in said[before:])
    assert found["networks"] == [alone[1]["networks"][0], alone[0]["networks"][0]]
    assert [one["seed"] for one in found["networks"]] == [17, 18]
    assert found["items"]["inside"] + found["items"]["outside"] == 100
    assert "KL(p||q) + KL(q||p)" in found["definition"]
    for one in found["networks"]:
        assert set(one["methods"]) == METHODS
        for name, method in one["methods"].items():
            scores = {"entropy", "confidence"} | ({"mutual information"} if name.startswith("PEP") else set())
            assert set(method["auroc"]) == set(method["fpr95"]) == scores
            assert all(0 <= value <= 1 for part in ("auroc", "fpr95") for value in method[part].values())
    first, second = (one["methods"]["network"] for one in found["networks"])
    assert first["auroc"] != second["auroc"]  # another seed, another network
    assert found["methods"]["network"]["nll"] == pytest.approx((first["nll"] + second["nll"]) / 2)
    assert alone[0]["methods"]["PEP"]["auroc"]["entropy"]["lower"] is None  # one network has no interval


@pytest.mark.slow
def test_ood_killed_in_training_ends_with_the_same_network(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every epoch is kept here; the second run stops before it keeps its third, and continues from its second."""
    monkeypatch.setattr(out_of_distribution, "CHECKPOINT_SECONDS", -1.0)
    asked = tiny_ood(data_folder, tmp_path / "whole", seeds=(17,), epochs=3, precision="float32")
    whole = out_of_distribution.main(asked)["networks"][0]["methods"]
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if "epoch  3" in text and sum("epoch  3" in line for line in said) == 1:
            raise KeyboardInterrupt

    asked = replace(asked, say=say, out=tmp_path / "parts", checkpoints=tmp_path / "parts" / "work")
    with pytest.raises(KeyboardInterrupt):
        out_of_distribution.main(asked)
    parts = out_of_distribution.main(asked)["networks"][0]["methods"]
    assert [line.split(",")[2].split()[1] for line in said if "training loss" in line] == ["1", "2", "3", "3"]
    assert parts["network"]["nll"] == pytest.approx(whole["network"]["nll"], rel=1e-5)
    again = replace(asked, size=3)  # other members: the same network, scored anew
    assert out_of_distribution.main(again)["networks"][0]["methods"]["network"] == parts["network"]
    assert sum("training loss" in line for line in said) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "`epochs=0` must be at least 1"),
        ({"seeds": ()}, r"`seeds=\(\)` must name one seed or more"),
        ({"seeds": (17, 17)}, r"`seeds=\(17, 17\)` must name one seed or more, each of them once"),
    ],
)
def test_ood_refuses_settings_without_a_network(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny_ood(tmp_path, tmp_path, **changes)


@pytest.mark.parametrize(
    ("values", "reference"),
    [
        ([0.70, 0.75, 0.71], [0.72, 0.76, 0.74]),  # every network is worse with the method
        ([0.5, 0.5, 0.5], [0.4, 0.5, 0.6]),  # the same AUROC every time: an interval of length 0
        ([0.8, 0.6], [0.7, 0.7]),  # one degree of freedom
    ],
)
def test_intervals_over_networks_are_those_of_student_and_differences_are_paired(
    values: list[float], reference: list[float]
) -> None:
    """The expected intervals are those of scipy's one-sample t test."""

    def method(auroc: float) -> dict[str, Any]:
        return {"kl": auroc, "auroc": {"entropy": auroc}, "fpr95": {"entropy": 1 - auroc}}

    networks = [
        {"methods": {"network": method(bare), "PEP": method(value)}}
        for value, bare in zip(values, reference, strict=True)
    ]
    found = out_of_distribution.over_networks(networks)
    difference = np.subtract(values, reference)
    assert found["PEP"]["kl"] == pytest.approx(np.mean(values))
    for part, sample in (("auroc", values), ("fpr95", np.subtract(1, values)), ("difference", difference)):
        one = found["PEP"][part]["entropy"]
        expected = (np.mean(sample), np.mean(sample))
        if np.ptp(sample):
            expected = tuple(stats.ttest_1samp(sample, 0).confidence_interval(0.95))
        assert one["mean"] == pytest.approx(np.mean(sample))
        assert (one["lower"], one["upper"]) == pytest.approx(expected)
    assert set(found["network"]["difference"]["entropy"].values()) == {0.0}


def test_without_noise_the_mutual_information_tells_nothing(data_folder: Path, tmp_path: Path) -> None:
    """The members at sigma = 0 are one network: their mutual information is 0 for every image, an AUROC of 1/2."""
    data = five_classes(tiny_ood(data_folder, tmp_path))
    network = initialize(WideResNet(5, depth=10, width=1), 17).eval()
    ensemble = out_of_distribution.detection(pm.PepEnsemble.at_sigma(network, 0.0, size=4), data, 50)
    alone = out_of_distribution.detection(network, data, 50)
    assert (ensemble["auroc"].pop("mutual information"), ensemble["fpr95"].pop("mutual information")) == (0.5, 1.0)
    assert ensemble["auroc"] == pytest.approx(alone["auroc"])
    log_probs = [network(images).detach().double().log_softmax(1) for images in (data.known[0], data.unknown)]
    truth = np.repeat([0, 1], [len(one) for one in log_probs])
    scores = {
        "entropy": [-(one.exp() * one).sum(1) for one in log_probs],
        "confidence": [-one.amax(1) for one in log_probs],
    }
    for score, pair in scores.items():
        assert alone["auroc"][score] == pytest.approx(roc_auc_score(truth, torch.cat(pair).numpy()), abs=2e-3)


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
    """Images 4, 0 and 4 again, at both corners and in the middle; the middle is the image itself."""
    images = torch.rand(6, 3, 8, 10, generator=Generator().manual_seed(0))
    padded = nn.functional.pad(images, (4, 4, 4, 4))
    items, shifts = torch.tensor([4, 0, 4]), torch.tensor([[0, 0], [8, 8], [4, 4]])
    mirrored = torch.tensor([False, True, False])
    found = shifted_and_mirrored(padded.movedim(1, 3), items, shifts, mirrored)
    expected = [padded[4, :, :8, :10], padded[0, :, 8:, 8:].flip(2), images[4]]
    assert torch.equal(found, torch.stack(expected))
