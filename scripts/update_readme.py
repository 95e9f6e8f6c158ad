"""Run the demo and put what it says into the README: `make readme`.

Writes results/demo/run.json, docs/images/*.png and the table between the two comment lines in README.md.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from peppermill.plumbing.files import write_atomically
from peppermill.report.run import read_run

ROOT = Path(__file__).resolve().parent.parent
MARKS = ("<!-- demo table -->", "<!-- end of demo table -->")


def table(run: dict[str, Any]) -> str:
    """The methods of a run in a few columns; everything else about them is in the report."""
    rows = ["| method | passes | NLL | against the network | ECE % | error % |", "|---|---|---|---|---|---|"]
    for method in run["methods"]:
        scores = {name: estimate["value"] for name, estimate in method["scores"]["estimates"].items()}
        rows.append(
            f"| {method['name']} | {method['forward_passes']} | {scores['nll']:.4f} | {against_network(method)} "
            f"| {100 * scores['ece']:.2f} | {100 * scores['error']:.2f} |"
        )
    note = f"{run['methods'][0]['scores']['items']:,} test items. The brackets hold the 95 % interval of the"
    note += " paired difference in NLL; it and p come from a paired t test, and p is Holm-corrected. ECE has 20 bins."
    return "\n".join([*rows, "", note])


def against_network(method: dict[str, Any]) -> str:
    """The paired difference in NLL, its interval and its p-value."""
    if method["comparison"] is None:
        return ""
    nll = method["comparison"]["differences"]["nll"]
    p_value = "p < 0.001" if nll["p_value"] < 0.001 else f"p = {nll['p_value']:.3f}"
    return f"{nll['value']:+.4f} [{nll['lower']:+.4f}, {nll['upper']:+.4f}], {p_value}".replace("-", "−")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "peppermill", "demo", "--out", "."]
        subprocess.run(command, check=True, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)})
        write_atomically(ROOT / "results/demo/run.json", Path(folder, "run.json").read_text())
        for picture in ("sigma.png", "reliability.png"):
            write_atomically(ROOT / "docs/images" / picture, Path(folder, picture).read_bytes())
    write_table()


def write_table() -> None:
    """Into README.md, from results/demo/run.json."""
    content = table(read_run(ROOT / "results/demo/run.json"))
    text = (ROOT / "README.md").read_text()
    new = re.sub(f"{MARKS[0]}.*{MARKS[1]}", lambda _: f"{MARKS[0]}\n{content}\n{MARKS[1]}", text, flags=re.DOTALL)
    write_atomically(ROOT / "README.md", new)


if __name__ == "__main__":
    main()
