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
from safetensors.torch import load_file
from scipy import stats
from torch import nn
from typer.testing import CliRunner

import peppermill as pm
from peppermill.cli.app import app
from peppermill.paper import document, image_members, printed1, table1, table1_page
from peppermill.paper.image_members import Group, ImageMembers, LabelledPixels, in_pairs, one_sided
from peppermill.paper.imagenet_networks import NETWORKS, TENSORFLOW, Network
from peppermill.paper.machine import Machine
from peppermill.paper.splits import splits_of
from peppermill.paper.table1 import Settings, row_pictures
from peppermill.paper.table1_columns import METHODS, TITLES, Case, Column, Part, paired
from peppermill.tuning.search import GOLDEN

CLASSES, IMAGES, SIDE = 4, 60, 8


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


@pytest.fixture(autouse=True)
def small_row(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Network("Small", small_network, TENSORFLOW, SIDE, SIDE, CLASSES, lower=0.01, upper=0.3)
    monkeypatch.setitem(NETWORKS, "Small", row)
    monkeypatch.setitem(NETWORKS, "SmallFound", replace(row, lower=None, upper=None))


def settings(images: Path, folder: Path, **changes: Any) -> Settings:
    base = Settings(("Small",), images, out=folder / "results", checkpoints=folder / "work", say=lambda text: None)
    return replace(base, **({"tuning": 20, "splits": 3, "iterations": 4, "minimum_count": 3} | changes))


@pytest.fixture(scope="module")
def whole(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The row, never killed."""
    with pytest.MonkeyPatch.context() as patch:
        row = Network("Small", small_network, TENSORFLOW, SIDE, SIDE, CLASSES, lower=0.01, upper=0.3)
        patch.setitem(NETWORKS, "Small", row)
        return table1.main(settings(images, tmp_path_factory.mktemp("whole")))["Small"]


def members_of(images: Path, folder: Path, model: nn.Module, chosen: slice = slice(None)) -> ImageMembers:
    data = row_pictures(NETWORKS["Small"], settings(images, folder))
    pixels = LabelledPixels(data.pixels[chosen], data.labels[chosen], TENSORFLOW)
    identity = {"chosen": [chosen.start, chosen.stop]}
    name = f"members-{chosen.start}-{chosen.stop}"
    return ImageMembers(model, pixels, "conv", 0, Machine(precision="float32"), folder / name, identity, 7)


@pytest.mark.parametrize("name", printed1.NETWORKS)
def test_every_printed_sigma_is_an_end_of_the_papers_search(name: str) -> None:
    """The 64 midpoints that six halvings by the golden ratio of 5e-4..5e-3 can end in, enumerated."""
    ends = []
    for turns in product((True, False), repeat=6):
        lower, upper = 5e-4, 5e-3
        for left in turns:
            lower, upper = (
                (lower, lower + GOLDEN * (upper - lower)) if left else (upper - GOLDEN * (upper - lower), upper)
            )
        ends.append((lower + upper) / 2)
    assert min(abs(end - printed1.printed_fit(name)[1]) for end in ends) <= 0.0051e-3


def test_the_search_of_the_pep_column_is_the_papers(images: Path, tmp_path: Path, whole: dict[str, Any]) -> None:
    """A plain golden section on the tuning images with five members, written out; sigma* is the middle of its end."""
    model, split = small_network(), splits_of(IMAGES, 20, 3)[1]
    data = row_pictures(NETWORKS["Small"], settings(images, tmp_path))
    inputs, labels = TENSORFLOW(data.pixels[split.tuning]), data.labels[split.tuning]
    noise = pm.noise.Noise(antithetic=False)

    def log_likelihood(sigma: float) -> float:
        likelihoods = []
        for member in range(5):
            moved = {n: p + sigma * noise.draw(n, member, p) for n, p in model.named_parameters() if p.ndim == 4}
            log_probs = torch.func.functional_call(model, moved, (inputs,)).double().log_softmax(1)
            likelihoods.append(log_probs.gather(1, labels[:, None]).exp())
        return float(torch.stack(likelihoods).mean(0).log().sum())

    lower, upper = 0.01, 0.3
    with torch.no_grad():
        for _ in range(3):  # of four iterations the fourth only looks
            left, right = upper - GOLDEN * (upper - lower), lower + GOLDEN * (upper - lower)
            lower, upper = (lower, right) if log_likelihood(left) >= log_likelihood(right) else (left, upper)
    assert whole["columns"]["pep"]["sigma"][1] == pytest.approx((lower + upper) / 2, rel=1e-8)


def test_a_row_has_every_column_on_every_split(whole: dict[str, Any]) -> None:
    assert set(whole["columns"]) == set(METHODS) == set(TITLES)
    for column in whole["columns"].values():
        assert {len(values) for values in column["scores"].values()} == {3}
    assert whole["columns"]["network"]["sigma"] == [0, 0, 0]
    assert whole["columns"]["temperature"]["scores"]["error"] == whole["columns"]["network"]["scores"]["error"]
    assert whole["items"] == {"all": 60, "tuning": 20, "test": 40}
    assert whole["perturbed"] == {"rule": "conv", "arrays": 2}
    assert len({split["digest"] for split in whole["splits"]}) == 3
    assert set(whole["provenance"]) >= {"versions", "hardware", "commit", "seed"}
    json.dumps(whole, allow_nan=False)


@pytest.mark.parametrize("method", list(METHODS))
def test_splits_that_share_their_members_give_what_each_gives_alone(
    images: Path, tmp_path: Path, method: str, whole: dict[str, Any]
) -> None:
    """The third split alone: members that see its 20 tuning images only, and its 40 test images only."""
    split, asked = splits_of(IMAGES, 20, 3)[2], settings(images, tmp_path)
    data = row_pictures(NETWORKS["Small"], asked)

    def alone(name: str, items: torch.Tensor) -> Part:
        pixels = LabelledPixels(data.pixels[items], data.labels[items], TENSORFLOW)
        machine = Machine(precision="float32")
        return Part(ImageMembers(small_network(), pixels, "conv", 0, machine, tmp_path / name, {}, len(items)))

    case = Case(alone("tuning", split.tuning), alone("test", split.test), 0.01, 0.3, iterations=4)
    column = METHODS[method](case)
    shared = whole["columns"][method]
    assert (column.sigma, column.temperature) == pytest.approx((shared["sigma"][2], shared["temperature"][2]), rel=1e-5)
    for score, value in column.scores(10, 3).items():
        assert value == pytest.approx(shared["scores"][score][2], rel=1e-5, abs=1e-9)


def test_members_are_run_once_for_all_splits(images: Path, tmp_path: Path) -> None:
    """Twelve splits ask for few more values of sigma than one: they sit on one lattice. A pass is a kept member."""
    found = {splits: table1.main(settings(images, tmp_path / str(splits), splits=splits)) for splits in (2, 12)}
    passes = {splits: rows["Small"]["passes"] for splits, rows in found.items()}
    assert passes[2] < passes[12] < 3 * passes[2]
    for splits, count in passes.items():
        kept = (tmp_path / str(splits) / "work" / "table1").rglob("*.safetensors")
        assert sum(len(load_file(path)["rows"]) for path in kept) == count


@pytest.mark.filterwarnings("ignore::peppermill.PepWarning")
def test_the_antithetic_joint_column_is_what_the_library_fits(images: Path, tmp_path: Path) -> None:
    """`pm.fit(..., temperature=True)` and `pm.evaluate` on the one split, the range found."""
    asked = settings(images, tmp_path, networks=("SmallFound",), splits=1, iterations=7, minimum_count=1)
    columns = table1.main(asked)["SmallFound"]["columns"]
    data, model = row_pictures(NETWORKS["Small"], asked), small_network()
    inputs = TENSORFLOW(data.pixels)
    tuning, test = (inputs[:20], data.labels[:20]), (inputs[20:], data.labels[20:])
    fitted = {
        "network": model,
        "temperature": pm.fit_temperature(model, tuning),
        "pep_antithetic": pm.fit(model, tuning, parameters="conv"),
        "pep_antithetic_temperature": pm.fit(model, tuning, parameters="conv", temperature=True),
    }
    for method, predictor in fitted.items():
        scores = pm.evaluate(predictor, test, bins=10)
        for score in ("nll", "brier", "ece", "error"):
            found = columns[method]["scores"][score][0]
            assert found == pytest.approx(getattr(scores, score).value, rel=1e-5, abs=1e-9)
    assert columns["pep_antithetic"]["sigma"] == [pytest.approx(fitted["pep_antithetic"].sigma, rel=1e-8)]


def test_groups_of_members_are_the_librarys_members(images: Path, tmp_path: Path) -> None:
    model = small_network()
    members = members_of(images, tmp_path, model)
    data = row_pictures(NETWORKS["Small"], settings(images, tmp_path))
    inputs = TENSORFLOW(data.pixels)
    for antithetic, groups in ((False, one_sided(2, 5)), (True, in_pairs(6))):
        size = sum(len(group) for group in groups)
        center = pm.parameters.select(model, "conv")
        perturbation = pm.perturbation.Perturbation(center, pm.noise.Noise(antithetic=antithetic), size)
        with torch.no_grad():
            log_probs = torch.stack(
                [torch.func.functional_call(model, params, (inputs,)).double().log_softmax(1)
                 for params in perturbation.members(0.1)]
            )  # fmt: skip
        found = members.run(0.1, groups)
        torch.testing.assert_close(found.averaged, log_probs.exp().mean(0).log(), rtol=1e-5, atol=1e-5)
        expected = log_probs.gather(2, data.labels.expand(size, -1)[..., None]).squeeze(2)
        rows = found.member_log_likelihoods.sort(0).values  # pairs come in another order
        torch.testing.assert_close(rows, expected.sort(0).values, rtol=1e-5, atol=1e-5)
    assert one_sided(5, 3) == (Group(1, 0, 3),)
    assert [str(group) for group in in_pairs(7)] == ["+0-3", "-0-3"]


@pytest.mark.parametrize("kill", ["member +0", "member +3", "member -4", "split 2"])
def test_a_run_killed_at_any_moment_ends_with_the_same_table(
    images: Path, tmp_path: Path, kill: str, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def say(text: str) -> None:
        if kill in text:
            raise KeyboardInterrupt

    asked = settings(images, tmp_path)
    monkeypatch.setattr(image_members, "PATIENCE", 0.0)
    with pytest.raises(KeyboardInterrupt):
        table1.main(replace(asked, say=say))
    assert not (tmp_path / "results").exists()
    said: list[str] = []
    found = table1.main(replace(asked, say=said.append))["Small"]
    assert found["passes"] < whole["passes"]
    for key in ("columns", "comparisons", "reliability", "splits"):
        assert found[key] == whole[key]
    assert table1.main(replace(asked, say=said.append))["Small"] == found
    assert said[-1].startswith("Small: done, in")


def test_other_weights_other_images_or_other_settings_are_computed_anew(images: Path, tmp_path: Path) -> None:
    asked = settings(images, tmp_path, splits=1)
    before = table1.main(asked)["Small"]
    seeded = table1.main(replace(asked, seed=1))["Small"]
    assert seeded["columns"]["pep"]["scores"] != before["columns"]["pep"]["scores"]
    assert seeded["columns"]["network"]["scores"] == before["columns"]["network"]["scores"]
    fewer = table1.main(replace(asked, images=50))["Small"]
    assert fewer["items"] == {"all": 50, "tuning": 20, "test": 30}


def test_no_image_both_tunes_and_tests() -> None:
    for split in splits_of(50, 11, 4):
        assert sorted([*split.tuning.tolist(), *split.test.tolist()]) == list(range(50))
        assert len(split.tuning) == 11
    first, second, *_ = splits_of(50, 11, 4)
    assert first.tuning.tolist() == list(range(11))
    assert second.tuning.tolist() == sorted(np.random.default_rng(1).permutation(50)[:11].tolist())
    assert [split.record() for split in splits_of(50, 11, 2)] == [split.record() for split in splits_of(50, 11, 4)[:2]]


def test_a_split_says_how_it_was_made_and_leaves_something_on_both_sides() -> None:
    first, second = (split.record() for split in splits_of(50, 11, 2))
    assert (first["seed"], first["made"]) == (None, "the first images tune")
    assert (second["seed"], second["made"]) == (1, "numpy's default_rng(1).permutation")
    assert (second["tuning"], second["test"], len(str(second["digest"]))) == (11, 39, 16)
    for tuning in (0, 50):
        with pytest.raises(ValueError, match=f"`tuning={tuning}` must leave images to tune on and to test on"):
            splits_of(50, tuning, 1)


def test_without_a_lower_end_pep_may_be_no_noise_at_all(images: Path, tmp_path: Path) -> None:
    """The networks of CIFAR-10 have an upper end alone; the paper's own search never looks at sigma = 0."""
    members = members_of(images, tmp_path, small_network())
    tried = {
        lower: [sigma for sigma, _ in METHODS["pep"](Case(Part(members), Part(members), lower, 0.3)).points]
        for lower in (None, 0.01)
    }
    assert min(tried[None]) == 0 < max(tried[None]) <= 0.3
    assert min(tried[0.01]) > 0.01


def test_the_settings_are_those_of_section_3_1() -> None:
    for settled in (Settings(), Case(None, None, None, None)):  # type: ignore[arg-type]
        assert (settled.tuning_size, settled.size, settled.iterations) == (5, 10, 7)
    assert (Settings().tuning, Settings().bins, Settings().minimum_count) == (5000, 10, 21)
    assert {(row.lower, row.upper) for row in map(NETWORKS.get, table1.PAPER) if row} == {(5e-4, 5e-3)}


def test_paired_tests_agree_with_scipy() -> None:
    generator = torch.Generator().manual_seed(0)
    nll, brier, error, confidence = (torch.rand(80, generator=generator).double() for _ in range(4))
    first = Column(nll, brier, (error > 0.4).double(), confidence)
    second = Column(nll - 0.05 * confidence, brier + 0.01 * error, (error > 0.5).double(), confidence)
    found = paired(first, second)
    expected = stats.ttest_rel(second.nll.numpy(), first.nll.numpy())
    bounds = expected.confidence_interval(0.95)
    assert (found["nll"]["p"], found["nll"]["lower"], found["nll"]["upper"]) == pytest.approx(
        (expected.pvalue, bounds.low, bounds.high)
    )
    better = int(((error > 0.4) & (error <= 0.5)).sum())
    assert found["error"]["p"] == pytest.approx(2 * 0.5**better)  # all that differ are better
    assert paired(first, first)["brier"] == {"mean": 0.0, "lower": 0.0, "upper": 0.0, "p": 1.0}


def test_small_bins_do_not_count_in_the_ece() -> None:
    """Ten images at 0.95, all right, and two at 0.15, both wrong: |1 - 0.95| 10/12 + |0 - 0.15| 2/12 by hand."""
    confidence = torch.tensor([0.95] * 10 + [0.15] * 2, dtype=torch.float64)
    error = torch.tensor([0.0] * 10 + [1.0] * 2, dtype=torch.float64)
    column = Column(error, error, error, confidence)
    assert column.scores(10, 1)["ece"] == pytest.approx((10 * 0.05 + 2 * 0.15) / 12)
    assert column.scores(10, 3)["ece"] == pytest.approx(10 * 0.05 / 12)


def test_the_page_shows_ours_below_the_printed_line(images: Path, tmp_path: Path, whole: dict[str, Any]) -> None:
    results = tmp_path / "results"
    results.mkdir()
    row = json.loads(json.dumps(whole)) | {"title": "ResNet50", "note": "A note."}
    (results / "table1-ResNet50.json").write_text(json.dumps(row))
    page = document.main(document.Settings(results, tmp_path / "docs" / "paper.md", say=lambda text: None))
    lines = page.splitlines()
    place = next(k for k, line in enumerate(lines) if line.startswith("| ResNet50 | printed | 1.19 | 2.60 | 1.084 |"))
    mean = np.mean(whole["columns"]["network"]["scores"]["nll"])
    assert lines[place + 1].startswith("| ResNet50 | ours, 40 |")
    assert f"| **{mean:.3f}** |" in lines[place + 1]
    assert (
        "- ResNet50: 60 images, of which 20 tune and 40 test (3 splits, the first by order, the others random). A"
        in page
    )
    assert "- Not run: DenseNet121, DenseNet169, InceptionV3, VGG16, VGG19." in page
    assert (tmp_path / "docs" / "figures" / "paper-table1-ResNet50.svg").is_file()
    p = [one["p"] < 0.05 and one["mean"] < 0 for one in whole["comparisons"]["pep - network"]["nll"]]
    assert f"| {sum(p)} of 3 |" in next(line for line in lines if "PEP − Network" in line)
    made = [
        sum(one["p"] < 0.05 and one["mean"] < 0 for one in whole["comparisons"][f"{kind} - temperature"]["nll"])
        for kind in ("pep", "pep_temperature", "pep_antithetic", "pep_antithetic_temperature")
    ]
    assert f"| ResNet50 | {' | '.join(f'{one} of 3' for one in made)} |" in lines


def test_without_results_the_page_says_which_command_makes_them(tmp_path: Path) -> None:
    asked = document.Settings(tmp_path, tmp_path / "paper.md", pictures=False, say=lambda text: None)
    assert f"No results yet: `{table1_page.COMMAND}`." in document.main(asked)


def test_what_cannot_be_run_says_why(images: Path, tmp_path: Path) -> None:
    asked = settings(images, tmp_path)
    for changes, message in (
        ({"networks": ("Smal",)}, "there is no network 'Smal' in Table 1"),
        ({"imagenet": None}, "Small needs the validation images: give their folder as `--imagenet`"),
        ({"tuning": 60}, "`tuning=60` must leave images to tune on and to test on, and there are 60 in all"),
        ({"splits": 0}, "`splits=0` must be at least 1"),
        ({"weights": tmp_path / "absent.h5"}, "must be the file of one network, or a folder"),
        ({"weights": images}, r"has no file Small\.safetensors"),
    ):
        with pytest.raises(ValueError, match=message):
            table1.main(replace(asked, **changes))


def test_the_command_line_runs_a_network(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["paper", "table1", "--networks", "Small", "--imagenet", str(images), "--tuning", "20", "--tiny"]
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 0, found.output
    content = json.loads((tmp_path / ".local" / "paper" / "tiny" / "table1-Small.json").read_text())
    direct = table1.main(
        table1.tiny(Settings(("Small",), images, tuning=20, out=tmp_path / "a", say=lambda text: None))
    )
    assert content["columns"] == direct["Small"]["columns"]
    refused = CliRunner().invoke(app, ["paper", "table1", "--networks", "Small"])
    assert refused.exit_code == 2
