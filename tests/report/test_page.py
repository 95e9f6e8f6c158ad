"""The page as a file: whole or absent, self-contained, small, and every name in it text."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import peppermill as pm
from peppermill.cli.app import app
from peppermill.evaluation.item_effects import effects_of, with_images
from peppermill.likelihood import Categorical
from peppermill.passes import MemberPass
from peppermill.predictions import Predictions
from peppermill.report.page import in_script

from .small_runs import CLASS_NAMES, HOSTILE, small_run


class Reader(HTMLParser):
    """The elements of a page, the text outside scripts, and the content of each script."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text, self.scripts = [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.cdata_elem == "script":
            self.scripts[-1] += data
        elif self.cdata_elem != "style":
            self.text += data


@pytest.fixture(scope="module")
def run():
    return small_run(f"a run of {HOSTILE}")


@pytest.fixture
def run_file(run, tmp_path):
    pm.write_run(run, tmp_path / "run.json")
    return tmp_path / "run.json"


def page(runs, tmp_path):
    return Reader(pm.write_report(runs, tmp_path / "report.html").read_text(encoding="utf-8"))


def squeezed(text):
    return " ".join(text.split())


def test_a_run_and_its_file_give_the_same_page(run, run_file, tmp_path):
    pm.write_report(run, tmp_path / "one.html")
    pm.write_report(run_file, tmp_path / "other.html")
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "other.html").read_bytes()


def test_nothing_on_the_page_is_elsewhere(run, tmp_path):
    """Every address in it is data, and its policy lets the browser ask for nothing."""
    found = page(run, tmp_path)
    addresses = [attrs[key] for _, attrs in found.elements for key in ("src", "href") if key in attrs]
    assert len(addresses) == 1 + len(run.effects.helped) + len(run.effects.hurt) + len(run.uncertainty["shown"])
    assert all(address.startswith("data:image/") for address in addresses)
    policy = next(attrs["content"] for _, attrs in found.elements if "http-equiv" in attrs)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "http" not in policy


def test_names_stay_text(run, tmp_path):
    """No element comes from a name, and every name is readable as it was given."""
    found = page(run, tmp_path)
    assert [attrs.get("type") for tag, attrs in found.elements if tag == "script"] == [
        "application/json",
        "text/plain",
        None,
    ]
    assert not [attrs for _, attrs in found.elements if "onerror" in attrs]
    assert "window.broken" not in found.scripts[1] + found.scripts[2]
    shown = {effect.label for effect in (*run.effects.helped, *run.effects.hurt)}
    for name in (HOSTILE, "temperature <i>scaling</i>", *(CLASS_NAMES[k] for k in shown)):
        assert name in squeezed(found.text)


def test_json_inside_a_script_cannot_end_it():
    value = {"name": "</script><!--<script>&\u2028", "numbers": [1.5, None]}
    text = in_script(value)
    assert not re.search("[<>&\u2028]", text)
    assert json.loads(text) == value


def test_the_numbers_behind_the_figures_are_those_of_the_file(run, run_file, tmp_path):
    content, drawn = pm.read_run(run_file), json.loads(page(run, tmp_path).scripts[0])["runs"][0]
    points = content["sweep"]["points"]
    assert drawn["sweep"]["ensemble"] == pytest.approx([point["log_likelihood"] for point in points], rel=1e-7)
    assert drawn["sweep"]["star"] == pytest.approx(content["methods"][2]["fitted"]["sigma"], rel=1e-7)
    for table, point in zip(drawn["sweep"]["reliability"], points, strict=True):
        assert table["count"] == point["reliability"]["count"]
        for drawn_bin, kept in zip(table["accuracy"], point["reliability"]["accuracy"], strict=True):
            assert drawn_bin == (None if kept is None else pytest.approx(kept, rel=1e-7))
    assert drawn["items"][0]["members"] == pytest.approx(content["effects"]["helped"][0]["members"], rel=1e-7)


def test_verdict_table_and_provenance_can_be_read_without_scripts(run, tmp_path):
    text = squeezed(page(run, tmp_path).text)
    nll = run.methods[2].scores.nll
    assert re.search(r"PEP (makes|changes|leaves) ", text)
    assert f"{nll.value:.4f}[{nll.lower:.4f}, {nll.upper:.4f}]" in text
    difference = run.methods[2].comparison.nll
    assert f"−{-difference.value:.4f}[−{-difference.lower:.4f}" in text
    for part in (torch.__version__, run.provenance["fingerprint"]["parameters"], "validation items", "stripes"):
        assert part in text


