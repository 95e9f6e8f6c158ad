"""What starting costs: help, version and completion without torch, and the library without what nobody asked for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import peppermill

CHECKOUT = str(Path(peppermill.__file__).resolve().parents[1])

COMMAND_LINE = """
import sys
from peppermill.cli.app import app
sys.argv = ["peppermill", *sys.argv[1:]]
try:
    app(sys.argv[1:], prog_name="peppermill")
finally:
    print("torch" in sys.modules, "numpy" in sys.modules)
"""


def python(code, *arguments, **environment):
    """What a fresh Python prints."""
    found = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": CHECKOUT, **environment},
    )  # fmt: skip
    assert "Traceback" not in found.stderr, found.stderr
    return found.stdout


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), (), ("paper", "table2"), ("fyt",)])
def test_help_version_and_mistakes_in_the_name_of_a_command_do_not_import_torch(arguments):
    assert python(COMMAND_LINE, *arguments).endswith("False False\n")


@pytest.mark.parametrize(("words", "expected"), [("peppermill ev", ["evaluate"]), ("peppermill s", ["size", "sweep"])])
def test_the_shell_completes_the_names_of_commands_without_torch(words, expected):
    asked = {"_PEPPERMILL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "1"}
    *found, imported = python(COMMAND_LINE, **asked).split("\n")[:-1]
    assert (sorted(found), imported) == (expected, "False False")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("peppermill fit --eng", ["--engine"]),
        ("peppermill fit --ind", ["--independent"]),
        ("peppermill calibrate model data --s", ["--seed", "--split-seed"]),
        ("peppermill report --", ["--help", "--out"]),
        ("peppermill fit --temperature --ite", ["--iterations"]),
    ],
)
def test_the_shell_completes_options_without_torch(words, expected):
    count = len(words.split()) - 1
    asked = {"_PEPPERMILL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": f"{count}"}
    *found, imported = python(COMMAND_LINE, **asked).split("\n")[:-1]
    assert (sorted(found), imported) == (expected, "False False")


def test_the_options_that_a_shell_completes_are_those_of_the_commands():
    """Otherwise run `python scripts/update_docs.py`."""
    sys.path.append(str(Path(CHECKOUT, "scripts")))
    import update_docs

    assert update_docs.OPTIONS.read_text(encoding="utf-8") == update_docs.options()


@pytest.mark.slow
def test_importing_the_library_imports_no_torch_and_using_fit_no_pictures_or_reports():
    code = """
import sys, peppermill
print("torch" in sys.modules)
peppermill.fit
unasked = ("matplotlib", "plotly", "jinja2", "scipy.stats", "peppermill.report", "peppermill.curvature",
           "peppermill.evaluation", "peppermill.sources", "peppermill.export", "peppermill.cli")
print([name for name in unasked if name in sys.modules])
"""
    assert python(code) == "False\n[]\n"


@pytest.mark.slow
def test_the_help_takes_a_quarter_of_importing_torch():
    """Processor time of the whole process, because wall time also measures what else the machine does."""

    def seconds(*command):
        before = os.times()
        subprocess.run(
            [sys.executable, *command], capture_output=True, check=True, env={**os.environ, "PYTHONPATH": CHECKOUT}
        )
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    assert min(seconds("-m", "peppermill", "--help") for _ in range(3)) <= seconds("-c", "import torch") / 4
