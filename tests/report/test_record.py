"""Several predictors on the same data, recorded as a run."""

import re
from dataclasses import asdict

import networks
import pytest
import torch
from torch import nn

import peppermill as pm
from peppermill.recipe import fingerprint
from peppermill.report.record import GRID, fitted, forward_passes


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    network = nn.Linear(5, 3).eval()
    with torch.no_grad():
        network.weight.mul_(5)
    data = torch.randn(60, 5), torch.randint(3, (60,))
    return network, data, pm.fit(network, data, size=4), pm.fit(network, data, size=4, temperature=True)


@pytest.fixture(scope="module")
def run(trained):
    network, data, pep, both = trained
    with pytest.warns(pm.PepWarning, match="say next to nothing"):  # the labels are random
        scaled = pm.fit_temperature(network, data)
    predictors = {"network": network, "scaled": scaled, "both": both, "PEP": pep}
    return pm.record_run(predictors, data, title="a run", class_names="abc", settings={"data": "random"}, bins=7)


def test_every_method_has_the_scores_that_evaluate_gives(trained, run):
    network, data, pep, both = trained
    assert [method.name for method in run.methods] == ["network", "scaled", "both", "PEP"]
    assert run.methods[0].scores == pm.evaluate(network, data, bins=7)
    assert run.methods[3].scores == pm.evaluate(pep, data, bins=7)
    assert run.methods[2].scores.nll == pm.evaluate(both, data, bins=7).nll
    assert run.methods[0].comparison is None
    assert run.methods[3].comparison.nll.value == pytest.approx(
        run.methods[3].scores.nll.value - run.methods[0].scores.nll.value
    )


def test_what_was_fitted_and_what_it_costs(trained, run):
    _, _, pep, both = trained
    assert pep.sigma > 0
    assert [method.fitted for method in run.methods] == [
        {},
        {"temperature": pytest.approx(run.methods[1].fitted["temperature"])},
        {"sigma": both.sigma, "temperature": both.temperature},
        {"sigma": pep.sigma},
    ]
    assert [method.forward_passes for method in run.methods] == [1, 1, 4 if both.sigma else 1, 4]


def test_members_shown_are_those_of_the_ensemble_without_temperature(trained, run):
    _, data, pep, _ = trained
    assert run.effects.method == "PEP"
    assert run.effects.helped == pm.helped_and_hurt(pep, data).helped


def test_the_weights_and_the_recipes_are_on_record(trained, run):
    network, _, pep, _ = trained
    assert run.provenance["fingerprint"] == asdict(fingerprint(network))
    assert run.settings["data"] == "random"
    assert (run.settings["PEP"]["sigma"], run.settings["PEP"]["validation items"]) == (pep.sigma, 60)
    assert run.class_names == ("a", "b", "c")


@pytest.mark.filterwarnings("ignore:the best temperature is")  # the labels are random
def test_the_race_is_kept_and_its_choice_compared_with_the_best_of_another_cost(trained):
    network, data, pep, _ = trained
    choice = pm.calibrate(network, data, passes=1)
    run = pm.record_run({"network": network, "PEP": pep, "choice": choice}, data, title="a race")
    assert run.race["method"] == "choice"
    assert run.race["candidates"] == choice.race.candidates
    assert (run.rival["method"], run.rival["rival"]) == ("choice", "PEP")
    assert run.rival["nll"] == pm.compare(pep, choice, data).nll


def test_a_wrapper_costs_what_it_wraps(trained):
    _, data, pep, _ = trained

    class Wrapper:
        predictor = pep

    assert forward_passes(Wrapper()) == 4
    assert forward_passes(pm.TestTimeAugmentation(torch.nn.Linear(2, 2).eval())) == 2
    assert forward_passes(pm.McDropout(torch.nn.Dropout(), 7)) == 7
    assert forward_passes(pm.fit_temperature(lambda x: x[:, :3], data)) == 1
    assert fitted(pm.fit_temperature(pep, data))["sigma"] == pep.sigma


def test_the_sweep_around_an_ensemble_is_that_of_its_own_members(trained):
    """At sigma* its L is what the search had paid for, and at 0 the network's own."""
    _, data, pep, _ = trained
    swept = pm.sweep_around(pep, data)
    at = {point.sigma: point.log_likelihood for point in swept.points}
    assert len(at) == len(GRID) + 1
    assert at[pep.sigma] == pytest.approx(pep.search.best.log_likelihood / 60, rel=1e-6)
    assert at[0.0] == pytest.approx(pep.search.baseline.log_likelihood / 60, rel=1e-6)


def test_a_regression_is_recorded_without_classes():
    torch.manual_seed(0)
    network = nn.Linear(4, 2).eval()
    with torch.no_grad():
        network.bias[1] = -3.0  # a variance far too small
    data = torch.randn(40, 4), torch.randn(40)
    pep = pm.fit(network, data, size=4, likelihood="gaussian")
    run = pm.record_run({"network": network, "PEP": pep}, data, title="a regression", likelihood="gaussian")
    assert set(run.methods[1].scores.estimates) == {"nll", "rmse"}
    assert (run.effects, run.methods[0].reliability) == (None, None)


def test_names_must_fit_the_classes(trained):
    network, data, *_ = trained
    with pytest.raises(ValueError, match=re.escape("`class_names` has 2 names, but the network has 3 classes")):
        pm.record_run({"network": network}, data, title="", class_names=("a", "b"))


def test_nothing_to_record_is_an_error(trained):
    with pytest.raises(ValueError, match="`predictors` is empty: give at least the network"):
        pm.record_run({}, trained[1], title="")


def test_risk_against_coverage_is_kept_with_what_a_rule_does():
    """By hand: the errors of the most confident items, and of those above the threshold."""
    model, validation, test = networks.overfitted()
    rule = pm.abstain(model, validation, risk=0.45)
    run = pm.record_run({"network": model}, test, title="a run", rule=rule)
    labels, kept = rule(test[0])
    wrong = (labels != test[1]).double()
    assert run.abstention["coverage"] == pytest.approx(float(kept.double().mean()))
    assert run.abstention["error"] == pytest.approx(float(wrong[kept].mean()))
    assert run.methods[0].risks[-1] == pytest.approx(float(wrong.mean()))
    _, risk = pm.metrics.risk_coverage_curve(model(test[0]).detach().log_softmax(dim=1), test[1])
    assert run.methods[0].risks[24] == pytest.approx(float(risk[149]))
    with pytest.raises(ValueError, match="`rule` belongs to none of `predictors`"):
        pm.record_run({"network": networks.overfitted(1)[0]}, test, title="a run", rule=rule)
