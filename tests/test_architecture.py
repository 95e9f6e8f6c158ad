"""The plan of the house, checked: who imports whom, how long things are, what is said about them."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import peppermill

PACKAGE = Path(peppermill.__file__).resolve().parent
PAGE = PACKAGE.parent / "docs" / "architecture.md"

#: Files and folders of the package in reading order: none imports from a later line.
LEVELS = [
    {
        *("types", "progress", "files", "foreign", "images", "checkpoints", "search", "sketch", "metrics", "demo"),
        *("processes", "placement", "advice", "nests", "optional", "spilled", "output_checks"),
    },
    {"parameters", "noise", "data", "held", "parts", "exchange", "fingerprint", "likelihood"},
    {"splitting", "perturbation", "engines"},
    {"predictions", "sample", "tempering", "tuning", "quick", "deployment"},
    {"recipe", "ensemble", "fitting", "sweep", "curvature", "baselines"},
    {"scoring", "evaluation", "effects", "overfitting", "sizes"},
    {"results"},
    {"record", "integrations"},
    {"report"},
    {"sources"},
    {"cli", "paper"},
]

#: What may import these: nobody else needs to know where models and data come from.
USED_BY = {"sources": {"cli", "paper", "sources"}, "demo": {"cli", "paper", "demo"}, "cli": {"cli", "__main__"}}

OPTIONAL = (
    *("matplotlib", "plotly", "timm", "transformers", "keras", "lightning", "pytorch_lightning", "torchvision"),
    *("sklearn", "PIL", "datasets", "onnx", "onnxscript", "onnxruntime"),
)

LONGEST_FILE, LONGEST_BODY = 250, 40

SOURCES = sorted(PACKAGE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text()) for path in SOURCES}


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in SOURCES}


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Every module that is imported, at the top or inside a function; what comes from a package may be modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from names if MODULES.keys() >= set(names) else [node.module, *names]


def top_level_imports(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        yield from imports_of(ast.Module([node], [])) if isinstance(node, (ast.Import, ast.ImportFrom)) else ()


#: (importing module, imported module) within the package.
EDGES = [
    (module_of(path), name)
    for path, tree in TREES.items()
    for name in dict.fromkeys(imports_of(tree))
    if name in MODULES and name not in ("peppermill", module_of(path))
]


def part(module: str) -> str:
    """The file or folder directly in the package to which a module belongs."""
    return module.split(".")[1] if "." in module else "__init__"


def level(name: str) -> int:
    return next(k for k, names in enumerate(LEVELS) if name in names)


def test_every_file_has_its_place_in_the_reading_order():
    known = set().union(*LEVELS) | {"__init__", "__main__"}
    assert {part(module) for module in MODULES} == known
    assert sum(len(names) for names in LEVELS) == len(set().union(*LEVELS))


@pytest.mark.skipif(not PAGE.is_file(), reason="the pages are not installed with the package")
def test_the_page_has_a_row_for_every_file_and_names_none_that_is_gone():
    text = PAGE.read_text(encoding="utf-8")
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    files = {path.name for path in PACKAGE.glob("*.py") if not path.name.startswith("__")}
    table = " ".join(line for line in text.splitlines() if line.startswith("| `"))
    assert {name for name in files if f"`{name}`" not in table} == {"checkpoints.py", "images.py"}  # told of below it
    assert {name for name in folders if f"`{name}/`" not in table} == set()
    assert set(re.findall(r"`(\w+\.py)`", text)) <= {path.name for path in SOURCES}


def test_nothing_imports_from_further_down():
    wrong = [
        f"{importer} imports {imported}"
        for importer, imported in EDGES
        if part(importer) not in ("__init__", "__main__") and level(part(imported)) > level(part(importer))
    ]
    assert wrong == []


def test_no_import_goes_in_a_circle():
    """Every file can be put after all that it imports."""
    waiting = {module: {b for a, b in EDGES if a == module} for module in MODULES if module != "peppermill"}
    while ready := [module for module, needed in waiting.items() if not needed & set(waiting)]:
        for module in ready:
            del waiting[module]
    assert waiting == {}


def test_sources_demo_and_cli_are_used_where_they_belong():
    wrong = [
        f"{importer} imports {imported}"
        for importer, imported in EDGES
        if part(importer) not in USED_BY.get(part(imported), {part(importer)})
    ]
    assert wrong == []


def test_baselines_do_not_know_each_other():
    wrong = [(a, b) for a, b in EDGES if part(a) == part(b) == "baselines" and a != "peppermill.predictors"]
    assert wrong == []


def test_the_search_knows_nothing_of_networks():
    for file in ("search.py", "sketch.py"):
        assert not any(name.split(".")[0] == "torch" for name in imports_of(TREES[PACKAGE / file]))


def test_experiments_use_public_names_only():
    """What begins with an underscore is a file's own: `paper/` and `benchmarks/` leave it alone."""
    folders = [PACKAGE / "paper", PACKAGE.parent / "benchmarks"]
    for path in (path for folder in folders if folder.is_dir() for path in folder.rglob("*.py")):
        for name in imports_of(ast.parse(path.read_text())):
            private = name.startswith("peppermill") and any(step.startswith("_") for step in name.split("."))
            assert not private, f"{path.name} imports {name}"


