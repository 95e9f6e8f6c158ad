"""Table 1 on a small network and images made on the spot: every column, every split, and a run that is killed."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats
from torch import nn

import peppermill as pm
from experiments import figure1, figure2, gap, table1
from experiments.image_sets import read_image_set
from experiments.page import table1_tables
from experiments.printed import TABLE1_NETWORKS, printed_fit
from experiments.table1 import Settings, row_pictures, weights_of
from experiments.table1.cifar_resnet import CifarResNet
from experiments.table1.imagenet_networks import NETWORKS, TENSORFLOW, Network
from experiments.table1.split_methods import METHODS, TITLES, mixed, passes_of, splits_of

CLASSES, IMAGES, SIDE, GOLDEN = 4, 60, 8, (5**0.5 - 1) / 2
GRID = (0.01, 0.05, 0.1, 0.2, 0.3)


def small_network(weights: Path | None = None) -> nn.Module:
    """Two convolutions and a dense layer; random, and too sure of itself, so that noise and temperature help."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 16, CLASSES)
    )
    with torch.no_grad():
        model[-1].weight.mul_(8)
    return model.eval()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images whose class is mostly what the network makes of them."""
    folder, generator, model = tmp_path_factory.mktemp("val"), np.random.default_rng(0), small_network()
    for number in range(1, IMAGES + 1):
        pixels = generator.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        said = int(model(TENSORFLOW(torch.from_numpy(pixels).permute(2, 0, 1)[None])).argmax())
        label = said if generator.random() < 0.7 else int(generator.integers(CLASSES))
        (folder / str(label)).mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / str(label) / f"ILSVRC2012_val_{number:08d}.png")
    return folder


@pytest.fixture(autouse=True, scope="module")
def small_rows() -> Any:
    """Two rows more: with a printed range of sigma, and without."""
    row = Network("Small", small_network, TENSORFLOW, SIDE, SIDE, CLASSES, sigmas=GRID)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(NETWORKS, "Small", row)
        patch.setitem(NETWORKS, "SmallFound", replace(row, sigmas=()))
        yield


def settings(images: Path, folder: Path, **changes: Any) -> Settings:
    places = {"imagenet": images, "out": folder / "results", "checkpoints": folder / "work"}
    small = {"networks": ("Small",), "tuning": 20, "splits": 3, "noise_seeds": 2, "minimum_count": 3}
    return Settings(**places, say=lambda text: None, **small | changes)


@pytest.fixture(scope="module")
def whole(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The row, never killed."""
    return table1.main(settings(images, tmp_path_factory.mktemp("whole")))["Small"]


@pytest.mark.parametrize("name", TABLE1_NETWORKS)
def test_every_printed_sigma_is_an_end_of_the_papers_search(name: str) -> None:
    """The 64 midpoints that six sections by the golden ratio of 5e-4..5e-3 can end in, enumerated."""
    ends = []
    for turns in product((True, False), repeat=6):
        lower, upper = 5e-4, 5e-3
        for left in turns:
            step = GOLDEN * (upper - lower)
            lower, upper = (lower, lower + step) if left else (upper - step, upper)
        ends.append((lower + upper) / 2)
    assert min(abs(end - printed_fit(name)[1]) for end in ends) <= 0.0051e-3


