"""Every measured number of README.md and docs/ comes from a results file that its paragraph names.

Numbers with a decimal point, an exponent or a unit count, also in words ("three times"). A number passes in one of
three ways: a command wrote its page or its block (`<!-- NAME -->` to `<!-- end of NAME -->`); it rounds a number of a
results file that the same paragraph names; or it is a definition, listed below with its reason. Code is not prose and
is left out.
"""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]

#: Pages that a command writes whole, from results.
GENERATED = {
    "docs/benchmarks.md": "python -m benchmarks",
    "docs/paper.md": "python -m experiments page",
    "docs/race.md": "python -m experiments race",
    "docs/reliability.md": "make stress",
    "docs/shift.md": "python -m experiments shift",
}

#: Numbers that are not measured: limits that the code sets, names of sections, levels of tests.
DEFINITIONS = {
    "docs/architecture.md": {"15 minutes": "an aim"},
    "docs/choosing.md": {"1e-6": "a limit of the search", "1 %": "a limit of the search"},
    "docs/curvature.md": {"95 %": "a level of confidence"},
    "docs/data.md": {
        "1 GiB": "a limit of the cache",
        "10 %": "a limit of the cache",
        "three times": "what a check does",
    },
    "docs/deployment.md": {
        "1e-38": "the smallest float32",
        "1 GB": "arithmetic: 25 million numbers, 4 bytes, 10 members",
        "2 GiB": "a limit of ONNX",
        "1e-4": "a tolerance of the check",
        "2e-2": "a tolerance of the check",
        "5e-2": "a tolerance of the check",
    },
    "docs/engines.md": {"128 MiB": "a limit of the engines", "8 MiB": "a limit of the engines"},
    "docs/gotchas.md": {"0.1": "an example", "1e-3": "an example"},
    "docs/processes.md": {"60 s": "a time limit that the code sets"},
    "docs/report.md": {
        "0.05": "a default",
        "2 MB": "a test of the run file",
        "2 %": "a step of the curve",
        "4 %": "a step of the curve",
        "100 %": "a step of the curve",
    },
    "docs/the_mathematics.md": {"2,000 times": "a default"},
    "docs/tutorial.md": {"95 %": "a level of confidence", "4 kB": "a test of tests/test_recipe.py"},
}

UNIT = r"(?:%|[kMG]i?B|[mµ]?s|seconds|minutes|hours|times|percent)"
WORDS = r"(?i:two|three|four|five|six|seven|eight|nine|ten|twelve|fifteen|twenty|fifty|a hundred) (?:times|percent)"
#: How many of a number's unit are one of the results' own: seconds, bytes, shares.
PER_UNIT = {"%": 100.0, "percent": 100.0, "ms": 1e3, "µs": 1e6, "kB": 1e-3, "MB": 1e-6, "GB": 1e-9}
NUMBER = re.compile(
    rf"(?<![\w.,])[-+−]?(?:(?:\d[\d,]*)?\.\d+(?:e[-+−]?\d+)?|\d+e[-+−]?\d+|\d[\d,]*(?=\s?{UNIT}(?!\w)))"
    rf"(?:\s?{UNIT}(?!\w))?|(?<!\w){WORDS}"
)


def prose(page: Path) -> str:
    """The text without generated blocks and code; the names of results files stay where they are."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"<!-- (?!end of )([^>]*?) -->.*?<!-- end of \1 -->", "", text, flags=re.DOTALL)
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"(?i)\b(python|version|section|apache)[- ]v?\d+(\.\d+)*", "", text)  # not measured
    text = re.sub(r"\n\n(    [^\n]*\n)+", "\n\n", text)  # blocks of code by indentation
    text = re.sub(r"`([^`]*)`", lambda code: " ".join(re.findall(r"results/[\w./-]+\.json", code[1])), text)
    return re.sub(r"\]\(([^)]*)\)", lambda link: f"] {' '.join(re.findall(r'results/[^)]*json', link[1]))} ", text)


def numbers_of(content: object) -> Iterator[float]:
    """Every number of a JSON file."""
    if isinstance(content, dict):
        content = list(content.values())
    if isinstance(content, list):
        for part in content:
            yield from numbers_of(part)
    elif isinstance(content, (int, float)) and not isinstance(content, bool):
        yield float(content)


def is_rounded_from(text: str, known: list[float]) -> bool:
    """Whether one of the known numbers, as it is or in this text's unit, rounds to this text; words never do."""
    if re.fullmatch(WORDS, text):
        return False
    digits = re.sub(rf"[,\s]|{UNIT}$", "", text).replace("−", "-").lstrip("+")
    mantissa, _, exponent = digits.partition("e")
    step = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    shown = abs(float(digits))
    unit = re.search(rf"{UNIT}$", text)
    scales = 1.0, PER_UNIT.get(unit[0], 1.0) if unit else 1.0
    return any(abs(abs(value) * scale - shown) <= 0.5001 * step for value in known for scale in scales)


def without_a_source(page: Path) -> list[str]:
    """The numbers of a page that no results file has and no definition covers."""
    name, missing = page.relative_to(ROOT).as_posix(), []
    for paragraph in prose(page).split("\n\n"):
        files = [ROOT / file for file in re.findall(r"results/[\w./-]+\.json", paragraph)]
        known = [value for file in files for value in numbers_of(json.loads(file.read_text())) if math.isfinite(value)]
        for found in NUMBER.finditer(re.sub(r"results/\S+", "", paragraph)):
            text = found[0].strip()
            if text not in DEFINITIONS.get(name, {}) and not is_rounded_from(text, known):
                missing.append(text)
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_measured_number_has_a_results_file(page):
    """If it fails: name the results file in the same paragraph, or list a definition with its reason above."""
    if page.relative_to(ROOT).as_posix() not in GENERATED:
        assert without_a_source(page) == []


def test_a_number_that_was_typed_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "results/one.json").write_text('{"nll": 0.2922}')
    page = tmp_path / "page.md"
    page.write_text("It is 0.292 (results/one.json), `0.5` in code.\n\nIt is three times faster: 35 µs, and 0.292.\n")
    assert without_a_source(page) == ["three times", "35 µs", "0.292"]


@pytest.mark.parametrize("page", GENERATED)
def test_a_generated_page_says_which_command_wrote_it(page):
    assert re.search(r"(writes|write|wrote|made) this page", (ROOT / page).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("text", "known", "expected"),
    [
        ("0.29", [0.2949], True),
        ("0.29", [0.2951], False),
        ("26 times", [26.42], True),
        ("53 %", [0.5265], True),
        ("54 %", [0.5265], False),
        ("−4.89e6", [-4891234.0], True),
        ("0.55 GB", [549314560.0], True),
        ("0.5 GB", [549314560.0], True),
        ("0.54 GB", [549314560.0], False),
        ("29.5", [0.295], False),
        ("0.3", [300.0], False),
        ("0.3 GB", [300.0], False),
        ("35 ms", [0.035], True),
        ("35 µs", [0.035], False),
        ("35 µs", [], False),
    ],
)
def test_a_number_is_compared_with_all_the_digits_that_it_shows(text, known, expected):
    assert is_rounded_from(text, known) is expected
