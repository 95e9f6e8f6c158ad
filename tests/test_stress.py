"""A short part of every hostile test of stress/, and the page that says what the long ones found."""

import json
import math
import re
from importlib import import_module

import pytest

from stress import document
from stress.document import PARTS, RESULTS, ROOT

SHORT = {"zoo": 8, "interrupts": 30, "threads": 80, "fuzz": 15, "kills": 3, "stream_kills": 5, "ranks": 1}
MUST_BE_ZERO = {name: [key for key, title in part.figures.items() if "**" in title] for name, part in PARTS.items()}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PARTS)
def test_a_short_part_finds_no_fault(name):
    found = import_module(f"stress.{name}").run(seed=5, count=SHORT[name], deadline=math.inf)
    assert found["faults"] == []
    assert not any(found.get(key, 0) for key in MUST_BE_ZERO[name])
    assert found.get("networks", found["cases"]) >= SHORT[name]


def test_the_page_is_made_from_the_results():
    assert document.PAGE.read_text() == document.page(RESULTS)


def test_every_result_has_its_part_and_its_origin():
    paths = list(RESULTS.glob("*.json"))
    assert {path.stem for path in paths} == set(PARTS)
    for path in paths:
        found = json.loads(path.read_text())
        made = found["provenance"]
        assert re.fullmatch("[0-9a-f]{12}", made["commit"]), path.name
        assert made["command"].startswith("python -m stress"), path.name
        assert path.stem in made["command"], path.name
        assert found["cases"] > 0
        assert bool(found["faults"]) == any(found.get(key, 0) for key in MUST_BE_ZERO[path.stem]), path.name


def test_a_fault_stands_on_the_page(tmp_path):
    found = json.loads((RESULTS / "zoo.json").read_text()) | {"wrong": 1, "faults": ["a network, auto, all: wrong"]}
    (tmp_path / "zoo.json").write_text(json.dumps(found))
    page = document.page(tmp_path)
    assert "| **wrong** | 1 |" in page
    assert "- a network, auto, all: wrong" in page


def test_the_fuzzer_knows_every_command_and_option():
    from peppermill.cli import app
    from stress.fuzz import OPTIONS, SANE

    assert set(SANE) == set(app.COMMANDS) - {"demo"}, "the demo takes a minute"
    for name in SANE:
        options = {option for parameter in app.load(name).params for option in parameter.opts if option[0] == "-"}
        assert options <= set(OPTIONS), name


def test_the_zoo_is_large_enough():
    from stress.odd_networks import NETWORKS

    assert len(NETWORKS) >= 200
    reference = (ROOT / "stress" / "reference.py").read_text().partition("def digest")[0]
    assert len(reference.splitlines()) <= 50, "the reference is right because it is short"
