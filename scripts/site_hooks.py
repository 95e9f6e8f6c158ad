"""What mkdocs does not do by itself when it builds the site (mkdocs.yml).

- A file outside docs/ that a page links to (CONTRIBUTING.md, results/*.json) becomes part of the site.
- The scripts of gallery/ become pages, with the outputs that scripts/build_gallery.py left, and their notebooks.
- Mathematics, $...$ and $$...$$, becomes MathML: browsers show it without scripts and without a network.
- A page of docs/ that the navigation does not name is the last of the guides, so that every page can be reached.
- `mike` shows the menu of versions; a plain build, which has one version, does not look for it.
- The build fails if a public name is not on a page of the API reference.
"""

from __future__ import annotations

import ast
import os
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).resolve().parent))

import build_gallery

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")
PAGES_OUTSIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "tests/README.md")  # of the repository, in the navigation too

GALLERY = """# Gallery

Short scripts that each answer one question, with their pictures. Download any of them as a script or a notebook: they
need no data of yours and no network.
"""

described: set[str] = set()


def on_config(config: MkDocsConfig) -> None:
    if "MIKE_DOCS_VERSION" in os.environ:
        config.extra["version"] = {"provider": "mike"}
    for part in config.nav or []:
        listed = set(re.findall(r"[\w/]+\.md", str(config.nav)))
        pages = sorted(page.name for page in Path(config.docs_dir).glob("*.md"))
        part.get("Guides", []).extend(page for page in pages if page not in listed)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the files outside docs/ that pages link to, under their path in the repository."""
    described.clear()
    wanted = set(PAGES_OUTSIDE)
    texts = {f"docs/{file.src_uri}": file.content_string for file in files.documentation_pages()}
    texts |= {path: (ROOT / path).read_text(encoding="utf-8") for path in PAGES_OUTSIDE}
    for page, text in texts.items():
        targets = (posixpath.normpath(posixpath.join(posixpath.dirname(page), link)) for link in LINK.findall(text))
        wanted |= {path for path in targets if not path.startswith("docs/") and (ROOT / path).is_file()}
    for path in sorted(wanted):
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    add_gallery(files, config)
    return files


def add_gallery(files: Files, config: MkDocsConfig) -> None:
    """A page, a notebook and pictures for every script, and a page of all; a script that was not run has no outputs."""
    tiles = []
    for script in sorted(build_gallery.SCRIPTS.glob("*.py")):
        if not (build_gallery.BUILT / f"{script.stem}.md").exists():
            build_gallery.write(script, build_gallery.cells_of(script), build_gallery.BUILT)
        built = sorted(build_gallery.BUILT.glob(f"{script.stem}[.-]*"))
        for path in [script, *(path for path in built if path.suffix in (".md", ".ipynb", ".png"))]:
            files.append(File.generated(config, f"gallery/{path.name}", abs_src_path=str(path)))
        pictures = [path for path in built if path.suffix == ".png"]
        shown = f"![]({pictures[-1].name})" if pictures else ""
        title = build_gallery.cells_of(script)[0].source.partition("\n")[0].lstrip("# ")
        tiles.append(f"<div markdown>\n{shown}\n\n[{title}]({script.stem}.md)\n</div>")
    text = f'{GALLERY}\n<div class="gallery" markdown>\n\n' + "\n\n".join(tiles) + "\n\n</div>\n"
    files.append(File.generated(config, "gallery/index.md", content=text))


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at the places of those files in the site, and note the names that a page describes."""
    described.update(re.findall(r"^::: peppermill\.([\w.]+)", markdown, re.MULTILINE))
    uri = page.file.src_uri
    folder = posixpath.dirname(uri if uri in PAGES_OUTSIDE else f"docs/{uri}")  # of the page in the repository

    def moved(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[1])).removeprefix("docs/")
        return posixpath.relpath(path, posixpath.dirname(uri) or ".")

    return LINK.sub(moved, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Formulas as MathML."""
    inline = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
    block = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.DOTALL)
    html = inline.sub(lambda found: convert(unescaped(found[1])), html)
    return block.sub(lambda found: convert(unescaped(found[1]), display="block"), html)


def unescaped(text: str) -> str:
    return text.strip().replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def on_post_build(config: MkDocsConfig) -> None:
    missing = sorted(public_names() - described)
    if missing:
        raise PluginError(f"the API reference (docs/api/) has no section for {', '.join(missing)}")


def public_names() -> set[str]:
    """Every public name, those that need an extra among them; read, not imported."""
    tree = ast.parse((ROOT / "peppermill" / "__init__.pyi").read_text(encoding="utf-8"))
    return {
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
