"""`make bench`: every benchmark for this kind of machine, one process each, and docs/benchmarks.md from the results."""

from __future__ import annotations

import argparse
import subprocess
import sys

from benchmarks import document
from benchmarks.catalog import BENCHMARKS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these of {', '.join(BENCHMARKS)}")
    asked = parser.parse_args()
    chosen = {name: kinds[asked.device] for name, kinds in BENCHMARKS.items() if asked.device in kinds}
    unknown = [name for name in asked.names if name not in chosen]
    if unknown:
        parser.error(f"{', '.join(unknown)} is not measured on {asked.device}: choose among {', '.join(chosen)}.")
    failed = [name for name in asked.names or chosen if not measured(name, chosen[name])]
    document.main()
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}")


def measured(name: str, arguments: tuple[str, ...]) -> bool:
    """Whether it ran to its end; one that fails does not keep the others from running."""
    print(f"{name} ...", flush=True)
    return subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *arguments], check=False).returncode == 0


if __name__ == "__main__":
    main()
