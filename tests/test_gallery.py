"""The scripts of gallery/ run, and become a page and a notebook with their outputs."""

import sys
from pathlib import Path
from traceback import format_tb

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import build_gallery  # noqa: E402

SCRIPTS = sorted(build_gallery.SCRIPTS.glob("*.py"))


def test_there_are_at_least_eight_and_each_is_in_the_navigation():
    assert len(SCRIPTS) >= 8
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [script.stem for script in SCRIPTS if f"gallery/{script.stem}.md" not in navigation] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::peppermill.PepWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")  # of others
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_runs_and_shows_a_picture_and_numbers(script, tmp_path):
    cells = build_gallery.run(script)
    build_gallery.write(script, cells, tmp_path)
    assert any(cell.printed for cell in cells)
    assert cells[0].source.startswith("# ")
    pictures = sorted(tmp_path.glob("*.png"))
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    page = (tmp_path / f"{script.stem}.md").read_text(encoding="utf-8")
    assert pictures
    assert all(f"]({path.name})" in page for path in pictures)


def test_cells_become_outputs_of_a_page_and_a_notebook(tmp_path):
    """Of a script with every kind of cell: text, code that prints, code that draws, code that does neither."""
    script = tmp_path / "small.py"
    script.write_text(
        "# %% [markdown]\n# # Title\n#\n# Words.\n\n# %%\nx = 2\n\n# %%\nprint(x + 1)\n\n"
        "# %%\nfrom matplotlib import pyplot\n\npyplot.plot([0, x])\n"
    )
    cells = build_gallery.run(script)
    assert [(cell.kind, cell.printed, len(cell.pictures)) for cell in cells] == [
        ("markdown", "", 0),
        ("code", "", 0),
        ("code", "3\n", 0),
        ("code", "", 1),
    ]
    build_gallery.write(script, cells, tmp_path)
    made = nbformat.read(tmp_path / "small.ipynb", as_version=4)
    nbformat.validate(made)
    assert [cell.cell_type for cell in made.cells] == ["markdown", "code", "code", "code"]
    assert made.cells[2].outputs[0].text == "3\n"
    assert "image/png" in made.cells[3].outputs[0].data
    page = (tmp_path / "small.md").read_text()
    assert page.startswith("# Title\n\nWords.\n\n```python\nx = 2\n```")
    assert "```text\n3\n```" in page
    assert "![what the cell above draws](small-1.png)" in page


def test_an_error_in_a_cell_names_the_cell(tmp_path):
    script = tmp_path / "broken.py"
    script.write_text("# %%\nx = 1\n\n# %%\nx / 0\n")
    with pytest.raises(ZeroDivisionError) as caught:
        build_gallery.run(script)
    assert "broken.py, cell 1" in "".join(format_tb(caught.tb))
