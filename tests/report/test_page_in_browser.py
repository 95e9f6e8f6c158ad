"""The page in a real browser: Chromium, without a window and without a network."""

import json
import os
import re
import shutil
from dataclasses import replace

import pytest
from PIL import Image

import peppermill as pm

from .small_runs import CLASS_NAMES, HOSTILE, small_run
from .test_page import large_run

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDE, MIDDLE, NARROW = ({"width": width, "height": 900} for width in (1400, 1200, 390))

if CHROMIUM is None:
    pytest.skip("no Chromium is installed here: `apt-get install chromium`", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright, which drives Chromium, is not installed")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def run():
    return small_run(f"a run of {HOSTILE}")


@pytest.fixture(scope="module")
def content(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run.json"
    pm.write_run(run, path)
    return pm.read_run(path)


class Opened:
    """A page that is drawn, and everything that it complained of or asked for on the way."""

    def __init__(self, browser, path, viewport=WIDE, scheme="light"):
        self.context = browser.new_context(viewport=viewport, color_scheme=scheme, offline=True)
        self.page = self.context.new_page()
        self.complaints, self.requests = [], []
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-drawn]")

    def texts(self, selector):
        return [" ".join(text.split()) for text in self.page.locator(selector).all_inner_texts()]


def until(page, holds, attempts=250):
    """Wait, for five seconds at most; the page's policy forbids what playwright would evaluate in it to wait."""
    for _ in range(attempts):
        if holds():
            return
        page.wait_for_timeout(20)
    raise AssertionError("it did not come to hold")


@pytest.fixture(scope="module")
def opener(browser, tmp_path_factory):
    contexts = []

    def open_page(runs, **options):
        opened = Opened(browser, pm.write_report(runs, tmp_path_factory.mktemp("page") / "report.html"), **options)
        contexts.append(opened.context)
        return opened

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def opened(run, opener):
    return opener(run)


@pytest.mark.parametrize(
    "change",
    [
        lambda run: replace(run, sweep=None),
        lambda run: pm.Run("a sweep", {}, (), run.sweep, run.provenance),
        lambda run: pm.Run("nothing", {}, ()),
        lambda run: [run, replace(run, title="another", effects=None), replace(run, methods=())],
    ],
    ids=["no sweep", "only a sweep", "nothing", "three runs"],
)
def test_it_opens_without_complaint_and_asks_nobody(run, opener, change):
    check_that_all_is_well(opener(change(run)))


def test_the_whole_page_opens_without_complaint_and_asks_nobody(opened):
    check_that_all_is_well(opened)


def check_that_all_is_well(found):
    assert found.complaints == []
    assert [re.sub(r".*/", "", url)[:15] for url in found.requests if not url.startswith(("data:", "blob:"))] == [
        "report.html"
    ]
    assert found.page.locator("#failed").is_hidden()
    drawn = found.page.locator(".plot:visible")
    assert drawn.count() == found.page.locator(".plot:visible:has(svg.main-svg)").count()


def written(point, base):
    """What must stand beside the slider, computed from the run file."""
    scores = {"nll": -point["log_likelihood"], **{name: point[name] for name in ("ece", "error", "brier")}}
    before = {"nll": -base["log_likelihood"], **{name: base[name] for name in ("ece", "error", "brier")}}
    percent = {"nll": (1, 4, ""), "brier": (1, 4, ""), "ece": (100, 2, "\u00a0%"), "error": (100, 2, "\u00a0%")}
    values, changes = {}, {}
    for name, (factor, digits, unit) in percent.items():
        difference = factor * (scores[name] - before[name])
        values[name] = f"{factor * scores[name]:.{digits}f}{unit}"
        changes[name] = f"{'−' if difference < 0 else '+'}{abs(difference):.{digits}f}" if point is not base else ""
    return values, changes


#: The bars of the diagram as the browser has drawn them: [left, height] as fractions of the plot.
BARS = """(plot, trace) => {
    const area = plot.querySelector(".draglayer .xy .nsewdrag");
    const [width, height] = ["width", "height"].map((name) => Number(area.getAttribute(name)));
    const traces = plot.querySelectorAll(".plot .barlayer .trace.bars");
    return [...traces[trace].querySelectorAll(".point path")].map((path) => {
        const [x0, y0, y1] = path.getAttribute("d").match(/^M([^,]+),([^V]+)V([^H]+)H/).slice(1).map(Number);
        return [x0 / width, (y0 - y1) / height, 1 - y0 / height];
    });
}"""


def check_the_diagram(plot, table):
    """Every bar of accuracy stands in its bin, as high as the file says; every gap reaches to the confidence."""
    rows = [
        row for row in zip(*(table[k] for k in ("lower", "count", "confidence", "accuracy")), strict=True) if row[1]
    ]
    bars = [(lower, accuracy) for lower, _, _, accuracy in rows]
    drawn = [(left, height) for left, height, _ in plot.evaluate(BARS, 0)]
    assert drawn == [(pytest.approx(lower, abs=0.01), pytest.approx(height, abs=0.01)) for lower, height in bars]
    sure = [(accuracy, confidence) for _, _, confidence, accuracy in rows if confidence > accuracy]
    drawn = [(bottom, bottom + height) for _, height, bottom in plot.evaluate(BARS, 1)]
    assert drawn == [(pytest.approx(low, abs=0.01), pytest.approx(high, abs=0.01)) for low, high in sure]


def test_the_keyboard_moves_curve_diagram_and_numbers_together(opened, content):
    """At every sigma, reached with the arrow keys, what is in the page is what is in the run file."""
    page, points = opened.page, content["sweep"]["points"]
    explorer, slider = page.locator(".explorer"), page.locator(".explorer input[type=range]")
    slider.focus()
    page.keyboard.press("Home")
    for k, point in enumerate(points):
        if k:
            page.keyboard.press("ArrowRight")
        page.wait_for_selector(f".explorer[data-shown='{k}']")
        values, changes = written(point, points[0])
        assert {name: explorer.locator(f"output[data-score={name}]").text_content() for name in values} == values
        assert {name: explorer.locator(f"[data-change={name}]").text_content() for name in values} == changes
        assert explorer.locator("output.sigma").text_content() == f"{point['sigma']:.3g}"
        assert f"sigma {point['sigma']:.3g}" in slider.get_attribute("aria-valuetext")
        check_the_diagram(page.locator("[data-figure=reliability]"), point["reliability"])
        counts = page.locator("[data-figure=reliability]").evaluate("plot => plot.data[4].y")
        assert counts == [count for count in point["reliability"]["count"] if count]
    page.keyboard.press("End")
    page.keyboard.press("Home")
    page.wait_for_selector(".explorer[data-shown='0']")
    assert explorer.locator(".where").text_content() == "the network itself"


def test_the_marker_runs_along_the_curve(opened, content):
    """Its place in the window is that of its (sigma, L), between the corners of the plot's area."""
    page = opened.page
    page.locator(".explorer input[type=range]").focus()
    page.keyboard.press("Home")
    for key in ("", "ArrowRight", "ArrowRight", "ArrowRight"):
        if key:
            page.keyboard.press(key)
        k = int(page.locator(".explorer input[type=range]").input_value())
        page.wait_for_selector(f".explorer[data-shown='{k}']")
        x, y, low, high, right = page.locator("[data-figure=sigma]").evaluate(
            """plot => {
                const area = plot.querySelector(".draglayer .xy .nsewdrag").getBoundingClientRect();
                const traces = plot.querySelectorAll(".scatterlayer .trace");
                const mark = traces[traces.length - 1].querySelector(".points path").getBoundingClientRect();
                const { range } = plot.layout.yaxis;
                return [(mark.x + mark.width / 2 - area.x) / area.width,
                        1 - (mark.y + mark.height / 2 - area.y) / area.height, ...range, plot.layout.xaxis.range[1]];
            }"""
        )
        point, last = content["sweep"]["points"][k], content["sweep"]["points"][-1]["sigma"]
        assert right == pytest.approx(1.03 * last, rel=1e-6)
        assert x == pytest.approx((point["sigma"] + 0.03 * last) / (1.06 * last), abs=0.01)
        assert y == pytest.approx((point["log_likelihood"] - low) / (high - low), abs=0.01)


def test_zero_and_sigma_star_are_marked_and_can_be_reached(opened, content):
    page, star = opened.page, content["methods"][2]["fitted"]["sigma"]
    assert opened.texts(".marks button") == ["σ = 0", "σ*"]
    annotations = page.locator("[data-figure=sigma] .annotation-text").all_text_contents()
    assert annotations == ["σ = 0", f"σ* = {star:.3g}"]
    page.locator(".marks .star").click()
    assert page.locator("output.sigma").text_content() == f"{star:.3g}"
    assert page.locator(".where").text_content() == "σ*, the best"
    page.locator(".marks .first").click()
    assert page.locator("output.sigma").text_content() == "0"


def test_the_race_shows_every_candidate_the_front_and_the_choice(opened, content):
    """Each point is where its passes and NLL are; what lies far above the others is at the edge, with its number."""
    plot, candidates = opened.page.locator("[data-figure=race]"), content["race"]["candidates"]
    front, others, choice = plot.evaluate("plot => plot.data.map(({ x, y }) => [x, y])")
    assert front == [[1, 2, 6], [0.55, 0.51, 0.50]]
    assert choice == [[2], [0.51]]
    high = plot.evaluate("plot => plot.layout.yaxis.range[1]")
    rest = [candidate for candidate in candidates if candidate["verdict"] != "chosen"]
    assert others == [[c["passes"] for c in rest], [min(c["nll"], high) for c in rest]]
    texts = plot.locator(".annotation-text").all_text_contents()
    assert texts == ["temperature scaling", "6 members, matrix scaling", "2 members", f"{HOSTILE}: 2.500"]
    assert "4 candidates raced on 400 validation items" in " ".join(opened.texts("section .lede"))


def test_every_method_has_its_diagram(opened, content):
    plots = opened.page.locator("[data-figure=method]")
    assert plots.count() == len(content["methods"])
    for k, method in enumerate(content["methods"]):
        check_the_diagram(plots.nth(k), method["reliability"])
    shares = [
        f"{method['name']} ECE {100 * method['scores']['estimates']['ece']['value']:.2f} %"
        for method in content["methods"]
    ]
    for caption, share in zip(opened.texts(".grid.methods figcaption"), shares, strict=True):
        assert caption.replace("\u00a0", " ").startswith(share)


def test_the_table_sorts_by_every_column(opened, content):
    """A click sorts upward, the next downward; from the keyboard too."""
    page, methods = opened.page, content["methods"]
    headings = page.locator("table.methods thead button")
    by_name = {method["name"]: method for method in methods}
    keys = [
        lambda method: method["name"].lower(),
        *(
            (lambda method, name=name: method["scores"]["estimates"][name]["value"])
            for name in methods[0]["scores"]["estimates"]
        ),
        lambda method: method["forward_passes"],
    ]
    assert headings.count() == len(keys)
    for k, key in enumerate(keys):
        upward = sorted(map(key, methods))  # values, because two methods may share one
        for press, expected, state in (("click", upward, "ascending"), ("Enter", upward[::-1], "descending")):
            headings.nth(k).click() if press == "click" else headings.nth(k).press(press)
            names = page.locator("table.methods tbody th").evaluate_all("all => all.map(th => th.dataset.sort)")
            assert [key(by_name[name]) for name in names] == expected
            assert page.locator("table.methods thead th[aria-sort]").count() == 1
            assert page.locator("table.methods thead th").nth(k).get_attribute("aria-sort") == state


def test_items_show_their_image_and_what_the_members_say(opened, content):
    page, effects = opened.page, content["effects"]
    shown = [*effects["helped"], *effects["hurt"]]
    cards = page.locator(".item.helped, .item.hurt")
    assert cards.count() == len(shown)
    for k, effect in enumerate(shown):
        card = cards.nth(k)
        assert card.locator("h4").text_content() == CLASS_NAMES[effect["label"]]
        assert card.locator("img").evaluate("image => [image.naturalWidth, image.naturalHeight]") == [8, 8]
        plot = card.locator("[data-figure=members]")
        counts = [0] * 20
        for probability in effect["members"]:
            counts[min(19, int(20 * probability))] += 1
        assert plot.evaluate("plot => plot.data[0].y") == counts
        marks = plot.evaluate("plot => plot.layout.shapes.map(shape => shape.x0)")
        assert marks == pytest.approx([effect["network"], effect["ensemble"]], rel=1e-6)
        assert plot.locator(".shapelayer path").count() == 2


@pytest.fixture(scope="module")
def two_runs(run, opener):
    return opener([run, replace(run, title=CLASS_NAMES[4])])


def test_names_stay_text_in_the_browser(two_runs):
    """In the texts, in the figures and beside the pointer; and nothing in a name has run."""
    page = two_runs.page
    assert page.evaluate("window.broken") is None
    assert page.locator("main b, main i").filter(has_text="bold").count() == 0
    labels = page.locator("#run-1 [data-figure=classes] .ytick text").all_text_contents()
    assert sorted(labels) == sorted(name if len(name) <= 26 else f"{name[:25]}…" for name in CLASS_NAMES)
    page.locator("#run-1 [data-figure=overfitting] .points path").first.hover(force=True)
    page.wait_for_selector("[data-figure=overfitting] .hoverlayer text")
    assert HOSTILE in page.locator("[data-figure=overfitting] .hoverlayer").text_content()
    assert HOSTILE in " ".join(two_runs.texts(".provenance"))
    assert page.locator("option").all_text_contents() == [f"1 · a run of {HOSTILE}", f"2 · {CLASS_NAMES[4]}"]
    assert two_runs.complaints == []


def test_one_of_several_runs_is_shown_in_detail(two_runs):
    page = two_runs.page
    assert page.locator("article:visible").count() == 1
    page.locator("#chosen").select_option("2")
    page.wait_for_selector("#run-2 [data-figure=sigma] svg")
    assert page.locator("article:visible").get_attribute("id") == "run-2"
    page.locator("[data-show='1']").click()
    assert page.locator("article:visible").get_attribute("id") == "run-1"
    assert page.locator("[data-figure=change]:visible").count() == 3


def test_a_run_that_was_hidden_while_the_window_changed_fits_when_it_is_shown(two_runs):
    page = two_runs.page
    page.locator("#chosen").select_option("2")
    page.set_viewport_size(NARROW)
    page.locator("#chosen").select_option("1")
    plots = page.locator("#run-1 .plot")
    assert plots.count() > 10
    width = "plot => plot.querySelector('svg.main-svg').getBoundingClientRect().width - plot.clientWidth"
    until(page, lambda: all(abs(gap) < 1 for gap in plots.evaluate_all(f"plots => plots.map({width})")))
    page.set_viewport_size(WIDE)
    assert two_runs.complaints == []


def color_of_ticks(page):
    color = page.evaluate("document.querySelector('[data-figure=sigma] .xtick text').style.fill")
    return "#" + "".join(f"{int(part):02x}" for part in re.findall(r"\d+", color)[:3])


def soft_color(page):
    """The theme's, in which the ticks are written."""
    return page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--soft').trim()")


def test_a_change_of_theme_restyles_the_figures(opened):
    page = opened.page
    light = soft_color(page)
    assert color_of_ticks(page) == light
    page.emulate_media(color_scheme="dark")
    until(page, lambda: color_of_ticks(page) == soft_color(page) != light)
    page.emulate_media(color_scheme="light")
    until(page, lambda: color_of_ticks(page) == soft_color(page) == light)


def test_it_is_open_within_two_seconds_with_a_thousand_classes(run, browser, tmp_path):
    """In processor time of the page's own thread; one of three attempts, for the machine may have other work."""
    path = pm.write_report(large_run(run, items=5_000), tmp_path / "report.html")
    assert any(0.05 < seconds_to_open(browser, path) < 2.0 for _ in range(3))


def seconds_to_open(browser, path):
    """Until all that the first window shows is drawn."""
    page = browser.new_page(viewport=WIDE)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-opened]")
    spent = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
    empty = "all => all.filter(e => e.getBoundingClientRect().top < innerHeight && !e.querySelector('svg')).length"
    assert page.locator(".plot:visible").evaluate_all(empty) == 0
    page.close()
    return spent["TaskDuration"]


