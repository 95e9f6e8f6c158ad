"""Several processes find what one finds, and end together: with two and three real processes."""

import json
import math
import random
import re
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peppermill.held import Held
from peppermill.parts import run_of_batches
from peppermill.processes.results import own_total
from team import Team, alone

import peppermill as pm

BOTH = pytest.mark.parametrize("processes", [2, 3])


@pytest.fixture(scope="module")
def team():
    started = Team()
    yield started
    started.close()


def numbers(value):
    """All numbers in lists within lists and JSON texts, in order."""
    if isinstance(value, str) and value.startswith(("{", "[")):
        value = json.loads(value)
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [number for part in value for number in numbers(part)]
    return [value] if isinstance(value, (int, float)) else []


def assert_same(answers, expected):
    """On every process, to 1e-9; and there is something to compare."""
    assert [(answer.error, answer.text) for answer in answers] == [("", "")] * len(answers)
    assert len(numbers(expected)) > 1
    for answer in answers:
        assert numbers(answer.found) == pytest.approx(numbers(expected), rel=1e-9, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize(
    ("form", "batch_size", "kept_bytes", "processes"),
    [
        ("pair", 7, None, 2),
        ("pair", 7, 400, 3),
        ("arrays", 500, None, 2),
        ("dataset", 30, None, 3),
        ("map", 1, None, 3),
        ("loader", 16, None, 3),
        ("loader", 9, 400, 2),
        ("stream", 16, None, 2),
        ("stream", 9, 400, 3),
        ("list", 16, None, 3),
        ("unequal list", 16, None, 2),
        ("iterable", 16, 1, 3),
    ],
)
def test_everything_is_what_one_process_finds(team, form, batch_size, kept_bytes, processes):
    """sigma*, every L(sigma), predictions in the order of the data, scores and sweep, on every process."""
    expected = alone("everything", form, batch_size, kept_bytes)
    answers = team.do("everything", form, batch_size, kept_bytes, processes=processes)
    assert_same(answers, expected.found)
    assert all(answer.found["sigma"] == expected.found["sigma"] > 0 for answer in answers)
    assert all(answer.found["labels"] == expected.found["labels"] for answer in answers)


@BOTH
@pytest.mark.parametrize(("items", "batch_size", "temperature"), [(1600, 64, False), (900, 32, True), (640, 400, True)])
def test_the_quick_search_takes_the_same_sample_whoever_holds_its_items(
    team, items, batch_size, temperature, processes
):
    """The last one has fewer batches than three processes."""
    expected = alone("quick", items, batch_size, temperature).found
    answers = team.do("quick", items, batch_size, temperature, processes=processes)
    assert_same(answers, expected)
    assert expected["passes"] % 1 > 0, "no sample was taken"
    assert {answer.found["sigma"] for answer in answers} == {expected["sigma"]}


@BOTH
def test_sigma_and_temperature_are_tuned_together_to_the_last_byte_of_the_saved_file(team, processes):
    """16 items of 3 classes fill the processor's vectors, so that no number is computed in another way."""
    expected = alone("everything", "pair", 16, temperature=True).found
    answers = team.do("everything", "pair", 16, temperature=True, processes=processes)
    assert_same(answers, expected)
    assert {answer.found["saved"] for answer in answers} == {expected["saved"]}
    assert expected["temperature"] != 1


@BOTH
def test_nobody_reads_anothers_items_but_three_that_all_compare(team, processes):
    found = [set(answer.found) for answer in team.do("reads", 4, processes=processes)]
    everybodys = {0, 20, 39}
    assert set().union(*found) == set(range(40))
    for k, one in enumerate(found):
        assert all(one & other <= everybodys for other in found[:k])


@pytest.mark.parametrize("kept_bytes", [None, 100])
def test_what_is_kept_is_read_once_for_a_fit(team, kept_bytes):
    """In memory or on disk: twice for the head of the part, which is compared, once for the fit, three items by all."""
    for answer in team.do("reads", 4, kept_bytes):
        assert max(answer.found.count(index) for index in range(40)) <= 4


@pytest.mark.parametrize(
    ("count", "batch_size", "bad", "options", "processes"),
    [
        (40, 8, [], {}, 2),
        (41, 7, [], {"kept_bytes": 100}, 3),  # as bytes, on disk
        (41, 7, [0, 1, 20], {}, 2),  # what is left out moves the others to other batches
        (41, 7, [3, 40], {"kept_bytes": 100}, 3),
        (24, 8, list(range(8)), {}, 3),  # the first process can read nothing
        (24, 4, list(range(17, 24)), {"named": True}, 3),
        (30, 500, [2], {}, 3),  # one batch
        (2, 1, [], {}, 3),  # fewer pictures than processes
        (5, 2, [0], {"named": True}, 3),
    ],
)
def test_each_picture_is_decoded_by_one_process_and_all_find_what_one_finds(
    team, count, batch_size, bad, options, processes
):
    expected = alone("pictures", count, batch_size, bad, **options)
    assert sorted(expected.found["decoded"]) == list(range(count))
    answers = team.do("pictures", count, batch_size, bad, **options, processes=processes)
    assert [(answer.error, answer.text) for answer in answers] == [("", "")] * processes
    assert sorted(row for answer in answers for row in answer.found["decoded"]) == list(range(count))
    for answer in answers:
        assert numbers(answer.found["result"]) == pytest.approx(numbers(expected.found["result"]), rel=1e-9, abs=1e-12)
        assert answer.found["result"]["sigma"] == expected.found["result"]["sigma"]
        assert answer.found["result"]["labels"] == expected.found["result"]["labels"]
    about = [text for text in answers[0].warnings if "cannot be read" in text]
    assert about == [text for text in expected.warnings if "cannot be read" in text]
    assert len(about) == bool(bad)


def test_data_that_several_processes_hold_cannot_be_used_by_one():
    held = Held(lambda first, last: {None: torch.zeros(last - first, 6)}, [4, 4], torch.zeros(8), batch_size=2)
    with pytest.raises(ValueError, match="each process holds a part of these data: all must use them, together"):
        list(held)


@pytest.mark.parametrize(("bad", "skip_bad"), [([1, 39], False), (list(range(40)), True)])
def test_pictures_that_cannot_be_read_are_counted_over_all_processes(team, bad, skip_bad):
    named = ", ".join(f"{row}.png (damaged)" for row in bad[:3])
    more = " and 37 more" if len(bad) > 3 else ""
    for answer in team.do("pictures", 40, 8, bad, skip_bad=skip_bad, processes=3):
        assert answer.error == "ValueError"
        assert answer.text.startswith(f"imagefolder:x: {len(bad)} of 40 items cannot be read: {named}{more}. Repair")


def test_the_loader_of_a_part_reads_as_the_users_does(team):
    assert [answer.found for answer in team.do("loader_options")] == [[2, 3, 5, True, 2], [2, 3, 5, True, 3]]


@pytest.mark.parametrize(("count", "batch_size"), [(1, 500), (2, 1), (5, 2), (300, 500)])
def test_fewer_batches_than_processes_leave_some_without(team, count, batch_size):
    assert_same(team.do("sigma_of", count, batch_size, processes=3), alone("sigma_of", count, batch_size).found)


@pytest.mark.parametrize("ignored", ["first part", "last part"])
@BOTH
def test_a_process_whose_items_are_all_ignored_adds_nothing(team, ignored, processes):
    assert_same(team.do("pixels", ignored, processes=processes), alone("pixels", ignored).found)


@pytest.mark.parametrize("what", ["fit", "predict", "sweep"])
def test_all_items_ignored_is_an_error_for_all(team, what):
    for answer in team.do("no_item_counts", what):
        assert "has no item that counts: every label is the ignored one" in answer.text
        assert answer.error == "ValueError"


@pytest.mark.parametrize("name", ["gaussian", "bernoulli"])
def test_other_likelihoods_are_shared_too(team, name):
    expected = alone("likelihoods", name).found
    answers = team.do("likelihoods", name, processes=3)
    assert_same(answers, expected)
    assert {answer.found[-1] for answer in answers} == {expected[-1]}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA GPU")
def test_processes_can_share_a_gpu(team):
    assert_same(team.do("on_gpu"), alone("on_gpu").found)


@pytest.mark.parametrize("job", ["dropout", "recorded", "local", "probed"])
def test_what_depends_on_batches_pictures_or_all_the_data_is_the_same(team, job):
    expected = alone(job).found
    answers = team.do(job, processes=3)
    assert_same(answers, expected)
    if job == "recorded":
        assert {answer.found for answer in answers} == {expected}


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("weights", r"not given the same weights: process 0 has those with digest \w+, process 2 has"),
        ("seed", r"not given the same `noise`: .*seed=0.*process 2 has .*seed=1"),
        ("parameters", r"not given the same `parameters`: process 0 has 0.weight, 2.weight, process 2 has 2.weight\."),
        ("length", r"not given the same number of items in `validation`: process 0 has 40, process 2 has 38\."),
        ("order", r"not given the same items in `validation`"),
        ("function", r"not given the same `parameters`: .*process 2 has none"),
    ],
)
def test_processes_with_different_jobs_are_told_what_differs(team, what, message):
    for answer in team.do("odd_one_out", what, processes=3):
        assert answer.error == "ValueError"
        assert re.search(message, answer.text), answer.text


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("labels", "labels run from 0 to 7, but the network has 3 classes"),
        ("training", "in training mode: call `model.eval()` first"),
        ("argument", "`size=0`"),
    ],
)
@BOTH
def test_a_failure_of_one_process_ends_all(team, what, message, processes):
    *others, odd = team.do("odd_one_out", what, processes=processes)
    assert odd.error == "ValueError"
    assert message in odd.text
    for answer in others:
        assert answer.error == "ProcessError"
        assert answer.text == f"process {processes - 1} of {processes} failed. ValueError: {odd.text}"


