"""The texts of the page and the numbers behind its figures, from the content of a run whose every number is known."""

import re

import pytest

from peppermill.report.page import article, compared, environment, payload
from peppermill.report.verdict import judged

from .test_page import Reader, squeezed

LEVEL = 0.9
TEMPLATES = environment()


def method(name, value, difference=None, temperature=None):
    """One score with an interval of 0.1 on either side; `difference` is from the first method."""
    told = {"value": difference, "lower": -0.3, "upper": 0.1, "p_value": 0.2, "permutation_p_value": None, "test": "t"}
    return {
        "name": name,
        "scores": {
            "estimates": {"nll": {"value": value, "lower": value - 0.1, "upper": value + 0.1}},
            "items": 1200,
            "bins": 15,
            "level": LEVEL,
        },
        "comparison": {"differences": {"nll": told}} if difference is not None else None,
        "fitted": {} if temperature is None else {"sigma": 0.1, "temperature": temperature},
        "forward_passes": 1,
        "reliability": None,
    }


def effects(gains, temperature=1.0):
    """Classes that gain so much in log-likelihood, of two items each."""
    classes = {"items": [2] * len(gains), "network": [1.0] * len(gains), "ensemble": [1.0 - gain for gain in gains]}
    counts = {"items": 2 * len(gains), "gained": 3, "lost": 4, "corrected": 1, "spoiled": 2}
    return {"helped": [], "hurt": [], "classes": classes, "method": "PEP", "temperature": temperature, **counts}


def content(*methods, **panels):
    return {"title": "a run", "methods": list(methods), "settings": {}, "provenance": {}, **panels}


def shown(content):
    return Reader(article(TEMPLATES, content, payload(content)))


def whiskers(found):
    """Where each interval of the table begins, how wide it is, and where its value lies, in percent."""
    styles = [attrs["style"] for tag, attrs in found.elements if tag in ("i", "b") and "style" in attrs]
    numbers = [[float(part) for part in re.findall(r":([\d.]+)%", style)] for style in styles]
    return [tuple(bar + mark) for bar, mark in zip(numbers[::2], numbers[1::2], strict=True)]


@pytest.mark.parametrize("others", [1, 2])
def test_the_table_says_what_its_intervals_and_tests_are(others):
    """Several methods beside the first are several tests, which are corrected for."""
    methods = [method("network", 1.0), *(method(f"other {k}", 0.8, -0.2) for k in range(others))]
    text = squeezed(shown(content(*methods)).text)
    assert "1,200 test items. In brackets 90 % bootstrap intervals; below them the paired difference from the" in text
    assert "from the network on the same items" in text
    assert ("corrected for the number of methods (Holm)" in text) is (others == 2)


def test_intervals_lie_on_the_scale_of_their_column():
    """From 0.7, the lower end of the second, to 1.1, the upper end of the first: 1.0 is at three quarters."""
    found = shown(content(method("network", 1.0), method("PEP", 0.8, -0.2)))
    assert whiskers(found) == [pytest.approx((50, 50, 75)), pytest.approx((0, 50, 25))]
    assert "0.8000[0.7000, 0.9000] −0.2000[−0.3000, +0.1000]p\u00a0=\u00a00.20" in re.sub(r"[ \n]+", " ", found.text)


def test_one_value_has_no_scale():
    alone = method("network", 1.0)
    alone["scores"]["estimates"]["nll"] = {"value": 1.0, "lower": 1.0, "upper": 1.0}
    assert whiskers(shown(content(alone))) == [(0, 0, 0)]


@pytest.mark.parametrize(("temperature", "tempered"), [(1.0, False), (1.3, True)])
def test_effects_say_whether_a_temperature_is_in_them(temperature, tempered):
    text = squeezed(shown(content(method("network", 1.0), effects=effects([0.1, -0.2], temperature))).text)
    assert ("The ensemble’s mark includes its temperature" in text) is tempered
    assert "1 mistake is corrected and 2 new ones are made." in text


