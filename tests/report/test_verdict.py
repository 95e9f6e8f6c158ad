"""The verdict in a sentence: what it claims must follow from the numbers."""

import pytest

from peppermill.report.verdict import judged, outcome, verdict

NBSP = "\u00a0"


def method(name, nll, ece, error, *, p_values=None, fitted=None, passes=1, first=None):
    scores = {"nll": nll, "ece": ece, "error": error}
    estimates = {key: {"value": value, "lower": value, "upper": value} for key, value in scores.items()}
    before = {"nll": 0.4, "ece": 0.06, "error": 0.1}
    differences = {
        key: {"value": scores[key] - before[key], "p_value": p} for key, p in zip(scores, p_values or (), strict=False)
    }
    return {
        "name": name,
        "scores": {"estimates": estimates, "items": 5000, "bins": 20, "level": 0.95},
        "comparison": {"differences": differences} if p_values else None,
        "fitted": fitted or {},
        "forward_passes": passes,
    }


NETWORK = method("network", 0.4, 0.06, 0.1)


def run(*others):
    return {"title": "a run", "methods": [NETWORK, *others]}


def pep(nll=0.35, ece=0.02, error=0.099, p_values=(1e-5, 0.01, 0.6), **more):
    return method("PEP", nll, ece, error, p_values=p_values, passes=10, **({"fitted": {"sigma": 0.02}} | more))


def test_the_whole_sentence_by_hand():
    found = verdict(run(pep()))
    assert f"{found.claim}: {found.details}".replace(NBSP, " ") == (
        "PEP makes this network more honest: on average its stated confidence is 2.00 % off instead of 6.00 % (ECE; "
        "significant, p = 0.010), its log-loss goes from 0.4000 to 0.3500 (NLL; significant, p < 0.001), it is wrong "
        "on 9.90 % of 5,000 test items instead of 10.00 % (error; could be chance, p = 0.60), and a prediction costs "
        "10 forward passes instead of 1."
    )
    assert [(tile.short, tile.outcome) for tile in found.tiles] == [
        ("ECE", "better"),
        ("NLL", "better"),
        ("error", "unclear"),
        ("passes", "cost"),
    ]
    assert found.tiles[0].change == "−67 %"
    assert found.tiles[3].reason == "10 times the work"


@pytest.mark.parametrize(
    ("nll", "ece", "claim"),
    [
        ((0.35, 1e-5), (0.02, 0.01), "makes this network more honest"),
        ((0.35, 1e-5), (0.02, 0.05), "makes this network's probabilities better"),
        ((0.35, 1e-5), (0.09, 0.01), "makes this network's probabilities better, though not its calibration"),
        ((0.35, 0.2), (0.02, 0.01), "makes this network's confidence more honest"),
        ((0.35, 0.2), (0.02, 0.3), "makes no significant difference here"),
        ((0.35, 0.2), (0.09, 0.01), "makes this network worse"),
        ((0.45, 0.01), (0.02, 0.01), "makes this network worse"),
        ((0.40, 1.0), (0.06, 1.0), "makes no significant difference here"),
    ],
)
def test_the_claim_follows_from_what_is_significant(nll, ece, claim):
    found = verdict(run(pep(nll=nll[0], ece=ece[0], p_values=(nll[1], ece[1], 0.5))))
    assert found.claim == f"PEP {claim}"


@pytest.mark.parametrize(("error", "way"), [(0.08, "better"), (0.13, "worse")])
def test_a_score_that_is_clear_where_the_others_are_not_is_not_called_chance(error, way):
    assert (
        verdict(run(pep(error=error, p_values=(0.2, 0.3, 0.001)))).claim == f"PEP makes this network's mistakes {way}"
    )


@pytest.mark.parametrize(("nll", "change"), [(0.4, "±0 %"), (0.2, "−50 %"), (1.2, "+200 %"), (0.399, "±0 %")])
def test_a_tile_says_by_how_much_of_the_first_value_a_score_changed(nll, change):
    assert verdict(run(pep(nll))).tiles[1].change == change


def test_no_noise_changes_nothing_and_costs_nothing():
    still = pep(nll=0.4, ece=0.06, error=0.1, p_values=(1.0, 1.0, 1.0), fitted={"sigma": 0.0})
    found = verdict(run({**still, "forward_passes": 1}))
    assert found.claim == "PEP leaves this network as it is, because noise does not help it"
    assert found.details.endswith(", at no extra cost.")


def test_the_best_method_with_noise_is_judged_though_another_is_better():
    warm = method("temperature scaling", 0.30, 0.02, 0.1, p_values=(1e-5, 0.01, 1.0), fitted={"temperature": 2.0})
    both = {**pep(nll=0.34, fitted={"sigma": 0.01, "temperature": 1.5}), "name": "both"}
    content = run(warm, pep(), both)
    assert judged(content)["name"] == "both"
    assert verdict(content).note.replace(NBSP, " ") == (
        "Better for less: temperature scaling, at 1 forward pass, reaches NLL 0.3000; both is 0.0400 above it."
    )


def test_a_cheaper_method_is_mentioned_where_it_is_worse():
    warm = method("temperature scaling", 0.38, 0.02, 0.1, p_values=(1e-5, 0.01, 1.0), fitted={"temperature": 2.0})
    assert verdict(run(warm, pep())).note == (
        "The extra passes pay: temperature scaling, at 1 forward pass, reaches NLL 0.3800; PEP is 0.0300 below it."
    )