def test_every_column_is_what_the_library_gives_at_the_best_sigma_of_the_grid(images: Path, tmp_path: Path) -> None:
    """The second seed on the second split, written out with `pm.fit`'s own pieces; ECE of ten bins."""
    asked = settings(images, tmp_path, splits=2, noise_seeds=2, minimum_count=1)
    columns = table1.main(asked)["Small"]["columns"]
    data, model = row_pictures(NETWORKS["Small"], asked), small_network()
    inputs, (tuning, test) = TENSORFLOW(data.pixels), splits_of(IMAGES, 20, 2)[1]
    known, asked_about = ((inputs[part], data.labels[part]) for part in (tuning, test))

    def members(sigma: float, antithetic: bool, size: int = 10) -> Any:
        noise = pm.Noise("gaussian", antithetic=antithetic, seed=1)
        return pm.PepEnsemble.at_sigma(model, sigma, parameters="conv", size=size, noise=noise)

    def tuned(predictor: Any) -> float:
        return -float(pm.predict(predictor, known).log_likelihoods.sum())

    pep = min(GRID, key=lambda sigma: tuned(members(sigma, False, 5)))
    warm = {kind: [pm.fit_temperature(members(s, kind), known) for s in (0.0, *GRID)] for kind in (False, True)}
    cold = [members(sigma, True) for sigma in (0.0, *GRID)]
    expected = {
        "network": model,
        "temperature": pm.fit_temperature(model, known),
        "pep": members(pep, False),
        "pep_temperature": min(warm[False], key=tuned),
        "pep_antithetic": min(cold, key=tuned),
        "pep_antithetic_temperature": min(warm[True], key=tuned),
    }
    assert columns["pep"]["sigma"][1][1] == pep
    for method, predictor in expected.items():
        scores = pm.evaluate(predictor, asked_about, bins=10)
        for score in ("nll", "brier", "ece", "error"):
            found = columns[method]["scores"][score][1][1]
            assert found == pytest.approx(getattr(scores, score).value, rel=1e-4, abs=1e-9)


def test_a_row_has_every_column_on_every_split_with_every_seed(whole: dict[str, Any]) -> None:
    assert set(whole["columns"]) == set(METHODS) == set(TITLES)
    for column in whole["columns"].values():
        assert {np.shape(values) for values in column["scores"].values()} == {(2, 3)}
    assert whole["columns"]["network"]["sigma"] == [[0, 0, 0]] * 2
    assert whole["columns"]["temperature"]["scores"]["error"] == whole["columns"]["network"]["scores"]["error"]
    nll = whole["columns"]["pep"]["scores"]["nll"]
    assert nll[0] != nll[1]
    assert whole["items"] == {"all": 60, "tuning": 20, "test": 40}
    assert len({split["digest"] for split in whole["splits"]}) == 3
    json.dumps(whole, allow_nan=False)


def test_a_grid_without_printed_values_reaches_beyond_what_fit_finds(images: Path, tmp_path: Path) -> None:
    asked = settings(images, tmp_path, networks=("SmallFound",), splits=1, tuning=40)
    found, data = table1.main(asked)["SmallFound"], row_pictures(NETWORKS["Small"], asked)
    tuning = TENSORFLOW(data.pixels[:40]), data.labels[:40]
    fitted = pm.fit(small_network(), tuning, parameters="conv", temperature=True)
    largest = max(fitted.sigma, fitted.without_temperature().sigma)
    assert len(found["grid"]) == 7
    assert found["grid"][-1] == pytest.approx(max(1.5 * largest, 0.03 * fitted.perturbation.scale()), rel=1e-3)
    assert min(found["columns"]["pep"]["sigma"][0]) >= 0


def test_a_killed_run_continues_with_the_seed_that_is_missing(
    images: Path, tmp_path: Path, whole: dict[str, Any]
) -> None:
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if "seed 1 of 2" in text and len(said) < 4:
            raise KeyboardInterrupt

    asked = replace(settings(images, tmp_path), say=say)
    with pytest.raises(KeyboardInterrupt):
        table1.main(asked)
    assert len(list((tmp_path / "work" / "table1").iterdir())) == 1
    said += [""] * 4
    found = table1.main(asked)["Small"]
    assert (found["columns"], found["comparisons"]) == (whole["columns"], whole["comparisons"])
    assert table1.main(asked)["Small"] == found
    assert "done, in" in said[-1]


def test_the_papers_search_sees_five_members_and_sigma_0_only_where_it_may(images: Path, tmp_path: Path) -> None:
    asked = settings(images, tmp_path)
    data, model = row_pictures(NETWORKS["Small"], asked), small_network()
    whole = TENSORFLOW(data.pixels), data.labels
    bare = pm.predict(model, whole)
    found = passes_of(model, whole, bare.log_probs, asked, seed=1, grid=(0.1,), zero=True)
    noise = pm.Noise("gaussian", antithetic=False, seed=1)
    five = pm.PepEnsemble.at_sigma(model, 0.1, parameters="conv", size=5, noise=noise)
    torch.testing.assert_close(found.few[0.1], pm.predict(five, whole).log_likelihoods, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.few[0.0], bare.log_likelihoods, rtol=1e-4, atol=1e-6)
    assert list(passes_of(model, whole, bare.log_probs, asked, seed=1, grid=(0.1,), zero=False).few) == [0.1]


