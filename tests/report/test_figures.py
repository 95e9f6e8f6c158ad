"""The figures: valid files, with everything on them and nothing cut off."""

import math
import re
import subprocess
import sys
import textwrap
from itertools import pairwise

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.image import imread

import peppermill as pm
from peppermill.evaluation.item_effects import Effect
from peppermill.evaluation.member_count import SizeCurve
from peppermill.evaluation.scores import Estimate
from peppermill.evaluation.sweep import Sweep, SweepPoint
from peppermill.metrics import reliability
from peppermill.report import figures as plots
from peppermill.report.thumbnail import thumbnail

EFFECTS = (
    Effect(3, 0, 1, 0, 0.2, 0.55, (0.0, 0.51, 0.53, 0.9, 1.0), thumbnail(torch.rand(1, 4, 4))),
    Effect(8, 2, 2, 2, 0.9, 0.4, (0.1, 0.4, 0.7)),
)


def point(sigma, log_likelihood, *members):
    return SweepPoint(sigma, log_likelihood, members, 1.0, log_likelihood, {}, None)


@pytest.fixture
def sweep():
    points = (point(0, -0.5, -0.5, -0.5), point(0.1, -0.4, -0.6, -0.45), point(0.2, -0.45, -0.9, -0.7))
    return Sweep(points, items=10, bins=20)


@pytest.fixture
def tables():
    generator = torch.Generator().manual_seed(0)
    logits, labels = 2 * torch.randn(300, 3, generator=generator), torch.randint(3, (300,), generator=generator)
    names = ("network", "temperature scaling", "PEP", "PEP with temperature")
    return {name: reliability(logits.div(k + 1).log_softmax(1), labels) for k, name in enumerate(names)}


def test_the_sigma_curve_shows_ensemble_members_average_and_network(sweep):
    figure = plots.sigma_curve(sweep, sigma=0.1)
    lines = {line.get_label(): [float(y) for y in line.get_ydata()] for line in figure.axes[0].get_lines()}
    assert lines["ensemble, L(σ)/N"] == [-0.5, -0.4, -0.45]
    assert lines["average of the members"] == pytest.approx([-0.5, -0.525, -0.8])
    assert lines["the network itself, σ = 0"] == [-0.5, -0.5]
    drawn = [[float(y) for y in line.get_ydata()] for line in figure.axes[0].get_lines()]
    assert [-0.5, -0.6, -0.9] in drawn
    assert [-0.5, -0.45, -0.7] in drawn
    assert [text.get_text() for text in figure.axes[0].texts] == [" σ* = 0.1"]
    assert "σ" in figure.axes[0].get_xlabel()


def test_the_peak_and_the_network_are_in_sight_whatever_falls_beyond(sweep):
    far = Sweep((*sweep.points, point(0.4, -9.0, -20.0, -30.0), point(0.8, math.nan, math.nan, math.nan)), 10, 20)
    low, high = plots.sigma_curve(far).axes[0].get_ylim()
    assert -1 < low < -0.5
    assert -0.4 < high < -0.3


def test_the_size_curve_marks_the_fewest_members_that_are_enough():
    nll = tuple(Estimate(value, value - 0.1, value + 0.1) for value in (0.5, 0.4, 0.38, 0.379))
    loss = tuple(Estimate(value, value, value) for value in (0.121, 0.021, 0.001, 0.0))
    figure = plots.size_curve(SizeCurve((1, 2, 4, 8), nll, loss, 100, 0.95, "my PEP"), 0.005, network=0.6)
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    assert list(lines["my PEP"].get_xdata()) == [1, 2, 4, 8]
    assert list(lines["my PEP"].get_ydata()) == [0.5, 0.4, 0.38, 0.379]
    assert list(lines["4 lose at most 0.005"].get_xdata()) == [4, 4]
    assert list(lines["the network itself"].get_ydata()) == [0.6, 0.6]
    band = figure.axes[0].collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == pytest.approx((0.279, 0.6))


