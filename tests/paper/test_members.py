"""PEP on stacked networks gives the numbers of the library, network by network."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor

import peppermill as pm
from peppermill.data import Batches
from peppermill.engines.loop import run_members
from peppermill.likelihood import Categorical
from peppermill.noise import Noise
from peppermill.paper.dropping import Dropping
from peppermill.paper.folding import Folded
from peppermill.paper.lockstep import in_lockstep
from peppermill.paper.machine import Machine
from peppermill.paper.masks import Dropped
from peppermill.paper.members import KEPT_BYTES, Directions, Images, Stack, StackedMembers
from peppermill.paper.networks import NETWORKS
from peppermill.paper.stacked import entered, forward, stack, unstack
from peppermill.paper.tuned import (
    Found,
    One,
    our_sigma,
    our_sigma_and_temperature,
    paper_sigma,
    refit_temperatures,
    tune_together,
)
from peppermill.parameters import select
from peppermill.perturbation import Perturbation
from peppermill.tuning.subsample import Sample

SEEDS = (17, 18, 19)
CASES = [
    ("mnist_mlp", (1, 28, 28), r"^dense\d\.weight$"),
    ("mnist_mlp", (1, 28, 28), "kernels"),
    ("mnist_cnn", (1, 28, 28), r"^(conv2|dense\d)\.weight$"),
    ("cifar_cnn", (3, 32, 32), r"^dense1\.weight$"),
    ("cifar_cnn", (3, 32, 32), "kernels"),
]


def networks_and_data(name: str, shape: tuple[int, ...], items: int = 60) -> tuple[Stack, Images]:
    generator = Generator().manual_seed(3)
    network = NETWORKS[name](10, False)
    state = stack(network, SEEDS)
    for key, value in state.items():  # batch norm as after training: nothing is 0 or 1
        if "norm" in key:
            value.copy_(torch.rand(value.shape, generator=generator) + 0.2)
    data = Images(torch.rand(items, *shape, generator=generator), torch.randint(10, (items,), generator=generator))
    return Stack(network, state, Directions(state, SEEDS), Machine()), data


def selected(name: str, rule: str) -> list[str]:
    return list(select(NETWORKS[name](10, False), rule))


@pytest.mark.parametrize(("name", "shape", "rule"), CASES)
@pytest.mark.parametrize("antithetic", [False, True])
@pytest.mark.parametrize("kept", [0, 1, 3])
def test_members_together_are_the_members_of_each_network(
    name: str, shape: tuple[int, ...], rule: str, antithetic: bool, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without keeping the first layer; for all networks, and for some, of which one has sigma = 0."""
    stacked, data = networks_and_data(name, shape, items=12)
    together = StackedMembers(stacked, data, selected(name, rule), 3, antithetic)
    monkeypatch.setattr(together, "streams_kept", kept)
    for sigmas in ({0: 0.01, 1: 0.02, 2: 0.05}, {0: 0.03, 2: 0.0}):
        found = together.run(sigmas)
        for index, sigma in sigmas.items():
            model = unstack(NETWORKS[name](10, False), stacked.state, index)
            perturbation = Perturbation(select(model, rule), Noise("gaussian", antithetic, SEEDS[index]), 3)
            expected = run_members(
                model, perturbation, sigma, Batches((data.images, data.labels), model), Categorical(), lambda n: None
            )
            for part in ("member_log_likelihoods", "averaged"):
                torch.testing.assert_close(getattr(found[index], part), getattr(expected, part), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "shape", "rule"), CASES)
