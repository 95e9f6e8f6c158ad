"""The paper's figures from the content of result files: every number of the content is on the picture."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from peppermill import metrics
from peppermill.evaluation.sweep import Sweep, SweepPoint
from peppermill.paper import drawings
from peppermill.report.run import plain


def as_read(content: Any) -> Any:
    """As a result file gives it back."""
    return json.loads(json.dumps(plain(content), allow_nan=False))


def table() -> metrics.Reliability:
    """Ten items at 0.95, all right, two at 0.15, both wrong; the other eight bins are empty, and so NaN."""
    confidence = torch.tensor([0.95] * 10 + [0.15] * 2, dtype=torch.float64)
    return metrics.reliability_table(confidence, confidence > 0.5, metrics.equal_width_edges(10, confidence.device))


def test_figure_1_shows_the_curve_of_the_file() -> None:
    curve = ((0.0, -0.5, (-0.5, -0.5)), (0.1, -0.4, (-0.6, -0.45)), (0.2, float("nan"), (-0.9, float("nan"))))
    points = [SweepPoint(sigma, value, members, 1.0, value, {}, table()) for sigma, value, members in curve]
    figure = drawings.figure1(as_read({"sweep": Sweep(tuple(points), 12, 10)}))
    lines = {line.get_label(): [float(y) for y in line.get_ydata()] for line in figure.axes[0].get_lines()}
    assert lines["ensemble, L(σ)/N"] == pytest.approx([-0.5, -0.4, float("nan")], nan_ok=True)
    assert lines["average of the members"] == pytest.approx([-0.5, -0.525, float("nan")], nan_ok=True)
    assert [text.get_text() for text in figure.axes[0].texts] == [" σ* = 0.1"]


@pytest.mark.parametrize(("minimum_count", "ece"), [(1, (10 * 0.05 + 2 * 0.15) / 12), (3, 10 * 0.05 / 12)])
def test_bins_of_few_items_are_drawn_and_do_not_count(minimum_count: int, ece: float) -> None:
    content = as_read({"reliability": {"network": table()}, "minimum_count": minimum_count})
    axis = drawings.figure2_reliability(content).axes[0]
    assert axis.get_title() == f"network\nECE {100 * ece:.2f} % (10 bins)"
    assert sorted(bar.get_height() for bar in axis.patches) == [0, 1]


def test_a_corrected_mistake_has_its_image_its_classes_and_its_members() -> None:
    one = {"item": 1, "label": 2, "predicted": 0, "network": 0.2, "ensemble": 0.6, "members": [0.5, 0.7]}
    images = torch.arange(2 * 3 * 4 * 4, dtype=torch.uint8).view(2, 3, 4, 4)
    image, histogram = drawings.figure2_corrected({"corrected": [one]}, images, ["cat", "dog", "ship"]).axes
    assert histogram.get_title() == "ship: cat → ship"
    assert sum(bar.get_height() for bar in histogram.patches) == 2
    assert [line.get_xdata()[0] for line in histogram.get_lines()] == [0.2, 0.6]
    shown = torch.as_tensor(image.images[0].get_array()).mul(255).round().byte()
    assert torch.equal(shown, images[1].permute(1, 2, 0))
    assert not drawings.figure2_corrected({"corrected": [one]}, None, []).axes[0].images
