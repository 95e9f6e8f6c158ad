"""The benchmarks' catalog and page: every row has its file, and the page says what the results say."""

import ast
import json
import re
import time
from datetime import datetime
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import document
from benchmarks import race as simulation
from benchmarks.catalog import BENCHMARKS
from benchmarks.core import CAREFUL, care
from benchmarks.timing import RESULTS, in_turns, ratio, table_section

FOLDER = Path(document.__file__).parent


def test_the_page_is_made_from_the_results():
    assert document.PAGE.read_text() == document.page(RESULTS)


def test_every_row_runs_as_a_module_and_writes_its_section():
    for name in BENCHMARKS:
        module = import_module(f"benchmarks.{name}")
        assert callable(module.main)
        assert callable(module.section)


def test_every_file_that_can_be_run_has_a_row():
    """All but the page itself and what several benchmarks share."""
    runnable = [path.stem for path in FOLDER.glob("*.py") if 'if __name__ == "__main__"' in path.read_text()]
    assert set(runnable) - {"__main__", "document", "trained"} == set(BENCHMARKS)


def test_every_result_has_a_section():
    shown = {path for name in BENCHMARKS for path in document.results_of(name, RESULTS)}
    assert shown == set(RESULTS.glob("*.json"))


def test_a_result_that_is_not_there_has_no_section(tmp_path):
    assert document.page(tmp_path) == document.OPENING
    (tmp_path / "core.json").write_text((RESULTS / "core.json").read_text())
    assert document.page(tmp_path).count("\n## ") == 1


def test_nothing_of_a_result_is_made_up():
    """Each result names its hardware, versions, command and time, and its commit if it came of a checkout."""
    paths = list(RESULTS.glob("*.json"))
    assert len(paths) >= 10
    for path in paths:
        made = json.loads(path.read_text())["provenance"]
        assert {"torch", "peppermill", "python"} <= set(made["versions"]), path.name
        assert made["hardware"]["processor"], path.name
        assert made["command"].split()[:3] == ["python", "-m", f"benchmarks.{path.stem.split('-')[0]}"], path.name
        assert datetime.fromisoformat(made["time"]).tzinfo is not None, path.name
        assert made["commit"] is None or re.fullmatch("[0-9a-f]{12}", made["commit"]), path.name


def test_peers_are_imported_only_where_they_are_used():
    """A machine without them still measures the rest, and the page needs none of them."""
    peers = {"backpack", "curvlinops", "laplace", "onnxruntime", "torch_uncertainty"}
    for path in FOLDER.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert not peers & {name.split(".")[0] for name in names}, path.name


def test_a_section_is_a_title_a_paragraph_and_a_table():
    found = table_section("Title", "Words.", ("a", "b"), [("1", "2"), ("3", "4")])
    assert found == "## Title\n\nWords.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n"


def test_rivals_take_turns():
    order = []
    found = in_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, "cpu", 3)
    assert order == ["a", "b"] * 3
    assert [len(found["a"]), len(found["b"])] == [3, 3]


def test_a_ratio_is_the_median_of_the_rounds():
    """Not the ratio of medians: a round in which the machine was busy for both counts as any other."""
    assert ratio([1, 20, 3], [1, 10, 1]) == {"ratio": 2, "ratio_lowest": 1, "ratio_highest": 3}


@pytest.mark.parametrize("case", ["200 items", "underconfident"])
def test_where_noise_has_nothing_to_tell_one_pass_is_chosen_and_the_estimate_is_right(case):
    """Two of the hundred repetitions of `python -m benchmarks.race`."""
    found = simulation.measure(*simulation.CASES[case], repetitions=2)
    assert (found["one_pass"], found["inside"]) == (2, 2)
    assert found["loss"] < 0.02


def test_every_careful_function_is_in_the_package():
    """A name that was changed in the package would make care look cheaper than it is."""
    defined = {
        node.name
        for path in (FOLDER.parent / "peppermill").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    assert defined >= CAREFUL


def test_care_is_the_share_of_the_time_in_careful_functions():
    def forms_of():
        time.sleep(0.1)

    assert care(forms_of)["ratio"] > 0.9
    assert 0.3 < care(lambda: (forms_of(), time.sleep(0.1)))["ratio"] < 0.7
