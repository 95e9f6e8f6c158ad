"""What README.md and the pages in docs/ show runs, and the README's table is the one that the demo made."""

import json
import os
import pkgutil
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.core import TyperGroup
from typer.testing import CliRunner

import peppermill.demo
import peppermill.views
from peppermill.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SLOW = {"index.md", "deployment.md", "estimators.md", "pretrained.md"}  # a whole race; onnx, Lightning, Keras

sys.path.insert(0, str(ROOT / "scripts"))

import update_readme  # noqa: E402

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path, language: str = "python") -> list[str]:
    """The blocks of a page in one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", text_of(page), re.MULTILINE | re.DOTALL)


@pytest.fixture
def names(tmp_path, monkeypatch):
    """What a reader is supposed to have: a trained network, validation and test data, a batch of inputs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(peppermill.views, "VIEWS", dict(peppermill.views.VIEWS))  # a page adds a row
    validation, test = ((images[:200], labels[:200]) for images, labels in peppermill.demo.data())
    return {"model": peppermill.demo.network(), "validation": validation, "test": test, "x": test[0][:8]}


def test_the_readme_shows_python():
    assert blocks(README)


@pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")  # Lightning's advice
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")  # Lightning's own
@pytest.mark.filterwarnings("ignore::peppermill.PepWarning")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            id=page.relative_to(ROOT).as_posix(),
            marks=[pytest.mark.slow] if page.name in SLOW or page.parent.name == "api" else [],
        )
        for page in PAGES
        if blocks(page)
    ],
)
def test_every_python_block_runs(page, names):
    """One after the other, each with the names of those before it; all pages but the README assume `pm`."""
    names |= {} if page == README else {"pm": peppermill}
    for number, block in enumerate(blocks(page), start=1):
        exec(compile(block, f"{page.name}, block {number}", "exec"), names)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::peppermill.PepWarning")
def test_the_commands_of_the_page_on_data_run_on_the_folder_that_it_makes(names):
    page = ROOT / "docs" / "data.md"
    exec(blocks(page)[-1], names)  # makes the folder
    written = ""
    for line in "".join(blocks(page, "sh")).splitlines():
        program, *arguments = shlex.split(line)
        assert program == "peppermill"
        found = CliRunner().invoke(app, arguments)
        assert found.exit_code == 0, found.stderr
        written += found.stdout
    assert "on 100 items drawn from 200" in written
    assert "testing on the 100 of 200 items that were not used for tuning" in written


def test_the_table_is_that_of_the_demos_run():
    _, _, rest = text_of(README).partition("<!-- demo table -->\n")
    table, end, _ = rest.partition("<!-- end of demo table -->")
    assert end, "README.md has no demo table between its two marks"
    run = json.loads(text_of(ROOT / "results" / "demo" / "run.json"))
    assert table.strip() == update_readme.table(run).strip()


def test_the_readme_says_of_the_race_what_its_page_says():
    """That page is written from the results."""
    better, networks, worse = re.search(
        r"Against temperature scaling, .* better on (\d+) of (\d+) networks, and significantly worse on (\d+)\.",
        (ROOT / "docs" / "race.md").read_text(),
    ).groups()
    assert f"On {better} of {networks} networks, from a small MLP to ResNet50, the race's" in README.read_text()
    assert worse == "0"


def test_the_table_by_hand():
    """Of a run with two methods: signs, a p-value that is printed, percentages."""
    scores = {"estimates": {"nll": {"value": 0.4}, "ece": {"value": 0.0612}, "error": {"value": 0.1}}, "items": 5000}
    better = {"value": -0.1, "lower": -0.12, "upper": 0.01, "p_value": 0.0123}
    network = {"name": "network", "forward_passes": 1, "scores": scores, "comparison": None}
    other = {**network, "name": "PEP", "forward_passes": 10, "comparison": {"differences": {"nll": better}}}
    assert update_readme.table({"methods": [network, other]}).splitlines()[2:4] == [
        "| network | 1 | 0.4000 |  | 6.12 | 10.00 |",
        "| PEP | 10 | 0.4000 | −0.1000 [−0.1200, +0.0100], p = 0.012 | 6.12 | 10.00 |",
    ]


def commands(page: Path) -> list[str]:
    """Every command line of ours that a page shows, in a block or within a sentence, unless `...` ends it."""
    text = text_of(page)
    lines = re.findall(r"^ *(?:torchrun .* -m )?peppermill ([a-z][^#\n]*)", text, re.MULTILINE)
    inline = re.findall(r"`(?:torchrun [^`]* -m )?peppermill ([a-z]+ [^`]*)`", text)  # a name alone is no command line
    found = (" ".join(command.split()) for command in [*lines, *inline] if "..." not in command and "`" not in command)
    return [command for command in found if not command.startswith("paper ")]  # as version one ran it


