"""The table of methods as text."""

import copy

import pytest

from peppermill.evaluation.scores import p_text, signed
from peppermill.evaluation.sweep import sweep_table
from peppermill.report.run import caption, run_table


def method(name, nll, ece, difference=None, fitted=None, passes=1):
    estimate = lambda value: {"value": value, "lower": value - 0.01, "upper": value + 0.01}  # noqa: E731
    return {
        "name": name,
        "scores": {"estimates": {"nll": estimate(nll), "ece": estimate(ece)}, "items": 5000, "bins": 20, "level": 0.95},
        "comparison": difference and {"differences": difference},
        "fitted": fitted or {},
        "forward_passes": passes,
    }


@pytest.fixture
def content():
    better = {
        "nll": {"value": -0.0479, "p_value": 0.0004, "test": "paired t"},
        "ece": {"value": 0.0125, "p_value": 0.0412, "test": "bootstrap"},
    }
    methods = [method("network", 0.3977, 0.0598), method("PEP", 0.3498, 0.0723, better, {"sigma": 0.018392}, 10)]
    return {"title": "a run", "methods": methods}


def test_scores_that_are_shares_are_in_percent_and_bins_are_said(content):
    found = run_table(content)
    assert found.columns == ["method", "NLL", "ECE % (20 bins)"]
    assert found.rows[0] == ["network\n1 forward pass", "0.3977\n[0.3877, 0.4077]", "5.98\n[4.98, 6.98]"]
    assert found.rows[1][0] == "PEP\nσ = 0.0184\n10 forward passes"


@pytest.mark.parametrize(
    ("score", "value", "text"),
    [
        ("nll", -0.01, "−0.0100"),
        ("nll", 0.0, "+0.0000"),
        ("nll", -4e-5, "+0.0000"),  # no sign of a number that is shown as zero
        ("ece", -6e-5, "−0.01"),  # in percent
        ("ece", -4e-5, "+0.00"),
        ("nll", float("inf"), "–"),
        ("nll", None, "–"),
    ],
)
def test_a_difference_that_rounds_to_zero_or_is_unknown_has_no_minus(score, value, text):
    assert signed(score, value) == text


def test_differences_carry_their_sign_and_p_value(content):
    row = run_table(content).rows[1]
    assert row[1] == "0.3498\n[0.3398, 0.3598]\n−0.0479, p < 0.001"
    assert row[2] == "7.23\n[6.23, 8.23]\n+1.25, p = 0.041"


@pytest.mark.parametrize(
    ("p_value", "text"),
    [
        (0, "p < 0.001"),
        (0.00099, "p < 0.001"),
        (0.001, "p = 0.001"),
        (0.0994, "p = 0.099"),
        (0.1, "p = 0.10"),
        (1, "p = 1.00"),
    ],
)
def test_p_values_as_people_write_them(p_value, text):
    assert p_text(p_value) == text


def test_the_caption_says_which_test_each_score_had(content):
    assert caption(content) == (
        "5,000 test items; in brackets 95 % bootstrap intervals; below them the paired difference from the network, "
        "with its p-value (paired t for NLL; bootstrap for ECE)."
    )


def test_the_caption_mentions_the_correction_where_there_is_one(content):
    content["methods"].append(copy.deepcopy(content["methods"][1]))
    assert caption(content).endswith("(paired t for NLL; bootstrap for ECE; Holm-corrected).")


def test_the_caption_of_one_method_speaks_of_no_difference(content):
    del content["methods"][1]
    assert caption(content) == "5,000 test items; in brackets 95 % bootstrap intervals."


def test_a_point_of_a_sweep_by_hand():
    point = {
        "sigma": 0.01,
        "log_likelihood": -0.35,
        "member_log_likelihoods": [-0.4, -0.5],
        "temperature": 1.25,
        "tempered_log_likelihood": -0.3,
        "brier": 0.15,
        "ece": 0.0265,
        "error": 0.102,
    }
    broken = point | {"log_likelihood": None, "member_log_likelihoods": [None, -0.5], "brier": None, "sigma": 1.0}
    found = sweep_table([point, broken], 9, bins=5)
    columns = [
        "sigma",
        "L(sigma)/N",
        "members' average",
        "best T",
        "L(sigma, T)/N",
        "Brier",
        "ECE % (5 bins)",
        "error %",
    ]
    assert found.columns == [*columns, ""]
    first = ["0.01", "-0.3500", "-0.4500", "1.2500", "-0.3000", "0.1500", "2.65", "10.20", "<- best"]
    second = ["1", "not finite", "not finite", "1.2500", "-0.3000", "not finite", "2.65", "10.20", ""]
    assert found.rows == [first, second]
