"""`peppermill abstain`: a rule in a file, or one line that says what cannot be promised."""

import pytest

import peppermill as pm

ARGUMENTS = ("abstain", "python:my_models:resnet", "npz:test.npz", "--weights", "resnet.safetensors")


def test_the_rule_is_that_of_the_library(done, network, data):
    pep = pm.fit(network, data("validation"), size=3, temperature=True)
    pep.save("pep.json")
    written = done(*ARGUMENTS, "--pep", "pep.json", "--risk", 0.4)
    expected = pm.abstain(pep, data("test"), risk=0.4)
    found = pm.load_abstention("rule.json", pm.load("pep.json", network))
    assert (found.threshold, found.coverage) == (pytest.approx(expected.threshold, rel=1e-5), expected.coverage)
    assert 0 < found.coverage < 1
    assert written == (
        f"wrote rule.json: keep predictions with a confidence above {expected.threshold:.4g}, "
        f"{100 * expected.coverage:.4g} % of these items; at most 40 % of such are wrong, with 95 % confidence\n"
    )


def test_what_cannot_be_promised_is_one_line_and_no_file(peppermill, folder):
    found = peppermill(*ARGUMENTS, "--risk", 0.001)
    assert found.exit_code == 1
    assert found.stderr.count("\n") == 1
    assert "no threshold keeps the error rate below 0.001" in found.stderr
    assert "the smallest risk that can be promised is 0." in found.stderr
    assert not (folder / "rule.json").exists()


@pytest.mark.parametrize("risk", [0, 1, -0.1])
def test_a_risk_that_is_none_is_refused(peppermill, folder, risk):
    found = peppermill(*ARGUMENTS, "--risk", risk)
    assert found.exit_code == 2
    assert f"`risk={float(risk)}` must lie between 0 and 1" in found.stderr