@pytest.mark.parametrize(
    ("count", "shown"),
    [(3, [0, 1, 2]), (16, [*range(16)]), (17, [*range(8), *range(9, 17)]), (40, [*range(8), *range(32, 40)])],
)
def test_of_many_classes_the_eight_most_helped_and_the_eight_most_hurt_are_drawn(count, shown):
    """Class 0 gains most, and each gains less than the one before it."""
    found = payload(content(method("network", 1.0), effects=effects([1 - k / count for k in range(count)])))["classes"]
    assert found["names"] == [f"class {k}" for k in shown]
    assert found["items"] == [2] * len(shown)


@pytest.mark.parametrize(("gains", "why"), [([1.0, -0.2], True), ([0.1, -0.2], False)])
def test_a_gain_of_few_items_that_outweighs_the_loss_of_many_is_explained(gains, why):
    text = squeezed(shown(content(method("network", 1.0), effects=effects(gains))).text)
    assert ("loses for 4 (being less sure costs a little where the network was right" in text) is why
    assert ("loses for 4;" in text) is not why


@pytest.mark.parametrize(
    ("before", "after", "said", "kind"),
    [
        (1, 2, "dog → ship", "mistake corrected"),
        (2, 1, "ship → dog", "mistake made"),
        (2, 2, "still ship", "right before and after"),
        (0, 1, "cat → dog", "wrong before and after"),
        (1, 1, "still dog", "wrong before and after"),
    ],
)
def test_a_card_says_what_became_of_its_item(before, after, said, kind):
    one = {"item": 7, "label": 2, "before": before, "after": after, "network": 0.25, "ensemble": 0.5, "members": [0.5]}
    changed = effects([0.1]) | {"helped": [one]}
    named = content(method("network", 1.0), effects=changed, class_names=["cat", "dog", "ship"])
    assert f"Most helped ship {said} {kind} 25.0 % → 50.0 % By class" in squeezed(shown(named).text)


def test_runs_are_compared_by_the_method_that_their_verdicts_are_about():
    """Of two methods with noise that of the smaller NLL, against the first."""
    methods = [method("network", 1.0), method("PEP", 0.8, -0.2, 1.0), method("PEP with T", 0.7, -0.3, 1.3)]
    assert judged(content(*methods))["name"] == "PEP with T"
    row, empty = compared(content(*methods)), compared(content())
    assert (row["method"], row["sigma"]) == ("PEP with T", 0.1)
    assert (row["scores"]["nll"]["before"], row["scores"]["nll"]["after"]) == (1.0, 0.7)
    assert (empty["method"], empty["scores"]) == (None, {})


def test_the_slider_s_texts_say_which_way_each_score_went():
    def point(sigma, log_likelihood, ece):
        table = {name: [0.0] for name in ("lower", "upper", "count", "confidence", "accuracy")}
        scores = {"ece": ece, "error": 0.1, "brier": 0.2, "reliability": table, "temperature": 1.5}
        own = {"member_log_likelihoods": [-1.0, -3.0], "tempered_log_likelihood": -0.25}
        return {"sigma": sigma, "log_likelihood": log_likelihood, **scores, **own}

    swept = {"points": [point(0.0, -0.5, 0.04), point(0.1, -0.4, 0.05), point(0.2, None, 0.04)], "items": 9, "bins": 1}
    drawn = payload(content(sweep=swept))["sweep"]
    assert (drawn["star"], drawn["nearest"], drawn["ensemble"]) == (0.1, 1, [-0.5, -0.4, None])
    assert (drawn["mean"], drawn["members"]) == ([-2.0] * 3, [[-1.0] * 3, [-3.0] * 3])
    tuned = method("PEP", 0.8, -0.2) | {"fitted": {"sigma": 0.17}}
    assert payload(content(method("network", 1.0), tuned, sweep=swept))["sweep"]["star"] == 0.17
    network, noisy, broken = drawn["texts"]
    assert set(network["ways"].values()) == {0}
    assert noisy["ways"] == {"nll": -1, "ece": 1, "error": 0, "brier": 0}
    assert (noisy["changes"]["nll"], noisy["changes"]["ece"]) == ("−0.1000", "+1.00")
    assert (broken["values"]["nll"], broken["ways"]["nll"], broken["changes"]["nll"]) == ("–", 0, "–")
    assert "T\u00a0=\u00a01.5, with NLL 0.2500" in noisy["tempered"]
