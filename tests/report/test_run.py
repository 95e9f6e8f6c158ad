"""A run as one JSON file."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import peppermill as pm
from peppermill.metrics import reliability
from peppermill.report.run import Run, hardware, method_of, plain, provenance, read_run, write_run


def strict(text):
    """JSON as the standard has it: NaN and Infinity are no numbers."""

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def run():
    torch.manual_seed(0)
    network, labels = nn.Linear(2, 3).eval(), torch.tensor([0, 1, 2, 2, 1, 0, 0])
    inputs = torch.randn(7, 2)
    one = pm.predict(network, (inputs, labels))
    other = pm.predict(nn.Sequential(network, nn.Tanh()).eval(), (inputs, labels))
    methods = (
        method_of("network", one),
        method_of("other", other, comparison=pm.compare(one, other), fitted={"sigma": 0.1}, forward_passes=4),
    )
    sweep = pm.sweep_sigma(network, (inputs, labels), [0.1, 0.2], size=2)
    return Run("seven items", {"size": 2, "path": None}, methods, sweep, provenance(seed=3))


def test_every_number_of_a_run_is_in_its_file(run, tmp_path):
    write_run(run, tmp_path / "run.json")
    content = read_run(tmp_path / "run.json")
    assert (content["title"], content["settings"]) == ("seven items", {"size": 2, "path": None})
    assert [method["name"] for method in content["methods"]] == ["network", "other"]
    first, second = content["methods"]
    assert first["comparison"] is None
    assert first["scores"]["items"] == 7
    assert (second["fitted"], second["forward_passes"]) == ({"sigma": 0.1}, 4)
    assert first["scores"]["estimates"]["nll"] == vars(run.methods[0].scores.nll)
    assert second["comparison"]["differences"]["ece"] == vars(run.methods[1].comparison.ece)
    assert [point["sigma"] for point in content["sweep"]["points"]] == [0.0, 0.1, 0.2]
    assert content["sweep"]["points"][1]["member_log_likelihoods"] == list(run.sweep.points[1].member_log_likelihoods)
    assert content["sweep"]["points"][1]["brier"] == run.sweep.points[1].brier
    assert "scores" not in content["sweep"]["points"][1]
    assert content["provenance"] == run.provenance


def test_what_is_not_a_number_is_null_in_strict_json(run, tmp_path):
    """Of seven items, most of the twenty bins are empty, and their confidence is NaN."""
    write_run(run, tmp_path / "run.json")
    content = strict((tmp_path / "run.json").read_text())
    table = content["methods"][0]["reliability"]
    assert sum(table["count"]) == 7
    assert [confidence is None for confidence in table["confidence"]] == [count == 0 for count in table["count"]]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, None),
        (-math.inf, None),
        (torch.tensor([1.0, math.inf]), [1.0, None]),
        ((1, (2, math.nan)), [1, [2, None]]),
        ({1: torch.tensor(2)}, {"1": 2}),
        ("σ", "σ"),
        (True, True),
        (None, None),
    ],
)
def test_values_become_lists_dicts_and_finite_numbers(value, expected):
    assert plain(value) == expected


def test_the_reliability_table_has_the_bins_of_the_scores():
    logits, labels = torch.randn(30, 3, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3
    found = pm.predict(nn.Identity().eval(), (logits, labels))
    method = method_of("network", found, bins=7)
    assert torch.equal(method.reliability.count, reliability(found.log_probs, labels, bins=7).count)
    assert len(method.reliability.count) == 7


def test_a_regression_has_no_reliability_table():
    found = pm.predict(nn.Identity().eval(), (torch.randn(9, 2), torch.randn(9)), likelihood="gaussian")
    assert method_of("network", found).reliability is None


def test_provenance_says_versions_hardware_seed_commit_command_and_time():
    found = provenance(seed=5)
    assert found["seed"] == 5
    assert set(found["versions"]) == {"peppermill", "torch", "numpy", "scipy", "python"}
    assert found["versions"]["torch"] == torch.__version__
    assert found["versions"]["python"].split(".")[:2] == [str(part) for part in sys.version_info[:2]]
    assert found["hardware"]["cores"] >= 1
    assert found["hardware"]["threads"] == torch.get_num_threads()
    assert found["hardware"]["processor"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", found["time"])
    assert found["command"]
    strict(json.dumps(found))


def test_the_gpu_is_named_where_there_is_one():
    assert ("gpu" in hardware()) == torch.cuda.is_available()


def test_the_command_is_the_line_that_was_typed(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/peppermill", "demo", "--size", "4"])
    assert provenance(0)["command"] == "peppermill demo --size 4"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["/usr/lib/python3/peppermill/__main__.py", "paper", "ood"], "peppermill paper ood"),
        (["benchmarks/tuning.py", "--out", "/home/me/out", "mnist-mlp"], "tuning.py --out out mnist-mlp"),
        (["peppermill", "fit", "a:b", "npz:x.npz", "--out", "results/pep.json"],
         "peppermill fit a:b npz:x.npz --out results/pep.json"),
    ],
)  # fmt: skip
def test_the_command_shows_no_folder_of_this_machine(monkeypatch, words, expected):
    monkeypatch.setattr("sys.argv", words)
    assert provenance(0)["command"] == expected


def test_the_commit_is_that_of_the_checkout():
    here = Path(pm.__file__).resolve().parent
    asked = subprocess.run(["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    inside = asked.returncode == 0 and (here.parent / ".git").exists()
    found = provenance(0)["commit"]
    assert (found is not None and asked.stdout.startswith(found) and len(found) >= 12) if inside else found is None


def damaged(path, **changes):
    content = {"format": "peppermill run", "version": 1, "title": "", "settings": {}, "methods": [], "provenance": {}}
    content.update(changes)
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
    return path


def test_a_truncated_run_is_refused(run, tmp_path):
    write_run(run, tmp_path / "run.json")
    (tmp_path / "run.json").write_text((tmp_path / "run.json").read_text()[:500])
    with pytest.raises(ValueError, match=r"run\.json is not JSON \(line \d+\): it is truncated or corrupted"):
        read_run(tmp_path / "run.json")


def test_a_foreign_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"run\.json is not a peppermill run: it was written by another tool"):
        read_run(damaged(tmp_path / "run.json", format="peppermill ensemble"))


def test_a_newer_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has version 2, and this library reads up to 1: install a newer peppermill"):
        read_run(damaged(tmp_path / "run.json", version=2))


def test_a_run_without_its_parts_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"is damaged: it has no settings, methods\. Run the command that wrote it"):
        read_run(damaged(tmp_path / "run.json", methods=None, settings=None))


def test_a_copy_without_history_is_told_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEPPERMILL_COMMIT", "0123456789ab")
    assert provenance(0)["commit"] == "0123456789ab"
