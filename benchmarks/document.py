"""docs/benchmarks.md from results/bench/*.json: `python -m benchmarks.document`."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

from benchmarks.catalog import BENCHMARKS
from benchmarks.timing import RESULTS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"

OPENING = """# Benchmarks

How much does PEP cost in time and memory? Most figures are ratios within one run, because ratios depend less on the
machine than seconds do. `make bench` repeats all measurements and writes this page from `results/bench/*.json`, so do
not edit it by hand. `python -m benchmarks NAME` repeats one, `python -m benchmarks --device cuda` those of a GPU.
"""


def main() -> None:
    PAGE.write_text(page(RESULTS))
    print("wrote docs/benchmarks.md")


def page(results: Path) -> str:
    """The opening, and a section for each result."""
    return "\n".join([OPENING] + [section(name, path) for name in BENCHMARKS for path in results_of(name, results)])


def results_of(name: str, results: Path) -> list[Path]:
    """NAME.json and its variants, as NAME-cuda.json."""
    return [*results.glob(f"{name}.json"), *sorted(results.glob(f"{name}-*.json"))]


def section(name: str, path: Path) -> str:
    """The section that the file of the benchmark writes about its result."""
    text: str = import_module(f"benchmarks.{name}").section(json.loads(path.read_text()))
    return text


if __name__ == "__main__":
    main()
