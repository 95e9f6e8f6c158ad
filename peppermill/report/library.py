"""plotly.js from the Python package plotly, made light: the page draws lines and bars, and must open at once.

The script that the package brings sets up some fifty kinds of trace, and is wrapped so that a browser reads it twice;
on a small machine that takes a second. Both are cut off here where the script has the expected shape, and left alone
where it has not: the page is then slower, and the same.
"""

from __future__ import annotations

import re
from importlib import import_module

from peppermill.plumbing.optional import importing

_TRACES = re.compile(r"\.register\(\[([\w$]+)\(\)(?:,[\w$]+\(\))+\]\)")
_OPENING, _ENDING = '"use strict";var Plotly=', "window.Plotly = Plotly;"


def plotly_script() -> str:
    """plotly.js, reduced to what the page uses."""
    with importing("the report needs plotly", "plotly", "report"):
        script: str = import_module("plotly.offline").get_plotlyjs()
    return unwrapped(lines_and_bars(script))


def lines_and_bars(script: str) -> str:
    """The script without its traces other than bars, which come first in its list; lines are part of its core."""
    found = list(_TRACES.finditer(script))
    if len(found) != 1 or not _is_bar(script, found[0][1]):
        return script
    return f"{script[: found[0].start()]}.register([{found[0][1]}()]){script[found[0].end() :]}"


def unwrapped(script: str) -> str:
    """The script without the function around it, which serves module loaders; its license stays at the top."""
    notice, opening, ending = script.find("*/"), script.find(_OPENING), script.rfind(_ENDING)
    if not 0 <= notice < opening < ending:
        return script
    return f"{script[: notice + 2]}\n{script[opening:ending]}{_ENDING}\n"


def _is_bar(script: str, name: str) -> bool:
    """Whether this module of the script hands on another, which calls itself "bar"."""
    handed_on = re.search(rf'var {re.escape(name)}=.{{1,40}}?"use strict";[\w$]+\.exports=([\w$]+)\(\)}}\)', script)
    if not handed_on:
        return False
    inner = re.search(rf"var {re.escape(handed_on[1])}=(.*?)\}}\);var ", script, re.DOTALL)
    return inner is not None and re.search(r'\bname:"bar"', inner[1]) is not None
