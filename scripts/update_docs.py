"""Write the generated parts of the pages: `python scripts/update_docs.py`.

docs/architecture.md gets the files in reading order with the first line of each docstring, docs/reference.md every
public name and the rows of every registry, docs/command_line.md every command, docs/validation_items.md a benchmark.
peppermill/cli/options.json gets the options of every command, for the completion of shells.
The text between `<!-- NAME -->` and `<!-- end of NAME -->` is replaced.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OPTIONS = ROOT / "peppermill" / "cli" / "options.json"
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

#: What one row adds, and where the rows are.
REGISTRIES = {
    "Noise laws (`noise=`)": "peppermill.noise:LAWS",
    "Likelihoods (`likelihood=`)": "peppermill.likelihood:LIKELIHOODS",
    "Views (`views=`)": "peppermill.views:VIEWS",
    "Searches (`search=`)": "peppermill.tuning:SEARCHES",
    "Calibrators": "peppermill.calibrators:CALIBRATORS",
    "Engines (`engine=`)": "peppermill.engines:ENGINES",
    "Scores": "peppermill.metrics:SCORES",
    "Predictors": "peppermill.predictors:PREDICTORS",
    "Sources of networks and data": "peppermill.sources:SOURCES",
}


def files_in_reading_order() -> str:
    """The table of docs/architecture.md; the core is in bold."""
    from architecture import CORE, READING_ORDER, files, place, summary

    lines = ["| file | what is in it |", "|---|---|"]
    for number, row in enumerate(READING_ORDER):
        if row.endswith("/") and f"{row}__init__.py" in files():
            lines.append(f"| `{row}` | {summary(f'{row}__init__.py')} |")
        for file in (file for file in files() if place(file) == number and not file.endswith("__init__.py")):
            name = f"**`{file}`**" if file in CORE else f"`{file}`"
            lines.append(f"| {name} | {summary(file)} |")
    return "\n".join(lines)


def first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0].replace("|", "\\|")


def help_of(row: Any) -> str:
    """What a row says about itself: its `help`, its `words`, or its docstring."""
    return getattr(row, "help", None) or getattr(row, "words", None) or first_line(row)


def linked(name: str, page_of: Mapping[str, str]) -> str:
    """A public name, with a link to its section of the API reference."""
    return f"[`pm.{name}`](api/{page_of[name]}#peppermill.{name})" if name in page_of else f"`pm.{name}`"


def commands() -> str:
    """Every command of the command line: what it does, and an example."""
    from peppermill.cli.app import COMMANDS, EXAMPLES

    parts = []
    for name, row in COMMANDS.items():
        parts += [f"### {name}\n\n{row.help}\n\n```\npeppermill {name} {EXAMPLES[name]}\n```"]
    return "\n\n".join(parts)


def options() -> str:
    """The options of every command for the completion of shells, one in a line: names, kind and help."""
    from peppermill.cli.app import COMMANDS, load

    def row(option: Any) -> list[str]:
        value = str(getattr(option, "type_descriptor", None) or option.type)  # by the version of typer
        kind = "flag" if option.is_flag else "path" if "Path" in value else "text"
        return ["/".join([option.opts[0], *option.secondary_opts]), kind, option.help or ""]

    parts = []
    for name in COMMANDS:
        rows = [row(option) for option in load(name).params if option.param_type_name == "option"]
        parts.append(f'"{name}": [\n' + ",\n".join(json.dumps(one, ensure_ascii=False) for one in rows) + "\n]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def public_names() -> str:
    """Every name of `peppermill.__all__` with the first line of its docstring."""
    import peppermill

    page_of = {
        name: page.name
        for page in sorted((ROOT / "docs" / "api").glob("*.md"))
        for name in re.findall(r"^::: peppermill\.(\w+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    names = sorted(peppermill.__all__, key=str.lower)
    rows = [f"| {linked(name, page_of)} | {first_line(getattr(peppermill, name))} |" for name in names]
    return "\n".join(["| name | what it is |", "|---|---|", *rows])


def registries() -> str:
    """The rows of every registry: its name and one line of help."""
    parts = []
    for title, where in REGISTRIES.items():
        module, _, name = where.partition(":")
        try:
            table = getattr(import_module(module), name)
        except (ImportError, AttributeError):  # a room that is not built yet
            continue
        rows = table.items() if isinstance(table, Mapping) else [(row.example, row) for row in table]
        file = module.replace(".", "/")
        file += "/__init__.py" if (ROOT / file).is_dir() else ".py"
        parts += [f"### {title}\n\n`{name}` in `{file}`\n\n| name | what it is |\n|---|---|"]
        parts[-1] += "".join(f"\n| `{key}` | {help_of(row)} |" for key, row in rows)
    return "\n\n".join(parts)


def validation_items() -> str:
    """What `python -m benchmarks.validation_items` found."""
    from benchmarks.validation_items import section

    found = json.loads((ROOT / "results" / "bench" / "validation_items.json").read_text(encoding="utf-8"))
    return section(found).partition("\n\n")[2].strip()


def costs_of_many_items() -> str:
    """The tables of docs/scale.md, from results/bench/scale.json."""
    from benchmarks.scale import page_block

    return page_block()


#: The page, the name of its mark, and what stands there.
GENERATED = [
    ("architecture.md", "files", files_in_reading_order),
    ("command_line.md", "commands", commands),
    ("validation_items.md", "validation items", validation_items),
    ("reference.md", "public names", public_names),
    ("reference.md", "registries", registries),
    ("scale.md", "costs", costs_of_many_items),
]


def updated(text: str, mark: str, content: str) -> str:
    """The text of a page with the part between two marks replaced."""
    begin, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
    before, _, rest = text.partition(begin)
    if end not in rest:
        raise ValueError(f"the page has no part between {begin!r} and {end!r}")
    return f"{before}{begin}\n{content}\n{end}{rest.partition(end)[2]}"


def main() -> None:
    for page, mark, content in GENERATED:
        path = ROOT / "docs" / page
        path.write_text(updated(path.read_text(encoding="utf-8"), mark, content()), encoding="utf-8")
    OPTIONS.write_text(options(), encoding="utf-8")


if __name__ == "__main__":
    main()
