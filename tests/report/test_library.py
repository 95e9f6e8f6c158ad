"""plotly.js made light, and left alone where it does not have the expected shape."""

import subprocess
import sys
import textwrap

import pytest
from plotly.offline import get_plotlyjs

from peppermill.report.library import lines_and_bars, plotly_script, unwrapped

SMALL = (
    "/** license */\n(function(root, factory) { root.x = factory(); } (self, () => {\n"
    '"use strict";var Plotly=(()=>{var W=f=>f;'
    'var Inner=W((a,b)=>{"use strict";b.exports={moduleType:"trace",name:"bar"}});var '
    'Outer=W((a,b)=>{"use strict";b.exports=Inner()});var rest=1;'
    "core.register([Outer(),Box(),$Pie()]);return core})();\n/*! another license */\n"
    "window.Plotly = Plotly;\nreturn Plotly;\n}));\n"
)


def test_a_small_script_by_hand():
    assert unwrapped(lines_and_bars(SMALL)) == (
        "/** license */\n"
        '"use strict";var Plotly=(()=>{var W=f=>f;'
        'var Inner=W((a,b)=>{"use strict";b.exports={moduleType:"trace",name:"bar"}});var '
        'Outer=W((a,b)=>{"use strict";b.exports=Inner()});var rest=1;'
        "core.register([Outer()]);return core})();\n/*! another license */\n"
        "window.Plotly = Plotly;\n"
    )


@pytest.mark.parametrize(
    "other",
    [
        "",
        "var Plotly = 1;",
        SMALL.replace('name:"bar"', 'name:"box"'),
        SMALL.replace("b.exports=Inner()", "b.exports=Lost()"),
        SMALL.replace("register", "enlist"),
        SMALL + SMALL,
    ],
    ids=["empty", "other", "another trace first", "a lost module", "no list", "two lists"],
)
def test_traces_are_left_alone_where_bars_are_not_surely_first(other):
    assert lines_and_bars(other) == other


@pytest.mark.parametrize(
    "other", ["", "window.Plotly = Plotly;", SMALL.replace('"use strict";var Plotly', "var Plotly")]
)
def test_another_wrapper_stays(other):
    assert unwrapped(other) == other


def test_the_installed_plotly_has_the_expected_shape():
    """Both cuts apply, its license stays on top, and next to nothing of it is gone."""
    whole, light = get_plotlyjs(), plotly_script()
    assert light.startswith(whole[: whole.index("*/") + 2])
    assert "MIT" in light[:300]
    assert lines_and_bars(whole) != whole
    assert unwrapped(whole) != whole
    assert 0 < len(whole) - len(light) < 2000


def test_without_plotly_the_cure_is_said(tmp_path):
    """In a process of its own, in which nobody can import it."""
    code = """
        import sys
        sys.modules["plotly"] = None
        import peppermill as pm
        try:
            pm.write_report(pm.Run("a run", {}, ()), sys.argv[1])
        except ImportError as error:
            print(error)
    """
    path = tmp_path / "report.html"
    command = [sys.executable, "-c", textwrap.dedent(code), str(path)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout == 'the report needs plotly: `pip install "peppermill[report]"`.\n'
    assert not path.exists()
