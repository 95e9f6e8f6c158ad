"""The commands together: help, examples that run as they stand, version."""

import shlex
import sys
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise

import pytest
import typer.main

import peppermill as pm
from peppermill import cli
from peppermill.cli.app import COMMANDS, EXAMPLES, app


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_a_real_example(peppermill, name):
    found = peppermill(name, "--help")
    assert found.exit_code == 0
    assert f"peppermill {name} {EXAMPLES[name]}" in " ".join(found.stdout.split())


def test_help_fills_the_lines_of_every_paragraph(peppermill):
    lines = [line.strip() for line in peppermill("predict", "--help").stdout.partition("╭")[0].splitlines()]
    inside = [(line, following) for line, following in pairwise(lines) if line and following]
    assert inside
    for line, following in inside:
        assert len(f"{line} {following.split()[0]}") > max(map(len, lines)), line


@pytest.mark.slow
def test_the_examples_run_one_after_the_other_as_they_stand(done, folder):
    """In a folder with my_models.py, resnet.safetensors and the three data files that they name."""
    for name in ("fit", "evaluate", "predict", "export", "sweep", "report", "info"):
        assert done(name, *shlex.split(EXAMPLES[name]))
    assert {"pep.json", "run.json", "predictions", "model.onnx", "curve.png"} <= {
        path.name for path in folder.iterdir()
    }


def test_every_command_is_listed_with_its_line(peppermill):
    shown = " ".join(peppermill("--help").stdout.replace("│", " ").split())
    assert all(f"{name} {row.help}" in shown for name, row in COMMANDS.items())
    assert "Start with `peppermill demo`." in shown
    assert "paper" not in shown


def test_no_argument_shows_the_help_and_no_complaint(peppermill):
    found = peppermill()
    assert "Usage: " in found.output
    assert "error:" not in found.output


@pytest.mark.parametrize("arguments", [(), ("table2", "--rows", "cifar10"), ("--help",)])
def test_the_command_of_the_paper_says_where_it_went(peppermill, arguments):
    found = peppermill("paper", *arguments)
    assert (found.exit_code, found.stdout) == (2, "")
    assert " ".join(found.stderr.split()) == (
        "error: `peppermill paper` moved out of the package: in a clone of the repository run `python -m experiments "
        "table2`."
    )


def test_who_calls_it_from_python_gets_the_exit_code(folder):
    """And no `SystemExit`, where click's standalone mode is off."""
    command = typer.main.get_command(app)
    assert command.main(["fyt"], standalone_mode=False) == 2
    assert command.main(["--version"], standalone_mode=False) == 0


def test_the_version_needs_no_command(done):
    assert done("--version") == f"peppermill {pm.__version__}\n"


@dataclass(frozen=True)
class Dummy:
    name: str = "cinnamon"
    help: str = "smells of Christmas"
    scheme: str = "cinnamon"
    gives: str = "model"
    example: str = "cinnamon"


@pytest.mark.parametrize(
    ("registry", "command"),
    [
        ("noise.LAWS", "fit"),
        ("engines.ENGINES", "predict"),
        ("parameters.RULES", "sweep"),
        ("likelihood.LIKELIHOODS", "evaluate"),
        ("sources.SOURCES", "fit"),
    ],
)
def test_a_new_row_of_a_registry_is_in_the_help(peppermill, monkeypatch, registry, command):
    """The row is the only edit: the module with the options is imported again, as in a new process."""
    module, _, name = registry.rpartition(".")
    rows = getattr(import_module(f"peppermill.{module}"), name)
    if isinstance(rows, list):
        monkeypatch.setattr(import_module(f"peppermill.{module}"), name, [*rows, Dummy()])
    else:
        monkeypatch.setitem(rows, "cinnamon", Dummy())
    for imported in ("options", COMMANDS[command].module):
        monkeypatch.delitem(sys.modules, f"peppermill.cli.{imported}", raising=False)
        monkeypatch.delattr(cli, imported, raising=False)
    expected = "cinnamon" if name == "LIKELIHOODS" else "cinnamon (smells of Christmas)"
    assert expected in " ".join(peppermill(command, "--help").stdout.replace("│", " ").split())