@pytest.mark.parametrize(
    ("nll", "p_value", "note"),
    [
        (0.34, 1e-5, "The extra passes pay: {rival}; PEP is 0.0400 below it (significant, p < 0.001)."),
        (0.34, 0.3, "The extra passes bought no significant gain: {rival}; PEP is 0.0400 below it (could"),
        (0.40, 0.3, "The extra passes bought no significant gain: {rival}; PEP is 0.0200 above it (could"),
        (0.40, 0.01, "Better for less: {rival}; PEP is 0.0200 above it (significant, p = 0.010)."),
    ],
)
def test_what_the_extra_passes_bought_is_tested(nll, p_value, note):
    warm = method("vector scaling", 0.38, 0.02, 0.1, p_values=(1e-5, 0.01, 1.0), fitted={"temperature": 2.0})
    pair = {"method": "PEP", "rival": "vector scaling", "nll": {"value": nll - 0.38, "p_value": p_value}}
    found = verdict({**run(warm, pep(nll)), "rival": pair}).note.replace(NBSP, " ")
    assert found.startswith(note.format(rival="vector scaling, at 1 forward pass, reaches NLL 0.3800"))


def race(choice="vector scaling", method="vector scaling"):
    rows = [("10 members, vector scaling", 10, 0.379), ("vector scaling", 1, 0.38), ("network", 1, 0.4)]
    candidates = [
        {"name": name, "passes": passes, "nll": nll, "difference": nll - 0.38, "error": 0.002,
         "verdict": "chosen" if name == choice else "worse"}
        for name, passes, nll in rows
    ]  # fmt: skip
    return {"method": method, "items": 700, "note": "", "candidates": candidates}


@pytest.mark.parametrize(
    ("nll", "p_value", "note"),
    [
        (0.39, 0.01, "No extra pass pays: PEP, at 10 forward passes, reaches NLL 0.3900; vector scaling is 0.0100 bel"),
        (0.37, 0.30, "No extra pass pays: PEP, at 10 forward passes, reaches NLL 0.3700; vector scaling is 0.0100 abo"),
        (0.37, 0.01, "More passes pay here: PEP, at 10 forward passes, reaches NLL 0.3700; vector scaling is 0.0100 a"),
    ],
)
def test_the_choice_of_a_race_is_judged_though_it_adds_no_noise(nll, p_value, note):
    warm = method("vector scaling", 0.38, 0.02, 0.1, p_values=(1e-5, 0.01, 1.0), fitted={"temperature": 2.0})
    pair = {"method": "vector scaling", "rival": "PEP", "nll": {"value": 0.38 - nll, "p_value": p_value}}
    content = {**run(warm, pep(nll)), "race": race(), "rival": pair}
    assert verdict(content).claim == "vector scaling makes this network more honest"
    assert verdict(content).note.startswith(note)


def test_a_choice_without_a_rival_in_the_run_is_compared_on_the_validation_data():
    warm = method("vector scaling", 0.38, 0.02, 0.1, p_values=(1e-5, 0.01, 1.0), fitted={"temperature": 2.0})
    assert verdict({**run(warm), "race": race()}).note == (
        "No extra pass pays: on the 700 validation items the best candidate with more passes, 10 members, vector "
        "scaling, changes the NLL by −0.0010 ± 0.0020."
    )


def test_a_race_that_chooses_the_network_says_so():
    found = verdict({**run(), "race": race("network", "network")})
    assert found.claim == "This network needs no calibration"
    assert "calibration error 6.00 % (ECE)" in found.details.replace(NBSP, " ")


def test_without_noise_the_best_of_the_others_is_judged():
    warm = method("temperature scaling", 0.38, 0.02, 0.1, p_values=(1e-5, 0.01, 1.0), fitted={"temperature": 2.0})
    found = verdict(run(warm))
    assert found.claim == "temperature scaling makes this network more honest"
    assert found.note == ""


def test_one_method_alone_is_not_judged():
    found = verdict(run())
    assert found.claim == "Only the network was measured"
    assert "calibration error 6.00 % (ECE)" in found.details.replace(NBSP, " ")
    assert "--pep pep.json" in found.note


def test_a_sweep_alone_is_no_test():
    points = [
        {"sigma": 0.0, "log_likelihood": -0.4, "ece": 0.06},
        {"sigma": 0.02, "log_likelihood": -0.35, "ece": 0.02},
        {"sigma": 0.04, "log_likelihood": None, "ece": 0.02},
    ]
    found = verdict({"methods": [], "sweep": {"points": points, "items": 700}})
    assert found.claim == "Noise of σ = 0.02 helps this network most"
    assert found.details.replace(NBSP, " ") == (
        "its log-loss goes from 0.4000 to 0.3500 (NLL) and its stated confidence is 2.00 % off instead of 6.00 % (ECE) "
        "on the 700 items of the sweep; σ was chosen on these very items, so this is not a test."
    )
    assert verdict({"methods": [], "sweep": None}).claim == "Nothing was measured in this run"


def test_a_number_that_is_missing_is_a_dash_and_no_claim():
    broken = pep(p_values=(1e-5, 0.01, 0.5))
    broken["scores"]["estimates"]["nll"]["value"] = None
    broken["comparison"]["differences"]["nll"] = {"value": None, "p_value": None}
    found = verdict(run(broken))
    assert found.claim == "PEP makes this network's confidence more honest"
    assert "its log-loss goes from 0.4000 to – (NLL; could be chance, p unknown)" in found.details


def test_the_level_of_significance_is_that_of_the_intervals():
    difference = {"value": -0.1, "p_value": 0.03}
    assert outcome("nll", difference, 0.95) == "better"
    assert outcome("nll", difference, 0.99) == "unclear"
    assert outcome("nll", {"value": 0.1, "p_value": 0.03}, 0.95) == "worse"
