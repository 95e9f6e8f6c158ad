"""What README.md and the pages in docs/ show runs, and the README's table is the one that the demo made."""

import json
import os
import re
from pathlib import Path

import pytest

import peppermill.demo
from peppermill.report.table import markdown

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path) -> list[str]:
    """The Python blocks of a page, in order."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture
def names(tmp_path, monkeypatch):
    """What a reader is supposed to have: a trained network, validation and test data, a batch of inputs."""
    monkeypatch.chdir(tmp_path)
    validation, test = ((images[:200], labels[:200]) for images, labels in peppermill.demo.data())
    return {"model": peppermill.demo.network(), "validation": validation, "test": test, "x": test[0][:8]}


def test_the_readme_shows_python():
    assert blocks(README)


@pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")  # Lightning's advice
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")  # Lightning's own
@pytest.mark.filterwarnings("ignore::peppermill.types.PepWarning")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_block_runs(page, names):
    """One after the other, each with the names of those before it; all pages but the README take `pm` as known."""
    names |= {} if page == README else {"pm": peppermill}
    for number, block in enumerate(blocks(page), start=1):
        exec(compile(block, f"{page.name}, block {number}", "exec"), names)


def test_the_table_is_that_of_the_demos_run():
    text = README.read_text(encoding="utf-8")
    _, _, rest = text.partition("<!-- demo table -->\n")
    table, end, _ = rest.partition("<!-- end of demo table -->")
    assert end, "README.md has no demo table between its two marks"
    run = json.loads((ROOT / "results" / "demo" / "run.json").read_text(encoding="utf-8"))
    assert table.strip() == markdown(run).strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_repository_lead_somewhere(page):
    links = re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    inside = [link for link in links if not re.match(r"[a-z]+:", link)]
    assert [link for link in inside if not os.path.exists(page.parent / link)] == []
