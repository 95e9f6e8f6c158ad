"""Run the scripts of gallery/ and write what they show, for the site: `python scripts/build_gallery.py`.

A script is a list of cells: `# %% [markdown]` begins text (comment lines), `# %%` begins code. Its cells run one after
the other in an empty folder. What they print and the figures that they make, or end with, become outputs in a notebook
and in a page: build/gallery/NAME.ipynb, NAME.md and NAME-1.png. A script that has not changed is not run again.
"""

from __future__ import annotations

import ast
import hashlib
import io
import os
import re
import sys
import tempfile
import time
from base64 import b64encode
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.rivals import let_torchvision_import  # noqa: E402

SCRIPTS = ROOT / "gallery"
BUILT = ROOT / "build" / "gallery"


@dataclass
class Cell:
    """Text or code, and what the code showed."""

    kind: str
    source: str
    printed: str = ""
    pictures: list[bytes] = field(default_factory=list)


def cells_of(script: Path) -> list[Cell]:
    """The cells of a script; text loses its comment signs."""
    parts = re.split(r"^# %%(.*)\n", script.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    cells = []
    for title, source in zip(parts[::2], parts[1::2], strict=True):
        text = "[markdown]" in title
        source = re.sub(r"^# ?", "", source, flags=re.MULTILINE) if text else source
        cells.append(Cell("markdown" if text else "code", source.strip("\n")))
    return cells


def run(script: Path) -> list[Cell]:
    """The cells with their outputs; an error in a cell is raised."""
    os.environ.setdefault("MPLBACKEND", "agg")
    let_torchvision_import()
    from matplotlib import pyplot

    pyplot.close("all")
    cells, names = cells_of(script), {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for number, cell in enumerate(cells):
            if cell.kind == "code":
                written = io.StringIO()
                with redirect_stdout(written):
                    last = executed(cell.source, f"{script.name}, cell {number}", names)
                figures = [pyplot.figure(shown) for shown in pyplot.get_fignums()] or [last] * hasattr(last, "savefig")
                cell.printed, cell.pictures = written.getvalue(), [png(figure) for figure in figures]
                pyplot.close("all")
    return cells


def executed(source: str, name: str, names: dict[str, Any]) -> Any:
    """Run a cell; the value of its last line, if that is an expression."""
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), names)
    return eval(compile(ast.Expression(last.value), name, "eval"), names) if isinstance(last, ast.Expr) else None


def png(figure: Any) -> bytes:
    written = io.BytesIO()
    figure.savefig(written, dpi=110, bbox_inches="tight", metadata={"Software": None})
    return written.getvalue()


def page(script: Path, cells: list[Cell]) -> str:
    """The cells as markdown, with links to the pictures and to the notebook."""
    parts, count = [], 0
    for cell in cells:
        parts.append(cell.source if cell.kind == "markdown" else f"```python\n{cell.source}\n```")
        if cell.printed:
            parts.append(f"```text\n{cell.printed.rstrip()}\n```")
        for _ in cell.pictures:
            count += 1
            parts.append(f"![what the cell above draws]({script.stem}-{count}.png)")
    parts.append(f"Download: [{script.stem}.ipynb]({script.stem}.ipynb), [{script.name}]({script.name})")
    return "\n\n".join(parts) + "\n"


def notebook(cells: list[Cell]) -> str:
    """The same cells and outputs for Jupyter."""
    made = []
    for number, cell in enumerate(cells):
        if cell.kind == "markdown":
            made.append(nbformat.v4.new_markdown_cell(cell.source))
        else:
            outputs = [nbformat.v4.new_output("stream", text=cell.printed)] if cell.printed else []
            for picture in cell.pictures:
                outputs.append(nbformat.v4.new_output("display_data", {"image/png": b64encode(picture).decode()}))
            made.append(nbformat.v4.new_code_cell(cell.source, outputs=outputs))
        made[-1]["id"] = f"cell-{number}"  # the same in every build
    return str(nbformat.writes(nbformat.v4.new_notebook(cells=made)))


def write(script: Path, cells: list[Cell], folder: Path) -> None:
    """Page, notebook and pictures of one script."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{script.stem}.md").write_text(page(script, cells), encoding="utf-8")
    (folder / f"{script.stem}.ipynb").write_text(notebook(cells), encoding="utf-8")
    for number, picture in enumerate((p for cell in cells for p in cell.pictures), start=1):
        (folder / f"{script.stem}-{number}.png").write_bytes(picture)


def main(folder: Path = BUILT) -> None:
    sys.path.insert(0, str(ROOT))
    for script in sorted(SCRIPTS.glob("*.py")):
        stamp, digest = folder / f"{script.stem}.sha256", hashlib.sha256(script.read_bytes()).hexdigest()
        if stamp.exists() and stamp.read_text() == digest:
            continue
        start = time.perf_counter()
        try:
            cells = run(script)
        except ImportError as error:  # of an optional library, which is not there or does not import here
            print(f"gallery/{script.name} was not run: {error}", file=sys.stderr)
            continue
        write(script, cells, folder)
        stamp.write_text(digest)
        print(f"gallery/{script.name}: {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
