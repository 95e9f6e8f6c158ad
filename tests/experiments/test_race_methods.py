"""The experiment on the race: which splits and seeds run, and what their page says."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from experiments import race
from experiments.page import race_page
from experiments.resume import read_result

pytestmark = [
    pytest.mark.filterwarnings("ignore::peppermill.PepWarning"),  # 100 images are few
    pytest.mark.filterwarnings("ignore:By default `link_approx` is `probit`"),  # of laplace-torch
    pytest.mark.filterwarnings("ignore:Using a non-full backward hook:FutureWarning"),  # likewise
]
LAPLACE = {"laplace-torch, last layer", "laplace-torch, all weights"}


def page_of(content, apart=()):
    return race_page.page_of({"mnist-mlp": content}, apart, tuple(race.METHODS), race.ADDITIONS)


def test_seeds_splits_and_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first split runs with every seed, the second with its own; T is tuned once a split; the page has each row."""
    monkeypatch.setattr(race_page, "PAGE", tmp_path / "race.md")
    said: list[str] = []
    settings = race.Settings(
        out=tmp_path,
        checkpoints=tmp_path,
        splits=2,
        noise_seeds=2,
        images=200,
        passes=2,
        methods="base",
        say=said.append,
    )
    assert race.main(replace(settings, only=(1,))) == {}  # as another process would
    assert [path.name for path in tmp_path.glob("race*")] == ["race"]  # a stage, no result and no page
    stage = next((tmp_path / "race").iterdir())
    assert stage.name == "demo-1-1.json"
    before = stage.stat().st_mtime_ns
    said.clear()
    race.main(settings)
    assert stage.stat().st_mtime_ns == before  # read, not computed again
    assert [line.split(":")[0] for line in said] == [
        "demo, split 1, noise 1",
        "demo, split 1, noise 2",
        "demo, split 2, noise 2",
    ]
    found = read_result(tmp_path / "race-demo.json", race_page.KIND)
    assert found is not None
    assert found["runs"] == 3
    assert found["methods"]["temperature scaling"]["passes"] == 1
    assert found["methods"]["temperature scaling"]["over seeds"] == 0 <= found["methods"]["PEP, T"]["over seeds"]
    page = (tmp_path / "race.md").read_text()
    assert found["methods"].keys() == set(race.BASE) - {"PEP and mirror image, T"}  # not trained with mirror images
    assert all(f"| {name} |" in page for name in found["methods"])
    assert "Splits of 200 images: 2; seeds of the noise on the first one: 2." in page
    kept = json.loads(stage.read_text())["content"]
    race.main(replace(settings, only=(1,), precision="float16"))  # of the members alone, and computed again
    low = json.loads(stage.read_text())["content"]
    assert low["temperature scaling"] == kept["temperature scaling"]
    assert low["PEP, T"] != kept["PEP, T"]
    assert low["PEP, T"]["nll"] == pytest.approx(kept["PEP, T"]["nll"], abs=0.02)


@pytest.mark.parametrize(("tuning", "inside"), [(100, 1.0), (10_000, 0.0)])
def test_an_estimate_is_judged_with_the_errors_of_both_samples(tuning, inside):
    """Items of 0 and 2 have the standard deviation 1, so 400 of them the error 0.05; 100 tuning items add 0.1."""
    items = [0.0, 2.0] * 200
    run = {"nll": 1.0, "ece": 0.0, "error": 0.0, "passes": 1, "items": items}
    methods = {"temperature scaling": run, "race": run | {"estimate": 1.2, "spent": 3.0, "choice": "one"}}
    one = {"split": 0, "seed": 0, "tuning": tuning, "methods": methods, "numbers": [*range(400)]}
    assert race.races_of([one], race.rows_of([one]))["estimate within two standard errors"] == inside


def test_a_split_with_several_seeds_counts_as_much_as_any_other():
    """Item by item 0.2 and 0.6 on the first split, 0.6 and 1.8 on the second: 0.8 on average, and not two thirds."""
    runs = []
    for split, seed, difference in [(0, 0, 0.1), (0, 1, 0.3), (1, 1, 0.6)]:
        methods = {"race": {"items": [1.0 + difference, 2.0 + 3 * difference]}}
        methods |= {"temperature scaling": {"items": [1.0, 2.0]}} if seed == split else {}
        runs.append({"split": split, "seed": seed, "methods": methods, "numbers": [7, 9]})
    assert race.paired(runs, "temperature scaling")["mean"] == pytest.approx(0.8)


