"""The commands together: help, examples that run as they stand, version."""

import shlex

import pytest
import typer.main

from peppermill.cli import app, curvature, demo, evaluate, export, fit, info, predict, report, sweep
from peppermill.cli import member_count as size
from peppermill.cli import overfitting as probe
from peppermill.recipe import versions

COMMANDS = {
    "demo": demo,
    "fit": fit,
    "evaluate": evaluate,
    "predict": predict,
    "export": export,
    "sweep": sweep,
    "curvature": curvature,
    "probe": probe,
    "size": size,
    "report": report,
    "info": info,
}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_a_real_example(peppermill, name):
    found = peppermill(name, "--help")
    assert found.exit_code == 0
    assert COMMANDS[name].EXAMPLES.startswith(f"peppermill {name} ")
    assert COMMANDS[name].EXAMPLES in " ".join(found.stdout.split())


def test_the_examples_run_one_after_the_other_as_they_stand(done, folder):
    """In a folder with my_models.py, resnet.safetensors and the three data files that they name."""
    for name in ("fit", "evaluate", "predict", "export", "sweep", "report", "info"):
        assert done(*shlex.split(COMMANDS[name].EXAMPLES)[1:])
    assert {"pep.json", "run.json", "predictions.npz", "model.onnx", "curve.png"} <= {
        path.name for path in folder.iterdir()
    }


def test_every_command_is_listed(peppermill):
    shown = peppermill("--help").stdout
    assert all(name in shown for name in COMMANDS)
    assert "Start with `peppermill demo`." in shown
    assert set(COMMANDS) == {command.name for command in app.app.registered_commands}


@pytest.mark.parametrize("arguments", [(), ("paper",)])
def test_no_argument_shows_the_help_and_no_complaint(peppermill, arguments):
    found = peppermill(*arguments)
    assert "Usage: " in found.output
    assert "error:" not in found.output


def test_who_calls_it_from_python_gets_the_exit_code(folder):
    """And no `SystemExit`, where click's standalone mode is off."""
    command = typer.main.get_command(app.app)
    assert command.main(["fyt"], standalone_mode=False) == 2
    assert command.main(["--version"], standalone_mode=False) == 0


def test_the_version_needs_no_command(done):
    assert done("--version") == f"peppermill {versions()['peppermill']}\n"