def test_one_column_for_each_method_with_its_ece(tables):
    figure = plots.reliability_diagrams(tables)
    assert len(figure.axes) == 2 * len(tables)
    titles = [axis.get_title() for axis in figure.axes[:4]]
    for title, (name, table) in zip(titles, tables.items(), strict=True):
        ece = 100 * sum(g * c for g, c in zip(table.gaps().tolist(), table.count.tolist(), strict=True)) / 300
        assert title == f"{name}\nECE {ece:.2f} % (20 bins)"
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert heights == pytest.approx(tables["network"].accuracy[tables["network"].count > 0].tolist())
    assert [bar.get_height() for bar in figure.axes[4].patches] == tables["network"].count.tolist()


def test_bins_of_few_items_are_paler_than_the_others(tables):
    table = tables["network"]
    bars = plots.reliability_diagrams(tables).axes[0].patches
    counts = table.count[table.count > 0].tolist()
    assert {count <= 20 for count in counts} == {True, False}
    assert [bar.get_alpha() < 0.5 for bar in bars] == [count <= 20 for count in counts]


def test_nothing_on_a_picture_touches_its_neighbor(tables, sweep):
    """Titles stay inside their own column, and the legend outside every axis."""
    long = tables | {"PEP by layer, 2 views, with matrix scaling": tables["PEP"]}
    for figure in (*map(plots.reliability_diagrams, (tables, long)), plots.sigma_curve(sweep, 0.1)):
        figure.canvas.draw()
        boxes = [axis.title.get_window_extent() for axis in figure.axes if axis.get_title()]
        for left, right in pairwise(boxes):
            assert left.x1 < right.x0
        assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)
        legend = figure.legends[0].get_window_extent()
        assert not any(legend.overlaps(axis.get_window_extent()) for axis in figure.axes)
        assert legend.x0 >= 0
        assert legend.x1 <= figure.bbox.x1


@pytest.mark.parametrize(("ending", "opening"), [("png", b"\x89PNG\r\n\x1a\n"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_ending_of_the_path_is_the_format(sweep, tmp_path, ending, opening):
    plots.save_figure(plots.sigma_curve(sweep), tmp_path / f"curve.{ending}")
    assert (tmp_path / f"curve.{ending}").read_bytes().startswith(opening)


def test_the_same_figure_is_the_same_file(sweep, tmp_path):
    for name in ("one.svg", "two.svg"):
        plots.save_figure(plots.sigma_curve(sweep), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_a_picture_has_the_pixels_that_it_claims(sweep, tmp_path):
    """1.35 columns of 3.4 inches at 200 dots each."""
    plots.save_figure(plots.sigma_curve(sweep), tmp_path / "curve.png")
    height, width, _ = imread(tmp_path / "curve.png").shape
    assert (width, height) == (int(3.4 * 1.35 * 200), int(3.4 * 1.1 * 200))


@pytest.mark.parametrize("name", ["curve.xyz", "curve", "curve.jpeg"])
def test_other_formats_are_refused_before_anything_is_drawn(sweep, tmp_path, name):
    with pytest.raises(ValueError, match=re.escape(f"{name} must end in one of .png, .svg, .pdf")):
        plots.save_figure(plots.sigma_curve(sweep), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_the_style_of_the_user_is_left_as_it_was(sweep, tables, tmp_path):
    before = dict(matplotlib.rcParams)
    plots.save_figure(plots.sigma_curve(sweep), tmp_path / "curve.png")
    plots.reliability_diagrams(tables)
    assert dict(matplotlib.rcParams) == before


@pytest.mark.slow
def test_without_matplotlib_the_cure_is_said():
    """In a process of its own, in which nobody can import it."""
    code = """
        import sys
        sys.modules["matplotlib"] = None
        from peppermill.report import figures as plots
        try:
            plots.reliability_diagrams({})
        except ImportError as error:
            print(error)
    """
    found = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert found.stdout == 'pictures need matplotlib: `pip install "peppermill[plots]"`.\n'


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


def test_the_members_fit_a_column_and_is_written_in_every_format(tmp_path):
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