def test_a_process_that_does_not_take_part_is_missed(team):
    first, second, odd = team.do("odd_one_out", "alone", processes=3)
    assert odd.error == ""
    for answer in (first, second):
        assert answer.error == "ProcessError"
        assert answer.text.startswith("process 2 of 3 was lost, or ended before the others did.")


def test_after_a_failure_the_processes_can_go_on(team):
    expected = alone("sigma_of", 40, 8).found
    answers = team.do("after_a_failure", processes=3)
    assert [answer.found[0] for answer in answers] == ["ProcessError", "ProcessError", "ValueError"]
    assert all(numbers(answer.found[1:]) == pytest.approx(numbers(expected)) for answer in answers)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("sampler", "`validation` has a DistributedSampler"),
        ("shuffled", "`validation` changes between two passes"),
        ("generator", "`validation` changes between two passes"),
        ("nothing", "`validation` has no items"),
        ("wrapped", "give the network in it, `model.module`"),
    ],
)
def test_what_cannot_be_shared_is_refused(team, what, message):
    for answer in team.do("refused", what):
        assert answer.error == "ValueError"
        assert message in answer.text


@pytest.mark.parametrize("what", ["search", "all", "last"])
def test_the_first_process_gives_the_warnings_of_all_once(team, what):
    expected = alone("warned", what).warnings
    first, *others = team.do("warned", what, processes=3)
    assert first.error == ""
    assert first.warnings == list(dict.fromkeys(expected)) != []
    assert [answer.warnings for answer in others] == [[], []]


