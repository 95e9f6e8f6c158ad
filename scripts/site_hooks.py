"""What mkdocs does not do by itself when it builds the site (mkdocs.yml).

- A file outside docs/ that a page links to (CONTRIBUTING.md, results/*.json) becomes part of the site.
- Mathematics, $...$ and $$...$$, becomes MathML: browsers show it without scripts and without a network.
- `mike` shows the menu of versions; a plain build, which has one version, does not look for it.
- The build fails if a public name is not on a page of the API reference.
"""

from __future__ import annotations

import ast
import os
import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")
PAGES_OUTSIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "tests/README.md")  # of the repository, in the navigation too

described: set[str] = set()


def on_config(config: MkDocsConfig) -> None:
    if "MIKE_DOCS_VERSION" in os.environ:
        config.extra["version"] = {"provider": "mike"}


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
    return files


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
    """`__all__`, and the names that need an extra; read, not imported."""
    tree = ast.parse((ROOT / "peppermill" / "__init__.py").read_text(encoding="utf-8"))
    values = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values[node.targets[0].id] = node.value
    return {*ast.literal_eval(values["__all__"]), *ast.literal_eval(values["_WITH_EXTRAS"])}
