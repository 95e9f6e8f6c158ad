"""What a schedule of stochastic weight averaging says, and the comparison of schedules."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import swa_schedules
from experiments.printed import printed
from experiments.table2.weight_averaging import Swa, constant, cyclic, longer, plain, swa_from


def test_every_candidate_is_scored_and_the_nearest_is_named(data_folder: Path, tmp_path: Path) -> None:
    schedules = ("plain:start=1", "plain:start=1,refresh=0", "sgd:momentum=0.9")
    settings = swa_schedules.Settings(
        data=data_folder, out=tmp_path, checkpoints=tmp_path / "work", say=lambda text: None,
        rows=("mnist-mlp",), models=2, epochs=2, schedules=schedules,
    )  # fmt: skip
    found = swa_schedules.main(settings)
    distances = {name: one["distance"] for name, one in found["rows"]["mnist-mlp"].items()}
    assert found["nearest"]["mnist-mlp"] == min(distances, key=distances.__getitem__)
    assert len(set(distances.values())) == 3
    assert swa_schedules.main(settings)["rows"] == found["rows"]


def test_the_printed_column_is_at_distance_zero_of_itself() -> None:
    scores = {
        score: [printed(score, "cifar10", "swa")[0] / scale]
        for score, scale in (("nll", 1), ("brier", 1), ("ece", 100), ("error", 100))
    }
    assert swa_schedules.distance("cifar10", scores) == pytest.approx(0, abs=1e-12)


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
    assert swa_from("plain:start=2,refresh=0", 1e-3) == Swa((1e-3,) * 15, tuple(range(2, 16)), refresh=False)


def test_a_schedule_is_shortened_with_its_epochs() -> None:
    """Two of fifteen epochs: of thirty, four remain, and at least one is averaged, the last if there is no other."""
    whole = longer(1.0, 2.0)
    assert whole.shortened(15) == whole
    assert whole.shortened(2).learning_rates == (1.0,) * 4
    assert whole.shortened(2).averaged == (4,)
    assert plain(1.0, start=1).shortened(3).averaged == (1, 2, 3)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("often", "is unknown: begin with one of plain, fixed"),
        ("plain:begin=3", "must give numbers to plain's own names"),
        ("sgd:first=-1", "a learning rate must be above 0 and finite"),
        ("fixed:swa=inf", "a learning rate must be above 0 and finite"),
        ("plain:start=16", "it averages no epoch from 1 to 15, or one before the first"),
        ("constant:start=0", "float division by zero"),
    ],
)
def test_a_schedule_that_cannot_be_run_is_refused_before_anything_runs(
    tmp_path: Path, schedule: str, message: str
) -> None:
    """No data are there: an experiment that looked for them first would name them."""
    with pytest.raises(ValueError, match=message):
        swa_schedules.main(swa_schedules.Settings(data=tmp_path, schedules=("plain", schedule)))