@pytest.mark.parametrize("viewport", [WIDE, MIDDLE, NARROW], ids=["wide", "middle", "narrow"])
def test_it_fits_its_window_and_is_photographed_in_both_themes(run, opener, tmp_path, viewport):
    """Opened in the dark theme, changed to the light one; `PEPPERMILL_SCREENSHOTS=folder` keeps the pictures."""
    page = opener(run, viewport=viewport, scheme="dark").page
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        until(page, lambda: color_of_ticks(page) == soft_color(page))
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
        outside = "e => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1"
        parts = page.locator("h1, h2, .sentence, .tile, figure, .item, .control, .numbers dd")
        assert parts.evaluate_all(f"all => all.filter({outside}).length") == 0
        right = "getBoundingClientRect().right"
        beyond = f"all => all.filter(e => e.{right} > e.closest('figure, .item').{right}).length"
        assert page.locator(".plot .main-svg:visible, .layers img").evaluate_all(beyond) == 0
        if viewport is not NARROW:  # where it scrolls
            wider = "all => all.filter(e => e.scrollWidth > e.clientWidth).length"
            assert page.locator(".scroll").evaluate_all(wider) == 0
        folder = os.environ.get("PEPPERMILL_SCREENSHOTS", tmp_path)
        path = f"{folder}/{viewport['width']}-{scheme}.png"
        page.screenshot(path=path, full_page=True)
        picture = Image.open(path).convert("RGB")
        background = json.loads(
            page.evaluate("JSON.stringify(getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number))")
        )
        assert picture.width == viewport["width"]
        assert picture.height > 3 * viewport["height"]
        assert list(picture.getpixel((2, 2))) == background
        assert (sum(background) < 200) == (scheme == "dark")