@pytest.mark.parametrize("size", [1, 3, 10])
def test_members_that_share_passes_are_those_of_ensembles_of_their_own(images: Path, tmp_path: Path, size: int) -> None:
    asked = settings(images, tmp_path, size=size)
    data, model = row_pictures(NETWORKS["Small"], asked), small_network()
    whole = TENSORFLOW(data.pixels), data.labels
    found = passes_of(model, whole, pm.predict(model, whole).log_probs, asked, seed=1, grid=(0.05, 0.2), zero=False)
    for antithetic, averages, count in (
        (False, found.independent, size),
        (True, found.antithetic, max(1, size // 2 * 2)),
    ):
        noise = pm.Noise("gaussian", antithetic=antithetic, seed=1)
        for sigma in (0.05, 0.2):
            alone = pm.PepEnsemble.at_sigma(model, sigma, parameters="conv", size=count, noise=noise)
            expected = pm.predict(alone, whole).log_probs
            torch.testing.assert_close(averages[sigma].double(), expected, rtol=1e-4, atol=1e-5)


def test_the_mixed_estimate_by_hand() -> None:
    """Two images, two seeds: mean squares 9, 4 and 1; variance (9 + 4 - 1) / 4; freedom 12^2 / (81 + 16 + 1)."""
    found = mixed(np.array([[1.0, 2.0], [3.0, 6.0]]))
    freedom = 144 / 98
    assert found["mean"] == 3.0
    assert found["upper"] - 3.0 == pytest.approx(stats.t.ppf(0.975, freedom) * 3**0.5)
    assert found["p"] == pytest.approx(2 * stats.t.sf(3 / 3**0.5, freedom))
    assert found["seeds"] == pytest.approx(np.std([2.0, 4.0], ddof=1))


def test_one_seed_leaves_the_paired_t_test_over_images() -> None:
    differences = np.random.default_rng(0).normal(0.1, 1, (50, 1))
    found, expected = mixed(differences), stats.ttest_1samp(differences[:, 0], 0.0)
    assert found["p"] == pytest.approx(expected.pvalue)
    assert found["lower"] == pytest.approx(expected.confidence_interval(0.95).low)
    assert mixed(np.zeros((5, 2)))["p"] == 1.0
    assert mixed(np.vstack([differences, [[np.nan]]])) == found  # an image that no split tested


def test_the_mixed_estimate_covers_the_truth_where_images_alone_do_not() -> None:
    """500 simulated tables, 40 images and 5 seeds, a true mean of 0: 95 % of the intervals contain it.

    The binomial standard error is 1 %; the interval over images alone, which takes the noise for granted, covers less
    than 80 %.
    """
    generator, covered, naive = np.random.default_rng(0), 0, 0
    for _ in range(500):
        effects = generator.normal(0, 1, (40, 1)), generator.normal(0, 0.5, (1, 5)), generator.normal(0, 1, (40, 5))
        table = sum(effects)
        found = mixed(table)
        covered += found["lower"] <= 0 <= found["upper"]
        alone = stats.ttest_1samp(table[:, 0], 0.0).confidence_interval(0.95)
        naive += alone.low <= 0 <= alone.high
    assert 0.92 <= covered / 500 <= 0.98
    assert naive / 500 < 0.85


def test_no_image_both_tunes_and_tests() -> None:
    splits = splits_of(30, 10, 4)
    assert torch.equal(splits[0][0], torch.arange(10))
    for tuning, test in splits:
        assert sorted([*tuning.tolist(), *test.tolist()]) == list(range(30))
    assert len({tuple(tuning.tolist()) for tuning, _ in splits}) == 4
    with pytest.raises(ValueError, match="`tuning=30` must leave images to tune on and to test on"):
        splits_of(30, 30, 1)
    with pytest.raises(ValueError, match="`splits=0` must be at least 1"):
        splits_of(30, 10, 0)


def test_weights_are_a_file_or_found_in_a_folder(tmp_path: Path) -> None:
    one = tmp_path / "Small.safetensors"
    one.touch()
    asked = Settings(networks=("Small",), weights=tmp_path)
    assert weights_of("Small", asked) == weights_of("Small", replace(asked, weights=one)) == one
    with pytest.raises(ValueError, match=r"has no file VGG16\.safetensors, VGG16\.h5 or VGG16\.th"):
        weights_of("VGG16", asked)
    with pytest.raises(ValueError, match="must be the file of one network, or a folder"):
        weights_of("Small", replace(asked, networks=("Small", "VGG16"), weights=one))


def test_images_are_asked_for_by_name() -> None:
    with pytest.raises(ValueError, match="ResNet50 needs the validation images: name their folder with `--imagenet`"):
        table1.main(Settings(networks=("ResNet50",)))
    with pytest.raises(ValueError, match="there is no network 'ResNet51' in Table 1"):
        table1.main(Settings(networks=("ResNet51",)))
    with pytest.raises(ValueError, match="`noise_seeds=0` must be at least 1"):
        Settings(noise_seeds=0)


def test_images_that_the_network_has_not_seen_come_before_the_test_images(data_folder: Path) -> None:
    asked = Settings(data=data_folder)
    whole, row = read_image_set("cifar10", data_folder), NETWORKS["VGG16-CIFAR10-45k"]
    found = row_pictures(replace(row, held_out=40), asked)
    assert torch.equal(found.pixels, torch.cat([whole.train[0][-40:], whole.test[0]]))
    assert torch.equal(found.labels, torch.cat([whole.train[1][-40:], whole.test[1]]))


@pytest.mark.slow
def test_a_keras_network_runs_as_it_is(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of the small network in Keras, which has channels last: the same scores of the network itself."""
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras")

    def build(weights: Path | None) -> Any:
        twin, layers = small_network(), keras.layers
        stack = [layers.Conv2D(6, 3, activation="relu"), layers.Conv2D(6, 3, activation="relu")]
        stack += [layers.Permute((3, 1, 2)), layers.Flatten(), layers.Dense(CLASSES)]
        model = keras.Sequential([keras.Input((SIDE, SIDE, 3)), *stack])
        for ours, theirs in ((twin[0], stack[0]), (twin[2], stack[1]), (twin[5], stack[4])):
            kernel = ours.weight.detach()
            turned = kernel.permute(2, 3, 1, 0) if kernel.ndim == 4 else kernel.T
            theirs.set_weights([turned.numpy(), ours.bias.detach().numpy()])
        return model.eval()

    monkeypatch.setitem(NETWORKS, "SmallKeras", replace(NETWORKS["Small"], build=build))
    found = table1.main(settings(images, tmp_path, networks=("Small", "SmallKeras"), splits=1))
    ours, theirs = (found[name]["columns"] for name in ("Small", "SmallKeras"))
    assert theirs["network"]["scores"]["nll"][0] == pytest.approx(ours["network"]["scores"]["nll"][0], rel=1e-4)
    assert theirs["pep"]["sigma"][0][0] > 0


@pytest.mark.slow
def test_a_network_of_cifar10_runs_from_published_weights(data_folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    torch.save({"state_dict": CifarResNet(20).state_dict()}, tmp_path / "ResNet20-CIFAR10.th")
    asked = Settings(
        networks=("ResNet20-CIFAR10",), data=data_folder, weights=tmp_path, tuning=30, images=60, size=2,
        tuning_size=2, out=tmp_path, checkpoints=tmp_path / "work", say=lambda text: None,
    )  # fmt: skip
    found = table1.main(asked)["ResNet20-CIFAR10"]
    assert found["items"] == {"all": 60, "tuning": 30, "test": 30}


def test_figures_1_and_2_are_drawn_for_a_network_of_table_1(images: Path, tmp_path: Path) -> None:
    """On the first split: the curve on the images that tune, the mistakes among those that test."""
    places = {"imagenet": images, "out": tmp_path, "checkpoints": tmp_path / "work", "say": lambda text: None}
    options: dict[str, Any] = {"pretrained": "Small", "parameters": "conv", "tuning": 20, **places}
    figure1.main(figure1.Settings(**options, size=2, sigmas=(0.1,)))
    sweep = json.loads((tmp_path / "figure1-Small.json").read_text())["sweep"]
    assert sweep["items"] == 20
    assert [point["sigma"] for point in sweep["points"]] == [0, 0.1]
    found = figure2.main(figure2.Settings(**options, size=4))
    assert (tmp_path / "figure2-Small.json").is_file()
    assert all(sum(table["count"]) == 40 for table in found["reliability"].values())
    for one in found["corrected"]:
        assert one["ensemble"] == pytest.approx(np.mean(one["members"]), rel=1e-4)


@pytest.fixture(scope="module")
def gaps(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The small network in the place of ResNet50, whose row is printed."""
    places = {"imagenet": images, "out": (folder := tmp_path_factory.mktemp("gap")) / "results", "checkpoints": folder}
    asked = gap.Settings(**places, tuning=20, splits=2, say=lambda text: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(NETWORKS, "ResNet50", NETWORKS["Small"])
        found = gap.main(asked)
        stages = {path.stem: json.loads(path.read_text())["content"] for path in (folder / "gap").glob("*.json")}
    return {"rows": {row["name"]: row for row in found["rows"]}, "stages": stages, "content": found}


def test_every_change_of_the_gap_starts_from_the_row_of_table_1(gaps: dict[str, Any]) -> None:
    """The first row written out: sigma by five members on the tuning images, ten members on the others, two splits."""
    one = gaps["stages"]["ResNet50-bicubic"]
    few, many, network = (np.array(one[key]) for key in ("few", "many", "network"))
    expected = []
    for tuning, test in splits_of(IMAGES, 20, 2):
        best = max(range(9), key=lambda k: float(few[k, 0, tuning].sum()))
        expected.append(np.mean(network[test] - many[best, 0, test]))
    base = gaps["rows"]["as in Table 1"]
    assert base["pep"] == pytest.approx(np.mean(expected))
    assert (base["share"], len(gaps["rows"])) == (0.0, 10)
    assert gaps["rows"]["JPEG 75"]["share"] == pytest.approx(
        (gaps["rows"]["JPEG 75"]["pep"] - base["pep"]) / (1.023 - 1.084 - base["pep"])
    )


def test_the_gap_changes_what_it_says_and_nothing_else(gaps: dict[str, Any]) -> None:
    rows, stages = gaps["rows"], gaps["stages"]
    assert rows["images re-weighted to the printed error"]["error"] == pytest.approx(0.2609, abs=0.05)
    assert rows["sigma up to 0.008"]["sigma"] >= rows["as in Table 1"]["sigma"]
    assert rows["the printed sigma (0.0025 on our grid)"]["sigma"] == 0.0025
    squashed, usual = (np.array(stages[f"ResNet50-{way}"]["network"]) for way in ("squashed", "bicubic"))
    assert np.array_equal(squashed, usual)  # these images are squares of the right size
    assert not np.array_equal(stages["ResNet50-JPEG-75"]["network"], usual)
    page = table1_tables.gap_table(gaps["content"])
    assert page.splitlines()[-1].startswith("| *printed* | 26.09 | 1.084 | -0.027 | -0.061 | 2.60 | 100 % |")
    assert table1_tables.most_of_the_gap({"rows": [{}, {"name": "a", "share": 0.2}, {"name": "b", "share": -1}]}) == (
        "a (20 %) explains most"
    )
    assert table1_tables.most_of_the_gap({"rows": [{}, {"name": "a", "share": -0.2}]}) == "none explains any of it"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ways": ("squashed",)}, "`ways` must begin with 'bicubic'"),
        ({"ways": ("bicubic", "bilinear")}, "`ways` must begin with 'bicubic'"),
        ({"networks": ("MobileNetV2",)}, "one network with a printed row: DenseNet121"),
    ],
)
def test_the_gap_needs_a_row_to_compare_with(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gap.Settings(**changes)


def test_half_precision_is_for_the_members_alone(images: Path, tmp_path: Path, whole: dict[str, Any]) -> None:
    found = table1.main(settings(images, tmp_path, precision="float16"))["Small"]["columns"]
    for method, column in whole["columns"].items():
        same = method in ("network", "temperature")
        assert (found[method]["scores"]["nll"] == column["scores"]["nll"]) == same
        assert np.allclose(found[method]["scores"]["nll"], column["scores"]["nll"], atol=0.02)
