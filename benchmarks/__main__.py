"""`make bench`: every benchmark that needs no GPU, and docs/benchmarks.md from their results."""

from __future__ import annotations

from benchmarks import antithetic, core, document, tuning


def main() -> None:
    core.main()
    antithetic.main()
    tuning.main(["demo"])  # the other networks take a CPU an hour: `python -m benchmarks.tuning`
    document.main()


if __name__ == "__main__":
    main()