def test_several_runs_are_compared_and_each_has_its_details(run, tmp_path):
    other = replace(run, title="another run", sweep=None, effects=None)
    found = page([run, other, replace(run, title="only a sweep", methods=())], tmp_path)
    assert "3 runs compared" in squeezed(found.text)
    assert [attrs["id"] for tag, attrs in found.elements if tag == "article"] == ["run-1", "run-2", "run-3"]
    assert "2 · another run" in found.text
    drawn = json.loads(found.scripts[0])["compared"]
    assert [row["method"] for row in drawn] == ["PEP", "PEP", None]
    assert drawn[0]["scores"]["nll"]["after"] == run.methods[2].scores.nll.value
    before, after = (f"{method.scores.nll.value:.4f}" for method in (run.methods[0], run.methods[2]))
    assert f"PEP {before} → {after}p" in squeezed(found.text)


def figures(found):
    return {attrs["data-figure"] for _, attrs in found.elements if "data-figure" in attrs}


def test_a_run_without_a_sweep_has_no_slider(run, tmp_path):
    found = page(replace(run, sweep=None), tmp_path)
    assert figures(found) == {
        "race",
        "method",
        "members",
        "classes",
        "curvature",
        "overfitting",
        "sizes",
        "risk",
        "uncertainty",
    }
    assert not [attrs for tag, attrs in found.elements if tag == "input"]


def test_a_sweep_alone_has_a_page(run, tmp_path):
    found = page(pm.Run("a sweep", {}, (), run.sweep, run.provenance), tmp_path)
    assert figures(found) == {"sigma", "reliability"}
    assert "so this is not a test" in found.text


def test_a_regression_has_a_page(tmp_path):
    torch.manual_seed(0)
    network = nn.Linear(4, 2).eval()
    data = torch.randn(40, 4), torch.randn(40)
    with torch.no_grad():
        network.bias[1] = -3.0
    pep = pm.fit(network, data, size=4, likelihood="gaussian")
    found = page(
        pm.record_run({"network": network, "PEP": pep}, data, title="a regression", likelihood="gaussian"), tmp_path
    )
    assert figures(found) == set()
    assert "its typical error goes from" in found.text


def test_panels_of_curvature_and_overfitting_are_there_when_the_run_has_them(run, tmp_path):
    assert {"curvature", "overfitting"} <= figures(page(run, tmp_path))
    text = squeezed(page(run, tmp_path).text)
    assert "Laplacian −12.5, trace of the Fisher information 14.5, effect σ²/2 times 2" in text
    assert "Spearman’s rank correlation 1 [0.8, 1] over 3 networks" in text
    assert not {"curvature", "overfitting"} & figures(page(replace(run, curvature=None, overfitting=None), tmp_path))


def test_the_panel_of_sizes_says_how_many_members_are_enough(run, tmp_path):
    found = page(run, tmp_path)
    sizes = run.sizes
    assert sizes.smallest(0.01) == 6
    opening = "Against all 6 members of PEP on these 400 items, "
    assert f"{opening}any fewer lose more than 0.01" in squeezed(found.text)
    small = tuple(
        replace(lost, upper=upper) for lost, upper in zip(sizes.loss, (9, 0.009, 9, 0.002, 9, 0), strict=True)
    )
    text = squeezed(page(replace(run, sizes=replace(sizes, loss=small)), tmp_path).text)
    assert f"{opening}2 lose at most 0.01, 4 lose at most 0.003 of the log-loss (the upper end of 95 %" in text
    drawn = json.loads(found.scripts[0])["runs"][0]["sizes"]
    assert drawn["sizes"] == [1, 2, 3, 4, 5, 6]
    for shown, estimate in zip(drawn["nll"], sizes.nll, strict=True):
        assert shown == pytest.approx(vars(estimate), rel=1e-7)
    assert drawn["network"] == pytest.approx(run.methods[0].scores.nll.value, rel=1e-7)
    assert "sizes" not in figures(page(replace(run, sizes=None), tmp_path))


def test_sizes_alone_have_a_page(run, tmp_path):
    found = page(pm.Run("sizes", {}, (), sizes=run.sizes), tmp_path)
    assert figures(found) == {"sizes"}
    assert json.loads(found.scripts[0])["runs"][0]["sizes"]["network"] is None


def truncated(path):
    path.write_text(path.read_text()[:3000])


def newer(path):
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 2}))


def foreign(path):
    path.write_text('{"epochs": 3}')


def without_scores(path):
    content = json.loads(path.read_text())
    del content["methods"][1]["scores"]["estimates"]
    path.write_text(json.dumps(content))


def text_for_a_number(path):
    content = json.loads(path.read_text())
    content["methods"][1]["scores"]["estimates"]["nll"]["value"] = HOSTILE
    path.write_text(json.dumps(content))


def half_a_panel(path):
    path.write_text(json.dumps(json.loads(path.read_text()) | {"curvature": {"sigmas": [1]}}))