def understood(command: Any, words: list[str]) -> bool:
    """Whether click accepts the words, subcommand by subcommand; nothing is run."""
    if isinstance(command, TyperGroup):
        _, found, rest = command.resolve_command(typer.Context(command), words)
        return found is not None and understood(found, rest)
    return bool(command.make_context(command.name, words).params)


def test_pages_show_commands_of_every_kind():
    shown = {command.split()[0] for page in PAGES for command in commands(page)}
    assert shown >= {"fit", "evaluate", "export", "curvature", "size", "report", "info", "demo", "predict"}


@every_page
def test_every_command_on_a_page_exists(page):
    """With the arguments that it needs, and only with options that it has."""
    ours = typer.main.get_command(app)
    for command in commands(page):
        assert understood(ours, shlex.split(command)), command


@every_page
def test_links_within_the_repository_lead_somewhere(page):
    links = re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", text_of(page))
    inside = [link for link in links if not re.match(r"[a-z]+:", link)]
    assert [link for link in inside if not os.path.exists(page.parent / link)] == []


def names_of_ours(page: Path) -> list[str]:
    """`module.name` and `pm.name` in the sentences of a page, as `peppermill.module.name` and `peppermill.name`."""
    modules = {path.stem for path in (ROOT / "peppermill").iterdir() if not path.name.startswith("__")}
    modules -= {"datasets"}  # on a page, `datasets.Dataset` is that of Hugging Face
    dotted = re.findall(r"`(\w+)\.([\w.]+)`", text_of(page))
    ours = [(first, rest) for first, rest in dotted if first == "pm" or (first in modules and rest != "py")]
    return [f"peppermill.{rest}" if first == "pm" else f"peppermill.{first}.{rest}" for first, rest in ours]


def test_the_mathematics_name_their_functions():
    assert len(names_of_ours(ROOT / "docs" / "the_mathematics.md")) > 15


@every_page
def test_every_name_of_ours_on_a_page_exists(page):
    for name in names_of_ours(page):
        assert pkgutil.resolve_name(name) is not None


@every_page
def test_every_file_of_ours_on_a_page_exists(page):
    """`engines/loop.py`, `experiments/__main__.py`: below the package or below the repository."""
    files = re.findall(r"`([\w/]+\.py)`", text_of(page))
    assert [file for file in files if not (ROOT / "peppermill" / file).exists() and not (ROOT / file).exists()] == []


def result(name):
    return json.loads(text_of(ROOT / "results" / name))


def numbers_on_the_page_of_curvature():
    """Each as it is written there, from the results file named next to it."""
    demo, probe = result("curvature/demo.json")["curvature"], result("curvature/overfitting.json")["overfitting"]
    carried, mislabelled = (result("bench/item_effects.json")[key] for key in ("as_they_are", "with_mislabelled"))
    kinks = result("bench/kinks.json")["networks"]["ReLU, max pooling"][2]
    yield f"Laplacian of −{-demo['laplacian'] / 1e6:.2f}e6 ± {demo['laplacian_error'] / 1e6:.2f}e6"
    yield f"a Fisher trace of {demo['fisher_trace'] / 1e6:.2f}e6"
    yield f"effect rate of {demo['effect_rate'] / 1e6:.2f}e6 ± {demo['effect_rate_error'] / 1e6:.2f}e6"
    yield f"believed up to σ = {demo['believable_range'][1]:.4f}"
    yield f"the traces add up to −{-kinks['from_derivatives']:.0f} ± {kinks['from_derivatives_error']:.0f}"
    yield f"steps of {kinks['step']} finds {kinks['from_steps']:.0f} ± {kinks['from_steps_error']:.0f}"
    yield f"measures {kinks['measured']:.0f} ± {kinks['measured_error']:.0f}"
    wrong, hardest = carried["carried"][:2]
    yield f"the {100 * wrong['fraction']:.1f} % that the network gets wrong carry {100 * wrong['share']:.0f} %"
    yield f"The {100 * hardest['fraction']:.0f} % of lowest likelihood carry {100 * hardest['share']:.0f} %"
    made = mislabelled["carried"][-1]
    yield f"{100 * made['fraction']:.1f} % of the test labels are made wrong on purpose, those items carry"
    yield f"carry {100 * made['share']:.0f} % of the gain."
    for name in ("pep_effect", "sigma"):
        rho = probe["correlations"][name]
        yield f"{rho['rho']:.2f} [{rho['lower']:.2f}, {rho['upper']:.2f}]"
    cost = result("bench/curvature.json")
    yield f"{cost['ratio_to_plain_pass']['ratio']:.0f} times the time of one plain forward and backward pass"
    yield f"{cost['ratio_to_peers']['ratio']:.2f} times that of BackPACK and curvlinops"
    yield f"{cost['peak_bytes'] / 1e9:.2f} GB at most"


def test_the_numbers_on_the_page_of_curvature_are_those_of_the_results():
    text = " ".join(text_of(ROOT / "docs" / "curvature.md").split())
    assert [number for number in numbers_on_the_page_of_curvature() if number not in text] == []