def test_the_page_has_one_row_for_each_network_and_stars_where_the_race_differs():
    """The best one-pass calibrator stands beside temperature scaling, with its name; no mirror image, no number."""
    scores = {"ece": 0.01, "error": 0.1, "over splits": 0.0, "over seeds": 0.0, "from T": -0.1, "splits": 5}
    nll = {"network": 0.5, "temperature scaling": 0.4, "vector scaling": 0.3, "race": 0.31}
    content = {
        "methods": {
            title: {"nll": value, "passes": 2 if title == "race" else 1, **scores} for title, value in nll.items()
        },
        "best one pass": "vector scaling",
        "paired": {
            "race - temperature scaling": {"mean": -0.09, "error": 0.01, "p": 1e-9},
            "race - vector scaling": {"mean": 0.01, "error": 0.01, "p": 0.4},
        },
        "choices": {"two": 1, "one": 4},
        "runs": 5,
        "spent": 100.0,
        "estimate within two standard errors": 1.0,
        "settings": {"splits": 5, "noise_seeds": 1},
        "provenance": {"command": "race", "commit": "abc"},
    }
    text = page_of(content)
    assert "| MNIST (MLP) (Table 2) | 0.5000 | 0.4000* | 0.3000 (vector) |  | **0.3100** (2.0) |" in text
    assert "The race chose: one (4 of 5), two (1 of 5)." in text
    assert "Two views" not in text
    assert "The additions to PEP have not been measured separately on MNIST (MLP) (Table 2)." in text
    mirror = {"nll": 0.30, "passes": 2, **scores}
    dear = content["methods"]["race"] | {"passes": 4}
    cheap = content | {"methods": content["methods"] | {"mirror image, T": mirror, "race": dear}}
    assert "need fewer passes, on MNIST (MLP) (Table 2): one standard error" in page_of(cheap)
    apart = [{}, {"mnist-mlp": content | {"methods": {"mirror image, T": mirror | {"from T": 0.25}}}}]
    assert "| 0.3000 (vector) | +0.2500 from T | **0.3100**" in page_of(content, apart)
    equal = cheap | {"methods": cheap["methods"] | {"mirror image, T": mirror | {"passes": 4}}}
    assert "Two views" not in page_of(equal)


def test_additions_that_run_by_themselves_join_the_page_with_the_difference_on_their_own_splits(tmp_path, monkeypatch):
    """Means of different splits cannot be compared, so each row has its difference from T on its own splits."""
    monkeypatch.setattr(race_page, "PAGE", tmp_path / "race.md")
    places = {"out": tmp_path, "checkpoints": tmp_path, "say": lambda text: None}
    shared = race.Settings(splits=2, noise_seeds=1, images=200, passes=2, methods="base", **places)
    race.main(shared)
    race.main(replace(shared, splits=1, methods="additions"))
    stages = {path.stem: json.loads(path.read_text())["content"] for path in (tmp_path / "race").iterdir()}
    assert stages.keys() == {"demo-0-0", "demo-1-1", "demo-0-0-usual", "demo-0-0-additions"}
    base, additions = (read_result(tmp_path / f"{file}-demo.json", race_page.KIND) for file in ("race", "additions"))
    assert base is not None
    assert additions is not None
    one_split, usual = additions["methods"]["PEP by layer, vector, m = 4"], stages["demo-0-0"]["temperature scaling"]
    assert (one_split["splits"], one_split["passes"]) == (1, 4)
    assert one_split["from T"] == pytest.approx(one_split["nll"] - usual["nll"])
    assert one_split["from T"] != pytest.approx(one_split["nll"] - base["methods"]["temperature scaling"]["nll"])
    assert {title for title in additions["methods"] if "laplace" in title} == (
        LAPLACE if find_spec("laplace") else set()
    )
    page = (tmp_path / "race.md").read_text()
    assert "| PEP (1 of 2 splits) | 2 |" in page
    assert (
        f"| temperature scaling | 1 | {base['methods']['temperature scaling']['nll']:.4f} |" in page
    )  # of both splits
    assert page.count("- Made by `") == 2
    race.main(replace(shared, splits=1, methods="views"))
    views, page = read_result(tmp_path / "views-demo.json", race_page.KIND), (tmp_path / "race.md").read_text()
    assert views is not None
    assert views["methods"].keys() == {"temperature scaling", "mirror image, T"}
    assert views["methods"]["mirror image, T"]["from T"] > 0.05  # the demo's network knows no mirrored clothes
    assert page.count("- Made by `") == 3
    assert "measured separately" not in page
    every = race.main(replace(shared, methods="all", splits=1))["demo"]["methods"]
    assert every.keys() == base["methods"].keys() | additions["methods"].keys()
    assert every["PEP"] == additions["methods"]["PEP"]


def test_unknown_methods_are_refused() -> None:
    with pytest.raises(ValueError, match="`methods='addition'` must be one of base, additions, views, all"):
        race.Settings(methods="addition")
