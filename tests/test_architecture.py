"""The plan of the house, held: one test for each rule at the end of the plan; the measures are in architecture.py.

Each measure has a limit (today's value, lowered as the house gets better) and a goal (the plan's).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import architecture
import pytest
from architecture import LIMITS, OFFENDERS

import peppermill


@pytest.mark.parametrize("rule", OFFENDERS)
def test_no_more_offenders_than_allowed(rule):
    found = OFFENDERS[rule]()
    assert len(found) <= LIMITS[rule][0], "\n".join([f"{rule}:", *found])


@pytest.mark.parametrize("name", architecture.numbers())
def test_the_house_is_no_larger_than_allowed(name):
    assert architecture.numbers()[name] <= LIMITS[name][0]


@pytest.mark.filterwarnings("ignore::peppermill.PepWarning")
def test_the_jobs_of_the_plan_run_through_few_files():
    """`fit`, `pep(x)` and Table 2: what a reader has to open, counted while it runs."""
    found = architecture.hops()
    assert {name: value for name, value in found.items() if value > LIMITS[name][0]} == {}


def test_a_goal_is_never_above_its_limit_and_every_measure_has_one():
    assert all(goal <= now for now, goal in LIMITS.values())
    assert set(OFFENDERS) | set(architecture.numbers()) <= set(LIMITS)


def test_the_core_is_in_the_reading_order():
    places = [architecture.place(file) for file in architecture.CORE]
    assert max(places) < len(architecture.READING_ORDER)


def test_the_search_knows_nothing_of_networks():
    for file in ("tuning/search.py",):
        assert file not in architecture.users_of("torch")


def test_predictors_do_not_know_each_other():
    inside = {file for file in architecture.files() if file.startswith("predictors/")} - {"predictors/__init__.py"}
    assert {file: both for file in inside if (both := architecture.anywhere(file) & inside)} == {}


def test_all_public_names_together_import_no_optional_library():
    loaded = architecture.loaded_by("from peppermill import *")
    assert "peppermill.fitting" in loaded
    assert set(architecture.OPTIONAL) & loaded == set()


def test_every_file_and_every_public_definition_says_what_it_is():
    silent = [file for file, tree in architecture.files().items() if not ast.get_docstring(tree)]
    silent += [
        f"{file} {node.name}"
        for file, tree in architecture.files().items()
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_")
        if not ast.get_docstring(node) and "overload" not in map(ast.unparse, node.decorator_list)
    ]
    assert silent == []


def test_no_public_function_shares_its_name_with_a_module():
    """Otherwise the order of imports would decide what `peppermill.name` is."""
    modules = {name.split(".")[1] for name in architecture.modules() if "." in name}
    assert set(peppermill.__all__) & modules == {"demo", "metrics"}
    assert peppermill.metrics.__name__ == "peppermill.metrics"


def test_nothing_is_called_by_a_word_that_says_nothing():
    words = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert words & {part for name in architecture.modules() for part in name.split(".")} == set()


def calls(tree: ast.AST) -> Iterator[tuple[str, dict[str | None, str]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}


def test_no_file_that_is_opened_can_run_code():
    """No pickle except through an unpickler that says what it builds; no arrays or weights with objects in them."""
    for file, tree in architecture.files().items():
        libraries = {name.split(".")[0] for name in architecture.imported_names(ast.walk(tree))}
        assert not {"dill", "joblib", "shelve", "marshal"} & libraries, file
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pickle":
                assert node.attr in ("Unpickler", "UnpicklingError"), file
            if isinstance(node, ast.ClassDef) and "pickle.Unpickler" in map(ast.unparse, node.bases):
                assert "find_class" in [part.name for part in node.body if isinstance(part, ast.FunctionDef)], file
        for called, keywords in calls(tree):
            assert called != "torch.load" or keywords.get("weights_only") == "True", file
            assert called != "np.load" or keywords.get("allow_pickle") == "False", file