def lists_of_two_lengths(path):
    content = json.loads(path.read_text())
    content["curvature"]["measured"].pop()
    path.write_text(json.dumps(content))


def half_a_curve(path):
    content = json.loads(path.read_text())
    content["sizes"]["nll"].pop()
    path.write_text(json.dumps(content))


DAMAGES = [
    (truncated, r"run\.json is not JSON \(line \d+\): it is truncated or corrupted"),
    (newer, r"run\.json has version 2, and this library reads up to 1: install a newer peppermill"),
    (foreign, r"run\.json is not a peppermill run: it was written by another tool"),
    (without_scores, r"run\.json is damaged \(KeyError: 'estimates'\), so no report was written"),
    (text_for_a_number, r"run\.json is damaged \(.*so no report was written: run the command that wrote it again"),
    (half_a_panel, r"run\.json is damaged \(KeyError: 'predicted'\)"),
    (lists_of_two_lengths, r"run\.json is damaged \(ValueError: zip\(\) argument 4 is shorter"),
    (half_a_curve, r"run\.json is damaged \(ValueError: zip\(\) argument 2 is shorter"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES, ids=[damage.__name__ for damage, _ in DAMAGES])
def test_a_bad_run_file_gives_a_clear_error_and_no_page(run, run_file, tmp_path, damage, message):
    """Also where it is the second of two; a page that was there before stays as it was."""
    good = tmp_path / "good.json"
    good.write_bytes(run_file.read_bytes())
    damage(run_file)
    (tmp_path / "old.html").write_text("the old page")
    for target in ("new.html", "old.html"):
        with pytest.raises(ValueError, match=message):
            pm.write_report([good, run_file], tmp_path / target)
    assert (tmp_path / "old.html").read_text() == "the old page"
    assert {path.name for path in tmp_path.iterdir()} == {"good.json", "run.json", "old.html"}


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*missing\.json"):
        pm.write_report(tmp_path / "missing.json", tmp_path / "report.html")


def test_no_run_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="`runs` is empty: give at least one run"):
        pm.write_report([], tmp_path / "report.html")


def test_the_command_writes_the_page_and_says_so(run_file, tmp_path):
    out = tmp_path / "folder" / "page.html"
    found = CliRunner().invoke(app, ["report", str(run_file), str(run_file), "-o", str(out)])
    assert (found.exit_code, found.exception) == (0, None)
    assert "page.html (2." in squeezed(found.stdout)
    assert "2 runs compared" in squeezed(Reader(out.read_text(encoding="utf-8")).text)


def test_the_command_says_what_is_wrong_with_a_file(run_file, tmp_path):
    foreign(run_file)
    found = CliRunner().invoke(app, ["report", str(run_file), "-o", str(tmp_path / "page.html")])
    assert found.exit_code == 2
    assert "is not a peppermill run" in squeezed(found.output)
    assert not (tmp_path / "page.html").exists()


def large_run(run, items=50_000, classes=1_000):
    """The effects of a large problem in the run of a small one: pictures that do not compress, twenty sigmas."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (items,), generator=generator)
    logits = torch.randn(items, classes, generator=generator)
    network = logits.log_softmax(dim=1)
    averaged = logits.mul_(0.9).log_softmax(dim=1)
    rows = averaged.gather(1, labels[:, None]).squeeze(1) + 0.1 * torch.randn(25, items, generator=generator)
    predictions = Predictions(network, labels, network[:, 0], Categorical())
    effects = effects_of(predictions, MemberPass(0.1, rows, averaged, labels, torch.arange(items)))
    images = torch.randint(256, (items // 50, 3, 256, 256), dtype=torch.uint8, generator=generator)
    shown = [replace(e, item=e.item % len(images)) for e in (*effects.helped, *effects.hurt)]
    pictured = with_images(replace(effects, helped=tuple(shown[:6]), hurt=tuple(shown[6:])), dict(enumerate(images)))
    points = tuple(
        replace(run.sweep.points[k % 12], sigma=k / 100, member_log_likelihoods=tuple(rows[:, k].tolist()))
        for k in range(20)
    )
    return replace(
        run,
        title="50,000 items of 1,000 classes",
        class_names=tuple(f"class number {k}, {'a long name ' * 3}" for k in range(classes)),
        effects=pictured,
        sweep=replace(run.sweep, points=points, items=items),
    )


def test_a_large_run_stays_under_two_megabytes_and_its_page_under_six(run, tmp_path):
    large = large_run(run)
    pm.write_run(large, tmp_path / "run.json")
    assert all(len(effect.image) > 8_000 for effect in large.effects.helped)
    assert 200_000 < (tmp_path / "run.json").stat().st_size < 2_000_000
    pm.write_report([tmp_path / "run.json"] * 3, tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 6_000_000
