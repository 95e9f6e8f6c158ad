"""Every benchmark, in the order of the page. A new one is one file and one row.

A file NAME.py runs as `python -m benchmarks.NAME`, writes results/bench/NAME.json (or NAME-*.json), and has a function
`section(found)` that writes the section of the page for one such result.
"""

from __future__ import annotations

#: The arguments of each benchmark, for each kind of machine on which `python -m benchmarks` runs it.
BENCHMARKS: dict[str, dict[str, tuple[str, ...]]] = {
    "core": {"cpu": ()},
    "engines": {"cpu": (), "cuda": ("--device", "cuda")},
    "precision": {"cpu": ()},
    "uncertainty": {"cpu": (), "cuda": ("--device", "cuda")},
    "tuning": {"cpu": ("demo",)},
    "replays": {"cpu": ("demo",)},
    "calibrators": {"cpu": ()},
    "validation_items": {"cpu": ()},
    "race": {"cpu": ()},
    "peers": {"cpu": (), "cuda": ("--device", "cuda")},
    "deployment": {"cpu": ()},
    "processes": {"cpu": ()},
    "scale": {"cpu": ()},
    "antithetic": {"cpu": ()},
    "decoding": {"cpu": ()},
    "curvature": {"cpu": (), "cuda": ("--device", "cuda", "--name", "curvature-cuda")},
    "kinks": {"cpu": ()},
    "item_effects": {"cpu": ()},
}
