"""The comparison of SWA schedules, and what a schedule says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from peppermill.paper import swa
from peppermill.paper.networks import mnist_mlp
from peppermill.paper.printed import printed
from peppermill.paper.stacked import stack, unstack
from peppermill.paper.swa_schedules import Swa, constant, cyclic, longer, plain, refresh_batch_norm, swa_from
from peppermill.paper.work import Settings, tiny


def test_every_candidate_is_scored_and_the_nearest_is_named(data_folder: Path, tmp_path: Path) -> None:
    base = Settings(data=data_folder, out=tmp_path, checkpoints=tmp_path / "work", say=lambda text: None)
    found = swa.main(tiny(base, rows=("mnist-mlp",)), ("plain:start=1", "plain:start=1,refresh=0", "sgd:momentum=0.9"))
    distances = {name: one["distance"] for name, one in found["rows"]["mnist-mlp"].items()}
    assert found["nearest"]["mnist-mlp"] == min(distances, key=distances.get)  # type: ignore[arg-type]
    assert len(set(distances.values())) == 3


def test_the_printed_column_is_at_distance_zero_of_itself() -> None:
    scores = {
        score: [printed(score, "cifar10", "swa")[0] / scale]
        for score, scale in (("nll", 1), ("brier", 1), ("ece", 100), ("error", 100))
    }
    assert swa.distance("cifar10", scores) == pytest.approx(0, abs=1e-12)


def test_the_schedules_move_the_rate_where_they_say() -> None:
    assert plain(0.1, 13).averaged == (13, 14, 15)
    moved = constant(1.0, 3.0, start=10, epochs=15)
    assert moved.learning_rates[:6] == (1.0,) * 6
    assert moved.learning_rates[7] == pytest.approx(2.0)
    assert moved.learning_rates[9:] == (3.0,) * 6
    assert moved.averaged == (11, 12, 13, 14, 15)
    assert cyclic(1.0, 9.0, 3.0, length=3, start=6, epochs=12).learning_rates[6:] == (9.0, 6.0, 3.0, 9.0, 6.0, 3.0)
    assert cyclic(1.0, 9.0, 3.0, length=3, start=6, epochs=12).averaged == (9, 12)
    assert longer(1.0, 2.0, more=2).averaged == (16, 17)


def test_what_a_schedule_does_not_say_is_izmailovs() -> None:
    """A rate of 1e-3 after two thirds of the epochs, statistics refreshed; cycles of three epochs from 3e-3 to 1e-3."""
    assert swa_from("constant", 2.5e-4) == constant(2.5e-4, 1e-3, start=10, epochs=15)
    assert swa_from("cyclic", 2.5e-4) == cyclic(2.5e-4, 3e-3, 1e-3, length=3, start=6, epochs=15)
    assert swa_from("longer", 2.5e-4).learning_rates == (2.5e-4,) * 15 + (1e-3,) * 15
    assert swa_from("fixed", 2.5e-4).learning_rates == (1e-3,) * 15
    assert swa_from("constant", 2.5e-4).refresh
    assert swa_from("plain", 2.5e-4).averaged == tuple(range(4, 16))


def test_a_schedule_is_shortened_with_its_epochs() -> None:
    """Two of fifteen epochs: of thirty, four remain, and at least one is averaged, the last where none was."""
    whole = longer(1.0, 2.0)
    assert whole.shortened(15) == whole
    assert whole.shortened(2).learning_rates == (1.0,) * 4
    assert whole.shortened(2).averaged == (4,)
    assert plain(1.0, start=1).shortened(3).averaged == (1, 2, 3)
    assert plain(1.0, start=1).shortened(0).averaged == (1,)


def test_an_unknown_schedule_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="`swa='often'` is unknown: begin with one of plain, fixed"):
        swa_from("often", 1e-3)
    with pytest.raises(ValueError, match="`swa='plain:begin=3'` must give numbers to plain's own names"):
        swa_from("plain:begin=3", 1e-3)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("sgd:first=-1", "a learning rate must be above 0 and finite"),
        ("fixed:swa=inf", "a learning rate must be above 0 and finite"),
        ("plain:start=16", "it averages no epoch from 1 to 15, or one before the first"),
        ("plain:start=0", "it averages no epoch from 1 to 15, or one before the first"),
        ("constant:start=0", "float division by zero"),
    ],
)
def test_a_schedule_that_cannot_be_run_is_refused(schedule: str, message: str) -> None:
    with pytest.raises(ValueError, match=rf"`swa='{schedule}'` must give numbers to .*\({message}\)"):
        swa_from(schedule, 1e-3)


def test_a_schedule_is_read_from_its_description() -> None:
    assert swa_from("longer:swa=2e-3,more=3", 1e-3) == longer(1e-3, 2e-3, 3)
    assert swa_from("plain:start=2,refresh=0", 1e-3) == Swa((1e-3,) * 15, tuple(range(2, 16)), refresh=False)


def test_refreshed_statistics_are_those_of_the_whole_training_set() -> None:
    """With all images in one batch, the running mean is the mean of what the layer sees."""
    network, images = mnist_mlp(), torch.rand(200, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    state = stack(network, [17, 18])
    refreshed = refresh_batch_norm(network, state, images)
    alone = unstack(mnist_mlp(), state, 1)
    seen = alone.dense1_relu(alone.dense1(images.flatten(1)))
    torch.testing.assert_close(refreshed["dense1_norm.running_mean"][1], seen.mean(0))
    torch.testing.assert_close(refreshed["dense1_norm.running_var"][1], seen.var(0))


def test_a_wrong_schedule_is_told_before_anything_is_run(tmp_path: Path) -> None:
    """No data are there: whoever looked for them first would speak of them."""
    with pytest.raises(ValueError, match="`swa='sdg:first=1'` is unknown: begin with one of plain,"):
        Settings(data=tmp_path, swa="sdg:first=1")
    with pytest.raises(ValueError, match="`swa='plain:begin=1'` must give numbers"):
        swa.main(Settings(data=tmp_path, rows=("mnist-mlp",)), ("plain:start=1", "plain:begin=1"))
