"""The commands that docs/data.md shows run on the folder that it makes."""

import re
import shlex
from pathlib import Path

import pytest
from test_readme import blocks, names  # noqa: F401
from typer.testing import CliRunner

from peppermill.cli.app import app

PAGE = Path(__file__).resolve().parents[1] / "docs" / "data.md"


def commands():
    """The lines of the page's shell blocks."""
    found = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [line for block in found for line in block.splitlines()]


@pytest.mark.filterwarnings("ignore::peppermill.types.PepWarning")
def test_every_command_runs(names):  # noqa: F811
    exec(blocks(PAGE)[-1], names)  # the one that makes the folder
    written = ""
    for line in commands():
        program, *arguments = shlex.split(line)
        assert program == "peppermill"
        found = CliRunner().invoke(app, arguments)
        assert found.exit_code == 0, found.stderr
        written += found.stdout
    assert "on 100 items drawn from 200" in written
    assert "testing on the 100 of 200 items on which sigma was not tuned" in written
