import subprocess
import sys

import pytest

CODE = """
import sys
from peppermill.evaluation import comparison, item_effects, member_count, overfitting, scores, sweep
names = ("scipy.stats", "matplotlib", "plotly", "jinja2", "peppermill.report")
print([name for name in names if name in sys.modules])
"""


@pytest.mark.slow
def test_importing_the_evaluation_imports_no_statistics_plots_or_report():
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