@BOTH
def test_the_first_process_alone_shows_how_far_it_is(team, processes):
    first, *others = team.do("shown", processes=processes)
    assert "fitting sigma" in first.found
    assert [answer.found for answer in others] == [""] * (processes - 1)


def test_one_process_can_work_alone(team):
    first, other = team.do("first_alone")
    assert_same([first], alone("sigma_of", 40, 8).found)
    assert other.found is None


def test_sums_do_not_depend_on_how_the_numbers_are_parted(team):
    """The sum is the exact one, correctly rounded, of numbers that differ by thirty orders of magnitude."""
    generator = random.Random(0)
    values = [generator.gauss(0, 1) * 10.0 ** generator.randint(-15, 15) for _ in range(5000)]
    exact = float(sum(map(Fraction, values)))
    assert own_total(torch.tensor(values, dtype=torch.float64)) == exact
    for parts in ([values[:1700], values[1700:]], [values[:3], [], values[3:]]):
        found = team.do("sums", parts, processes=len(parts))
        assert [answer.found for answer in found] == [exact] * len(parts)


@pytest.mark.parametrize(
    ("values", "expected"), [([], 0.0), ([1.0, -math.inf], -math.inf), ([math.inf, -math.inf], math.nan)]
)
def test_sums_of_nothing_and_of_infinities(values, expected):
    assert own_total(torch.tensor(values)) == pytest.approx(expected, nan_ok=True)


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 9))
def test_parts_are_the_data_in_their_order_and_even_but_for_one_batch(sizes, processes):
    runs = [run_of_batches(sizes, process, processes) for process in range(processes)]
    assert [k for first, last in runs for k in range(first, last)] == list(range(len(sizes)))
    for first, last in runs:
        assert sum(sizes[first:last]) <= sum(sizes) / processes + max(sizes, default=0)


def test_started_processes_without_a_group_are_mentioned(monkeypatch, mlp, data):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.warns(pm.PepWarning, match=r"each does the whole job: call `torch.distributed.init_process_group"):
        whole = pm.predict(mlp, data)
    assert len(whole.labels) == 20
    with pm.alone():
        pm.predict(mlp, data)
    monkeypatch.setenv("RANK", "1")
    pm.predict(mlp, data)


def test_when_a_process_is_killed_the_others_end(team):
    """In the middle of a fit, by a signal that it cannot catch; nobody ends the others from outside."""
    for answer in team.do("dies", processes=3, answers=2):
        assert answer.error == "ProcessError"
        assert answer.text.startswith("process 2 of 3 was lost, or ended before the others did.")
