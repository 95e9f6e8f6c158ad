"""The site: `make docs` builds it strictly, and it works from disk, without a network, on wide and narrow screens."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = pytest.mark.slow
pytest.importorskip("mkdocs")


def build(folder, config=ROOT / "mkdocs.yml"):
    command = [sys.executable, "-m", "mkdocs", "build", "--config-file", config, "--site-dir", folder]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def small_site(tmp_path):
    """A site of two pages, with everything else as ours: each test breaks it in one way."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[0]
    text = text.replace("[scripts/site_hooks.py]", f"[{ROOT}/scripts/site_hooks.py]")
    text = text.replace("paths: [.]", f"paths: [{ROOT}]").replace("extra_css: [assets/site.css]", "")
    (tmp_path / "mkdocs.yml").write_text(text, encoding="utf-8")
    (tmp_path / "docs" / "api").mkdir(parents=True)
    names = re.findall(r"^::: .*", "\n".join(p.read_text() for p in ROOT.glob("docs/api/*.md")), re.MULTILINE)
    (tmp_path / "docs" / "api" / "names.md").write_text("# Names\n\n" + "\n\n".join(names), encoding="utf-8")
    (tmp_path / "docs" / "index.md").write_text("# Start\n\n[names](api/names.md)\n", encoding="utf-8")
    for page in ROOT.glob("docs/*.md"):  # CONTRIBUTING.md and tests/README.md link to some of them
        (tmp_path / "docs" / page.name).touch()
    return tmp_path


def test_a_broken_link_stops_the_build_and_mathematics_needs_no_scripts(small_site):
    """The pages are written before the build stops."""
    start = "# Start\n\n[gone](gone.md)\n\n" + r"$\sigma^2 < 1$ and $$\sum_i x_i$$ cost \$5."
    (small_site / "docs" / "index.md").write_text(start, encoding="utf-8")
    done = build(small_site / "site", small_site / "mkdocs.yml")
    assert done.returncode != 0
    assert "'gone.md', but the target is not found" in done.stderr
    html = (small_site / "site" / "index.html").read_text(encoding="utf-8")
    assert html.count("<math") == 2
    assert "<mo>&#x0003C;</mo>" in html  # <
    assert "$5" in html


def test_a_public_name_without_a_section_stops_the_build(small_site):
    page = small_site / "docs" / "api" / "names.md"
    page.write_text(page.read_text().replace("::: peppermill.fit\n", ""), encoding="utf-8")
    done = build(small_site / "site", small_site / "mkdocs.yml")
    assert done.returncode != 0
    assert "no section for fit" in done.stderr


def test_every_public_name_has_an_anchor_with_its_words(site):
    page = (site / "api" / "calibrate.html").read_text(encoding="utf-8")
    assert 'id="peppermill.fit"' in page
    assert "Find sigma* on validation data" in page


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed here: `apt-get install chromium`")
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


def test_no_page_is_wider_than_the_screen_or_asks_the_network(site, browser):
    """A wide and light screen and a narrow and dark one: a page is loaded on one of them and shown on both."""
    tab = browser.new_context().new_page()
    wide, said, asked = [], [], []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("request", lambda request: asked.append(request.url))
    screens = [(1400, "light"), (420, "dark")]
    for page in sorted(site.rglob("*.html")):
        if page.name == "404.html":
            continue
        for width, scheme in screens:
            tab.set_viewport_size({"width": width, "height": 900})
            tab.emulate_media(color_scheme=scheme)
            if tab.url != page.as_uri():
                tab.goto(page.as_uri(), wait_until="load")
            if tab.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
                wide.append((page.name, width))
        screens.reverse()  # the next page is loaded on the screen that this one ended on
    assert wide == []
    assert said == []
    assert [address for address in asked if not address.startswith(("file:", "data:"))] == []
    tab.close()


def test_search_finds_a_page_from_disk(site, browser):
    tab = browser.new_page(viewport={"width": 1400, "height": 900})
    tab.goto((site / "index.html").as_uri())
    tab.click("input.md-search__input")
    tab.keyboard.type("antithetic", delay=20)
    tab.wait_for_selector(".md-search-result__item", timeout=20_000)
    assert "Glossary" in tab.inner_text(".md-search-result__list")
    tab.close()
