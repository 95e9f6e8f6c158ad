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

from peppermill.plumbing.files import write_atomically
from peppermill.report.run import read_run
from peppermill.report.table import markdown

ROOT = Path(__file__).resolve().parent.parent
MARKS = ("<!-- demo table -->", "<!-- end of demo table -->")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "peppermill", "demo", "--out", "."]
        subprocess.run(command, check=True, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)})
        write_atomically(ROOT / "results/demo/run.json", Path(folder, "run.json").read_text())
        for picture in ("sigma.png", "reliability.png"):
            write_atomically(ROOT / "docs/images" / picture, Path(folder, picture).read_bytes())
    table = markdown(read_run(ROOT / "results/demo/run.json"))
    text = (ROOT / "README.md").read_text()
    new = re.sub(f"{MARKS[0]}.*{MARKS[1]}", lambda _: f"{MARKS[0]}\n{table}\n{MARKS[1]}", text, flags=re.DOTALL)
    write_atomically(ROOT / "README.md", new)


if __name__ == "__main__":
    main()
