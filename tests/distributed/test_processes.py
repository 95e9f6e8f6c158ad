"""Several processes find what one finds: with two and three real processes."""

import json
import re

import pytest
import torch
from team import Team, alone

pytestmark = pytest.mark.slow

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


def assert_same(answers, expected, rel=1e-9):
    """On every process, to 1e-9; and there is something to compare."""
    assert [(answer.error, answer.text) for answer in answers] == [("", "")] * len(answers)
    assert len(numbers(expected)) > 1
    for answer in answers:
        assert numbers(answer.found) == pytest.approx(numbers(expected), rel=rel, abs=rel / 1000, nan_ok=True)


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
@pytest.mark.parametrize(("items", "batch_size", "temperature"), [(1600, 64, False), (640, 400, True)])
def test_the_default_search_takes_the_same_subsample(team, items, batch_size, temperature, processes):
    """The last one has fewer batches than three processes."""
    expected = alone("two_stage", items, batch_size, temperature).found
    answers = team.do("two_stage", items, batch_size, temperature, processes=processes)
    assert_same(answers, expected)
    assert expected["passes"] % 1 > 0, "no subsample was taken"
    assert {answer.found["sigma"] for answer in answers} == {expected["sigma"]}


@BOTH
def test_sigma_and_temperature_are_tuned_together_to_the_last_byte_of_the_saved_file(team, processes):
    """16 items of 3 classes fill the processor's vectors, so that no number is computed in another way."""
    expected = alone("everything", "pair", 16, temperature=True).found
    answers = team.do("everything", "pair", 16, temperature=True, processes=processes)
    assert_same(answers, expected)
    assert {answer.found["saved"] for answer in answers} == {expected["saved"]}
    assert expected["temperature"] != 1


def test_the_loader_of_a_share_has_the_options_of_the_users(team):
    assert [answer.found for answer in team.do("loader_options")] == [[2, 3, 5, True, 3], [2, 3, 5, True, 2]]


@pytest.mark.parametrize(("count", "batch_size"), [(1, 500), (2, 1), (5, 2)])
def test_fewer_batches_than_processes_leave_some_without(team, count, batch_size):
    assert_same(team.do("sigma_of", count, batch_size, processes=3), alone("sigma_of", count, batch_size).found)


@pytest.mark.parametrize("ignored", ["first part", "last part"])
def test_a_process_whose_items_are_all_ignored_adds_nothing(team, ignored):
    assert_same(team.do("pixels", ignored, processes=3), alone("pixels", ignored).found)


@pytest.mark.parametrize("what", ["fit", "predict", "sweep"])
def test_all_items_ignored_is_an_error_for_all(team, what):
    for answer in team.do("no_item_counts", what):
        assert "has no item that counts: every label is the ignored one" in answer.text
        assert answer.error == "ValueError"


def test_views_are_shared_too(team):
    assert_same(team.do("views", 30, 4, processes=3), alone("views", 30, 4).found)


@pytest.mark.slow
def test_noise_by_layer_and_members_from_a_pool_are_the_same_for_all(team):
    assert_same(team.do("layers_and_pool", 7, 40, processes=3), alone("layers_and_pool", 7, 40).found)


@pytest.mark.parametrize("name", ["gaussian", "bernoulli"])
def test_other_likelihoods_are_shared_too(team, name):
    expected = alone("likelihoods", name).found
    answers = team.do("likelihoods", name, processes=3)
    assert_same(answers, expected)
    assert {answer.found[-2] for answer in answers} == {expected[-2]}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA GPU")
def test_processes_can_share_a_gpu(team):
    assert_same(team.do("on_gpu"), alone("on_gpu").found)


@pytest.mark.parametrize("job", ["dropout", "recorded", "local", "probed"])
def test_what_depends_on_batches_pictures_or_all_the_data_is_the_same(team, job):
    """To the last bit or two of float32: every process reads a copy of its own first batch, which memory aligns."""
    expected = alone(job).found
    answers = team.do(job, processes=3)
    assert_same(answers, expected, rel=1e-6)
    if job == "recorded":
        assert {answer.found for answer in answers} == {expected}


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("weights", r"not given the same weights: process 0 has \d+, process 2 has \d+\."),
        ("weights, without a search", r"not given the same weights: process 0 has \d+, process 2 has \d+\."),
        ("seed", r"not given the same `noise`: .*seed=0.*process 2 has .*seed=1"),
        ("parameters", r"not given the same `parameters`: process 0 has .*0.weight.*process 2 has \['2.weight'\]"),
        ("views", r"not given the same `views`: process 0 has .*horizontal_flip.*process 2 has .*vertical_flip"),
        ("length", r"not given the same number of items in `validation`: process 0 has 40, process 2 has 38\."),
    ],
)
def test_processes_with_different_jobs_are_refused_with_what_differs(team, what, message):
    for answer in team.do("odd_one_out", what, processes=3):
        assert answer.error == "ProcessError"
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
        assert answer.text.startswith("another process failed or left before process ")


@pytest.mark.parametrize(("job", "arguments", "answers"), [("odd_one_out", ["alone"], 3), ("dies", [], 2)])
def test_a_process_that_leaves_or_is_killed_is_missed(team, job, arguments, answers):
    first, second, *_ = team.do(job, *arguments, processes=3, answers=answers)
    for answer in (first, second):
        assert answer.error == "ProcessError"
        assert answer.text.startswith("another process failed or left before process ")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("sampler", "`validation` has a DistributedSampler"),
        ("shuffled", "`validation` changes between two passes"),
        ("generator", "`validation` changes between two passes"),
        ("nothing", "`validation` has no item"),
        ("wrapped", "pass the network inside it, `model.module`"),
    ],
)
def test_what_cannot_be_shared_is_refused(team, what, message):
    for answer in team.do("refused", what):
        assert answer.error == "ValueError"
        assert message in answer.text


def test_only_the_first_process_shows_its_progress(team):
    first, *others = team.do("shown", processes=3)
    assert "fitting sigma" in first.found
    assert [answer.found for answer in others] == ["", ""]


def test_one_process_can_work_alone(team):
    first, other = team.do("first_alone")
    assert_same([first], alone("sigma_of", 40, 8).found)
    assert other.found is None
