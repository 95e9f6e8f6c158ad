"""`make bench`: every benchmark that needs no GPU, and docs/benchmarks.md from their results."""

from __future__ import annotations

from benchmarks import antithetic, core, document, engines, precision


def main() -> None:
    core.main()
    engines.main()
    precision.main()
    antithetic.main()
    document.main()


if __name__ == "__main__":
    main()
