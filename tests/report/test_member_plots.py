"""The members' histogram, and the figures that `pm.plots` offers."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from matplotlib.image import imread

import peppermill as pm
from peppermill.evaluation.item_effects import Effect
from peppermill.report.thumbnail import thumbnail

EFFECTS = (
    Effect(3, 0, 1, 0, 0.2, 0.55, (0.0, 0.51, 0.53, 0.9, 1.0), thumbnail(torch.rand(1, 4, 4))),
    Effect(8, 2, 2, 2, 0.9, 0.4, (0.1, 0.4, 0.7)),
)


def test_counts_marks_and_names_are_on_the_picture():
    figure = pm.plots.members_histogram(EFFECTS, ("a $x$", "b"))
    first, second = figure.axes[1], figure.axes[3]
    assert [int(bar.get_height()) for bar in first.patches] == np.histogram(EFFECTS[0].members, 20, (0, 1))[0].tolist()
    assert [line.get_xdata()[0] for line in first.get_lines()] == [0.2, 0.55]
    assert [line.get_label() for line in first.get_lines()] == ["network", "ensemble"]
    assert (first.get_title(), second.get_title()) == ("a $x$: b → a $x$", "class 2: class 2 → class 2")
    assert (len(figure.axes[0].images), len(figure.axes[2].images)) == (1, 0)


def test_the_marks_differ_without_color():
    """Readable in grey: one line is dashed, the other is not."""
    lines = pm.plots.members_histogram(EFFECTS).axes[1].get_lines()
    assert [line.get_linestyle() for line in lines] == ["--", "-"]


def test_it_fits_a_column_and_is_written_in_every_format(tmp_path):
    figure = pm.plots.members_histogram(EFFECTS)
    assert figure.get_size_inches()[0] == pytest.approx(3.4)
    for ending, opening in {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}.items():
        pm.plots.save_figure(figure, tmp_path / f"members.{ending}")
        assert (tmp_path / f"members.{ending}").read_bytes().startswith(opening)
    assert imread(tmp_path / "members.png").shape[1] >= 3.4 * 100


def test_no_item_is_an_error():
    with pytest.raises(ValueError, match="`effects` is empty: there is no item to show"):
        pm.plots.members_histogram(())


def test_every_figure_is_found_under_plots():
    for name in ("sigma_curve", "reliability_diagrams", "members_histogram", "size_curve", "save_figure"):
        assert callable(getattr(pm.plots, name))
    with pytest.raises(AttributeError, match="has no attribute 'pie'"):
        _ = pm.plots.pie


def test_the_library_is_imported_without_matplotlib_and_plotly():
    code = "import sys, peppermill; print({'matplotlib', 'plotly'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"