def at_run_time(tree: ast.Module) -> ast.Module:
    """The file without what only the type checker reads."""
    return ast.Module([node for node in tree.body if ast.unparse(node).split(":")[0] != "if TYPE_CHECKING"], [])


@pytest.mark.parametrize("name", OPTIONAL)
def test_an_optional_package_is_imported_in_one_file_and_only_when_needed(name):
    def mentions(tree, imports):
        return any(imported.split(".")[0] == name for imported in imports(tree))

    users = [path for path, tree in TREES.items() if mentions(at_run_time(tree), imports_of)]
    assert len(users) <= 1
    assert not any(mentions(TREES[path], top_level_imports) for path in users)


def test_all_public_names_together_import_no_optional_package():
    """In a process of its own, where nothing has imported any of them before."""
    code = "import sys; from peppermill import *; print([name for name in sys.argv[1:] if name in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    found = subprocess.run([sys.executable, "-c", code, *OPTIONAL], capture_output=True, text=True, env=environment)
    assert found.stdout == "[]\n", found.stderr


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_files_are_short(path):
    assert len(path.read_text().splitlines()) <= LONGEST_FILE


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield f"{module_of(path)}.{node.name}", node


def body_length(function: ast.FunctionDef) -> int:
    """Lines from the first statement to the last, the docstring not counted."""
    body = function.body[ast.get_docstring(function) is not None :]
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def test_bodies_are_short():
    assert [name for name, function in functions() if body_length(function) > LONGEST_BODY] == []


def test_most_bodies_fit_in_ten_lines():
    lengths = sorted(body_length(function) for _, function in functions())
    assert lengths[int(0.8 * len(lengths))] <= 10


def public_definitions() -> Iterator[tuple[str, ast.AST]]:
    for path, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                yield f"{module_of(path)}.{node.name}", node


def test_every_public_function_and_class_says_what_it_is():
    assert [name for name, node in public_definitions() if not ast.get_docstring(node)] == []


def test_every_file_says_what_it_is():
    assert [module_of(path) for path, tree in TREES.items() if not ast.get_docstring(tree)] == []


def test_no_public_function_shares_its_name_with_a_module():
    """Otherwise `peppermill.name` would be now the one, now the other, by the order of imports."""
    modules = {module.split(".")[1] for module in MODULES if "." in module}
    assert set(peppermill.__all__) & modules == {"metrics"}
    assert peppermill.metrics.__name__ == "peppermill.metrics"


def test_nothing_is_called_by_a_word_that_says_nothing():
    words = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert not words & {segment for module in MODULES for segment in module.split(".")}


def test_no_file_that_is_opened_can_run_code():
    """No pickle but through an unpickler that says itself what it makes; no arrays or weights with objects in them."""
    for path, tree in TREES.items():
        assert not {"dill", "joblib", "shelve", "marshal"} & {name.split(".")[0] for name in imports_of(tree)}, path
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pickle":
                assert node.attr in ("Unpickler", "UnpicklingError"), path
            if isinstance(node, ast.ClassDef) and "pickle.Unpickler" in map(ast.unparse, node.bases):
                assert "find_class" in [part.name for part in node.body if isinstance(part, ast.FunctionDef)], path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                called = ast.unparse(node.func)
                assert called != "torch.load" or keywords.get("weights_only") == "True", path
                assert called != "np.load" or keywords.get("allow_pickle") == "False", path


def test_the_levels_read_in_the_order_of_the_main_job():
    """types -> data -> perturbation -> tuning -> ensemble -> evaluation -> results -> report -> cli."""
    walk = ["types", "data", "perturbation", "tuning", "ensemble", "evaluation", "results", "report", "cli"]
    assert all(level(a) < level(b) for a, b in pairwise(walk))
