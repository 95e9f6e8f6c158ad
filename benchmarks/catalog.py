"""Every benchmark, in the order of the page: a new one is one file and one row.

A file NAME.py runs as `python -m benchmarks.NAME`, writes results/bench/NAME.json (or NAME-*.json), and has
`section(found)`, the words of the page for one such result.
"""

from __future__ import annotations

#: For each kind of machine on which `python -m benchmarks` measures it, the arguments that it is given there.
BENCHMARKS: dict[str, dict[str, tuple[str, ...]]] = {
    "core": {"cpu": ()},
    "engines": {"cpu": (), "cuda": ("--device", "cuda")},
    "precision": {"cpu": ()},
    "tuning": {"cpu": ("demo",)},
    "replays": {"cpu": ("demo",)},
    "peers": {"cpu": (), "cuda": ("--device", "cuda")},
    "deployment": {"cpu": ()},
    "processes": {"cpu": ()},
    "antithetic": {"cpu": ()},
    "decoding": {"cpu": ()},
    "training_together": {"cuda": ("--device", "cuda")},
    "table2_row": {},  # it takes long: by its own command alone
    "curvature": {"cpu": (), "cuda": ("--device", "cuda", "--name", "curvature-cuda")},
    "kinks": {"cpu": ()},
    "item_effects": {"cpu": ()},
}
