"""`peppermill size`."""

import json

import pytest

import peppermill as pm

ARGUMENTS = ("size", "python:my_models:resnet", "npz:test.npz", "--weights", "resnet.safetensors", "--pep", "pep.json")


@pytest.fixture(params=[False, True], ids=["alone", "with temperature"])
def pep(network, data, request):
    found = pm.fit(network, data("validation"), size=4, temperature=request.param)
    found.save("pep.json")
    return found


def test_it_prints_writes_and_draws_what_the_library_says(done, pep, data, folder):
    curve = pm.size_curve(pep, data("test"))
    written = done(*ARGUMENTS, "--loss", 0.01, "--out", "size.json", "--picture", "size.svg")
    for size, nll, lost in zip(curve.sizes, curve.nll, curve.loss, strict=True):
        row = f"{size}        {nll.value:.4f} [{nll.lower:.4f}, {nll.upper:.4f}]  {lost.value:.4f} ["
        assert row in written
    few = curve.smallest(0.01)
    enough = (
        f"{few} of 4 members are enough: the NLL rises by at most"
        if few < 4
        else "all 4 members are needed: with fewer, the NLL may rise by more than"
    )
    assert f"{enough} 0.01 on these 300 items" in written
    content = json.loads((folder / "size.json").read_text())["sizes"]
    assert content["sizes"] == [1, 2, 3, 4]
    assert content["nll"][1]["value"] == pytest.approx(curve.nll[1].value)
    assert "<svg" in (folder / "size.svg").read_text()
    done("report", "size.json", "-o", "size.html")
    assert "How many members?" in (folder / "size.html").read_text(encoding="utf-8")


def test_data_on_which_the_network_overflows_are_refused(peppermill, network, data):
    pm.fit(network, data("validation"), size=2).save("pep.json")
    found = peppermill(ARGUMENTS[0], ARGUMENTS[1], "python:my_models:overflowing", *ARGUMENTS[3:])
    assert (found.exit_code, found.stdout) == (2, "")
    assert "the NLL of 50 of 50 items is not finite: check the weights and the data." in found.stderr


def test_a_loss_below_zero_is_refused(peppermill, network, data):
    pm.fit(network, data("validation"), size=2).save("pep.json")
    found = peppermill(*ARGUMENTS, "--loss", "-1")
    assert found.exit_code == 2
    assert "`loss=-1.0` must be a loss of NLL, zero or positive" in " ".join(found.stderr.split())


def test_one_member_is_enough_where_there_is_only_one(done, network, data):
    pm.fit_temperature(network, data("validation")).save("pep.json")
    assert "1 of 1 members are enough" in done(*ARGUMENTS)
