"""Print the oldest versions that pyproject.toml allows, as requirements: `make test-floors` installs these."""

import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
apart = ("bench", "docs", "release")  # what builds the site or a release is no part of the library
extras = [line for name, lines in project["optional-dependencies"].items() if name not in apart for line in lines]
tools = ("mypy", "playwright", "pre-commit", "ruff")  # of these, `make test` runs the newest
for line in sorted({*project["dependencies"], *extras}):
    if ">=" in line and not line.startswith(tools):
        print(line.replace(">=", "=="))