def test_samples_of_different_lengths_together_are_each_network_over_its_own(
    name: str, shape: tuple[int, ...], rule: str
) -> None:
    stacked, data = networks_and_data(name, shape, items=30)
    together = StackedMembers(stacked, data, selected(name, rule), 3)
    rows = {0: [0, 4, 7, 21], 2: [1, 2, 3, 5, 8, 13, 20, 29, 11]}
    cut = {index: [chosen[:3], chosen[3:]] for index, chosen in rows.items()}
    samples = {
        index: Sample(Batches([(data.images[part], data.labels[part]) for part in parts]), torch.ones(1), 0.1)
        for index, parts in cut.items()
    }
    found = together.run_samples({0: 0.02, 2: 0.03}, samples)
    for index, sigma in ((0, 0.02), (2, 0.03)):
        whole = together.run({index: sigma})[index]
        expected = whole.member_log_likelihoods[:, rows[index]], whole.averaged[rows[index]], whole.labels[rows[index]]
        one = found[index]
        torch.testing.assert_close(
            (one.member_log_likelihoods, one.averaged, one.labels), expected, rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize(("name", "shape", "norm"), [("mnist_cnn", (1, 28, 28), "conv2_norm")])
def test_a_batch_norm_that_turns_its_values_is_not_carried_through_a_pooling(
    name: str, shape: tuple[int, ...], norm: str
) -> None:
    stacked, data = networks_and_data(name, shape, items=6)
    for turned in (False, True):
        if turned:
            stacked.state[f"{norm}.weight"][1, 3] = -0.7
        whole = Folded(list(stacked.network.named_children()), stacked.state)
        assert (norm in dict(whole.layers)) == turned
        found = next(whole.run(stacked.state, [entered(data.images, 3)]))
        torch.testing.assert_close(found, forward(stacked.network, stacked.state, data.images), rtol=1e-4, atol=1e-4)


def test_no_more_is_kept_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    stacked, data = networks_and_data("mnist_mlp", (1, 28, 28), items=24)
    layer = 3 * 200 * 24 * 4  # bytes of the first hidden layer: networks, units, items, float32
    for room, expected in ((0, 0), (layer, 0), (2 * layer, 1), (5 * layer + 1, 4)):
        monkeypatch.setitem(KEPT_BYTES, "cpu", room)
        assert StackedMembers(stacked, data, selected("mnist_mlp", "kernels"), 3, False).streams_kept == expected


@pytest.mark.filterwarnings("ignore::peppermill.PepWarning")
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("items", [60, 700])
def test_our_search_finds_what_fit_finds_for_each_network(joint: bool, items: int) -> None:
    """Of few images all are looked at, of many a sample first, which is another one for each network."""
    stacked, data = networks_and_data("mnist_mlp", (1, 28, 28), items)
    together = StackedMembers(stacked, data, selected("mnist_mlp", "kernels"), 4, antithetic=False)
    found = tune_together(together, our_sigma_and_temperature if joint else our_sigma)[0]
    for index, seed in enumerate(SEEDS):
        model = unstack(NETWORKS["mnist_mlp"](10, False), stacked.state, index)
        pep = pm.fit(
            model, (data.images, data.labels), size=4, noise=pm.Noise(antithetic=False, seed=seed), temperature=joint
        )
        assert found[index].sigma == pytest.approx(pep.sigma, rel=1e-3)
        assert found[index].temperature == pytest.approx(pep.temperature, rel=1e-3)


def test_the_papers_search_ends_in_the_middle_of_the_tenth_bracket() -> None:
    """By hand: nine golden sections of [0, 0.1] around a peak, then the midpoint; sigma = 0 is never asked for."""
    asked: list[float] = []

    def run(sigma: float, sample: object) -> object:
        asked.append(sigma)
        value = torch.tensor([[-((sigma - 0.0187) ** 2)]], dtype=torch.float64)
        return type("Pass", (), {"member_log_likelihoods": value})()

    lower, upper, golden = 0.0, 0.1, (5**0.5 - 1) / 2
    for _ in range(9):
        left, right = upper - golden * (upper - lower), lower + golden * (upper - lower)
        lower, upper = (lower, right) if abs(left - 0.0187) < abs(right - 0.0187) else (left, upper)
    assert paper_sigma(One(run, lambda network: None, 1.0)).sigma == pytest.approx((lower + upper) / 2)  # type: ignore[arg-type]
    assert len(asked) == 10
    assert min(asked) > 0


def test_the_refitted_temperature_is_the_best_one_for_this_size() -> None:
    stacked, drawn = networks_and_data("mnist_mlp", (1, 28, 28))
    likely = unstack(NETWORKS["mnist_mlp"](10, False), stacked.state, 0)(drawn.images).argmax(1)
    data = Images(drawn.images, torch.where(torch.arange(len(likely)) % 4 > 0, likely, drawn.labels))
    together = StackedMembers(stacked, data, selected("mnist_mlp", "kernels"), 6, antithetic=False)
    found = refit_temperatures(together, [Found(0.02)] * 3)
    averaged = together.run({0: 0.02})[0].averaged

    def nll(temperature: float) -> float:
        return pm.metrics.nll((averaged / temperature).log_softmax(1), data.labels)

    best = found[0].temperature
    assert found[0].sigma == 0.02
    assert 0.06 < best < 19  # inside the range that is searched
    assert nll(best) <= min(nll(best * 1.01), nll(best / 1.01), nll(1.0))


def test_searches_in_lockstep_ask_together_and_end_when_they_end() -> None:
    rounds: list[list[int]] = []

    def answer(questions: Mapping[int, int]) -> dict[int, int]:
        rounds.append(sorted(questions))
        return {index: 10 * question for index, question in questions.items()}

    def job(index: int, ask: Callable[[int], int]) -> int:
        return sum(ask(step) for step in range(index + 1))

    assert in_lockstep(3, job, answer) == [0, 10, 30]
    assert rounds == [[0, 1, 2], [1, 2], [2]]


def test_a_search_that_fails_fails_the_whole() -> None:
    def job(index: int, ask: Callable[[int], int]) -> int:
        if index == 1:
            raise ValueError("no such sigma")
        return ask(index)

    with pytest.raises(ValueError, match="no such sigma"):
        in_lockstep(3, job, lambda questions: dict(questions))
    with pytest.raises(ZeroDivisionError):
        in_lockstep(2, lambda index, ask: ask(index), lambda questions: {0: 1 // 0})


@pytest.mark.parametrize(("name", "shape"), [("mnist_mlp", (1, 28, 28)), ("cifar_cnn", (3, 32, 32))])
@pytest.mark.parametrize("room", [0, 2**30])
def test_passes_with_dropout_are_the_same_whether_the_layers_before_it_are_kept_or_not(
    name: str, shape: tuple[int, ...], room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """260 images are a batch of 250 and one of 10; each pass has masks of its own."""
    monkeypatch.setitem(KEPT_BYTES, "cpu", room)
    plain, data = networks_and_data(name, shape, items=260)
    network = NETWORKS[name](10, True)
    dropping, masks, again = (
        Dropping(replace(plain, network=network), data),
        Dropped(SEEDS, "cpu"),
        Dropped(SEEDS, "cpu"),
    )
    for number in range(2):
        masks.restart(number)
        again.restart(number)
        found, parts = dropping.log_probs(masks), []
        for batch in torch.split(data.images, 250):
            if not again.knows(len(batch)):
                forward(network, plain.state, batch, masks=again)
            again.refill(len(batch))
            parts.append(forward(network, plain.state, batch, masks=again).log_softmax(dim=1).transpose(1, 2))
        torch.testing.assert_close(found, torch.cat(parts, dim=1).double())


def test_directions_of_pairs_are_those_of_single_members() -> None:
    """Antithetic members 2k and 2k + 1 are plus and minus the independent member k: one set of draws serves both."""
    like = torch.zeros(5, 7)
    single, paired = Noise("gaussian", False, 17), Noise("gaussian", True, 17)
    drawn: Tensor = Directions({"w": torch.zeros(1, 5, 7)}, [17]).of("w", 1)[0]
    assert torch.equal(drawn, single.draw("w", 1, like))
    assert torch.equal(drawn, paired.draw("w", 2, like))
    assert torch.equal(-drawn, paired.draw("w", 3, like))


def test_no_warning_of_the_library_reaches_the_table() -> None:
    stacked, data = networks_and_data("mnist_mlp", (1, 28, 28), items=8)
    together = StackedMembers(stacked, data, selected("mnist_mlp", "kernels"), 2, antithetic=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tune_together(together, our_sigma)
    assert not [one for one in caught if issubclass(one.category, pm.PepWarning)]
