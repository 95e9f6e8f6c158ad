"""`make bench`: every benchmark that needs no GPU, and docs/benchmarks.md from their results."""

from __future__ import annotations

from benchmarks import antithetic, core, decoding, document


def main() -> None:
    core.main()
    antithetic.main()
    decoding.main()
    document.main()


if __name__ == "__main__":
    main()
