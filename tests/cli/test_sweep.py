"""`peppermill sweep`: the curve of Figure 1 as a table, a run and a picture."""

import json

import pytest

import peppermill as pm

ARGUMENTS = ("sweep", "python:my_models:resnet", "npz:validation.npz", "--weights", "resnet.safetensors", "--size", 3)


def test_the_grid_that_was_asked_for(done, network, data, folder):
    written = done(*ARGUMENTS, "--sigmas", "0.2,0.1", "--out", "run.json", "--bins", 15)
    expected = pm.sweep_sigma(network, data("validation"), [0.1, 0.2], size=3, bins=15)
    content = json.loads((folder / "run.json").read_text())
    assert content["settings"]["weights"] == "resnet.safetensors"
    for found, point in zip(content["sweep"]["points"], expected.points, strict=True):
        assert found["sigma"] == point.sigma
        assert found["log_likelihood"] == pytest.approx(point.log_likelihood)
        assert found["ece"] == pytest.approx(point.ece)
    assert "ECE % (15 bins)" in written
    rows = [line.split() for line in written.splitlines() if line.startswith("0")]
    assert [row[0] for row in rows] == ["0", "0.1", "0.2"]
    assert [row[1] for row in rows] == [f"{point.log_likelihood:.4f}" for point in expected.points]
    assert [row[4] for row in rows] == [f"{point.tempered_log_likelihood:.4f}" for point in expected.points]
    assert [row[7] for row in rows] == [f"{100 * point.error:.2f}" for point in expected.points]


def test_a_grid_is_found_where_none_is_given(done):
    written = done(*ARGUMENTS)
    assert sum(line[0].isdigit() and " items" not in line for line in written.splitlines()) == 21


@pytest.mark.parametrize(("name", "opening"), [("curve.png", b"\x89PNG"), ("deep/curve.svg", b"<?xml")])
def test_the_curve_is_drawn(done, folder, name, opening):
    written = done(*ARGUMENTS, "--sigmas", "0.1", "--picture", name)
    assert (folder / name).read_bytes().startswith(opening)
    assert written.endswith(f"wrote {name}\n")


def test_members_that_break_down_are_said_to(done, folder):
    """At sigma = 1e38 the members overflow; the others are not disturbed, and the file stays JSON."""
    written = done(*ARGUMENTS, "--sigmas", "0.1,1e38", "--out", "run.json")
    assert "not finite" in written
    points = json.loads((folder / "run.json").read_text())["sweep"]["points"]
    assert points[2]["log_likelihood"] is None
    assert points[1]["log_likelihood"] > points[0]["log_likelihood"]
