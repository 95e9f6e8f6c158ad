"""Results show themselves: as text in a terminal, as a table and a curve in a notebook."""

import re
import xml.etree.ElementTree as ElementTree

import pytest
import torch
from torch import nn

import peppermill as pm
from peppermill.plumbing.display import Table, curve_of
from peppermill.tuning.result import Evaluation, SigmaSearch


def test_columns_are_aligned_and_cells_may_have_several_lines():
    table = Table(("name", "value", ""), [("long name", "1\n[0, 2]", ""), ("b", "10", "<- best")], "title", "note")
    assert str(table) == (
        "title\nname       value\nlong name  1\n           [0, 2]\n\nb          10      <- best\nnote"
    )


def test_html_escapes_every_text_and_breaks_lines():
    page = Table(("<a>",), [("x & y\n<b>",)], "<t>", "<n>").html()
    assert page == (
        "<p>&lt;t&gt;</p><table><thead><tr><th>&lt;a&gt;</th></tr></thead>"
        "<tbody><tr><td>x &amp; y<br>&lt;b&gt;</td></tr></tbody></table><p>&lt;n&gt;</p>"
    )


@pytest.mark.parametrize(
    "points",
    [
        [(0.0, -1.0), (0.1, -0.5), (0.2, -9.0), (0.3, float("-inf"))],
        [(0.2, -0.7), (0.0, -0.7), (0.1, -0.7)],
    ],
)
def test_the_curve_marks_the_best_point_and_stays_inside_its_box(points):
    svg = ElementTree.fromstring(curve_of(points))
    box = [float(number) for number in svg.get("viewBox").split()]
    line = [tuple(map(float, pair.split(","))) for pair in svg.find("polyline").get("points").split()]
    finite = sorted(point for point in points if point[1] > float("-inf"))
    assert len(line) == len(finite)
    assert all(0 < x < box[2] and 0 < y < box[3] for x, y in line)
    assert [x for x, _ in line] == sorted(x for x, _ in line)
    ring = svg.findall("circle")[-1]
    best = max(range(len(finite)), key=lambda k: (finite[k][1], -k))
    assert (float(ring.get("cx")), float(ring.get("cy"))) == pytest.approx(line[best])
    assert f"best at {finite[best][0]:.4g}" in svg.get("aria-label")


def test_a_search_shows_the_best_temperature_of_each_sigma_and_its_likelihood():
    """-20 nats of 10 items at T = 1, -10 with T = 2; the noise gains 3 nats more although it loses at T = 1."""
    network, noisy = Evaluation(0.0, -20.0, 2.0, -10.0), Evaluation(0.1, -25.0, 1.5, -7.0)
    found = SigmaSearch((network, noisy), 0.0, 0.2, 10, joint=True, passes=8.0)
    assert repr(found).splitlines() == [
        "sigma* = 0.1, found on 10 items with 2 values of sigma and 8.0 forward passes",
        "sigma  L(sigma)/N  best T  L(sigma, T)/N",
        "0      -2.00000    2       -1.00000",
        "0.1    -2.50000    1.5     -0.70000       <- best",
        "validation NLL 2.0000 -> 0.7000",
    ]


@pytest.fixture(scope="module")
def results():
    torch.manual_seed(0)
    network, data = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval(), None
    with torch.no_grad():
        network[2].weight.mul_(6)
    inputs = torch.randn(150, 4)
    data = inputs, torch.multinomial((network(inputs) / 3).softmax(dim=1).detach(), 1)[:, 0]
    pep, sweep = pm.fit(network, data, size=4), pm.sweep_sigma(network, data, [0.05, 0.1, 0.2], size=2)
    return {
        "PepEnsemble": pep,
        "SigmaSearch": pep.search,
        "Scores": pm.evaluate(pep, data),
        "Comparison": pm.compare(network, pep, data),
        "Race": pm.calibrate(network, data, 2).race,
        "Sweep": sweep,
        "SizeCurve": pm.size_curve(pep, data),
        "LocalAnalysis": pm.local_analysis(network, data, probes=3),
        "Run": pm.record_run({"network": network, "PEP": pep}, data, title="<a run>", sweep=sweep),
        "Run of a sweep": pm.Run("a sweep", {}, (), sweep),
    }


NAMES = ("PepEnsemble", "SigmaSearch", "Scores", "Comparison", "Race", "Sweep", "SizeCurve", "LocalAnalysis", "Run")


@pytest.mark.parametrize("name", [*NAMES, "Run of a sweep"])
def test_every_result_is_short_text_and_well_formed_html(results, name):
    text, page = repr(results[name]), results[name]._repr_html_()
    assert len(text.splitlines()) <= 25
    assert "tensor(" not in text
    assert "object at 0x" not in text
    found = ElementTree.fromstring(f"<div>{page}</div>".replace("<br>", "<br/>"))
    assert found.find("table") is not None or len(results[name].search.evaluations) == 0
    for number in re.findall(r"\d\.\d{4}", text):
        assert number in page


def test_an_ensemble_says_what_it_is_and_what_it_costs(results):
    pep = results["PepEnsemble"]
    assert repr(pep) == (
        f"PepEnsemble(sigma={pep.sigma:.4g}, size=4, temperature=1, seed=0): PEP of Sequential, 4 forward passes"
    )
    given = pm.PepEnsemble.at_sigma(pep.model, 0.1, size=3)
    assert "sigma = 0.1 was given, so there was no search" in given._repr_html_()


def test_the_curves_of_searches_and_sweeps_are_drawn(results):
    assert results["Sweep"]._repr_html_().count("<svg") == 1
    assert results["Scores"]._repr_html_().count("<svg") == 0


def test_completion_offers_the_scores(results):
    assert {"nll", "brier", "ece", "error"} <= {*dir(results["Scores"])}
