"""`python -m experiments NAME`: every setting is an option, and what the options say reaches the experiment."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from experiments.__main__ import EXPERIMENTS, main, options_of
from experiments.settings import Settings

TRAINING = ("table2", "swa", "figure1", "figure2", "figure3", "noise")


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_an_experiment_is_a_row_with_settings_and_a_main(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = import_module(EXPERIMENTS[name][0])
    assert module.main.__doc__
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert "--checkpoints" in capsys.readouterr().out


def test_the_options_are_the_settings_with_their_defaults_and_comments(capsys: pytest.CaptureFixture[str]) -> None:
    parser = options_of(Settings, "table2", "the table")
    assert Settings(**vars(parser.parse_args([]))) == Settings()
    words = "--row cifar10,mnist-mlp --models 2 --data d --learning-rate 1e-3 --swa plain:start=2 --precision float32"
    found = Settings(**vars(parser.parse_args(words.split())))
    assert (found.rows, found.seeds, found.data) == (("cifar10", "mnist-mlp"), (17, 18), Path("d"))
    assert (found.learning_rate, found.swa, found.precision) == (1e-3, "plain:start=2", "float32")
    shown = " ".join(parser.format_help().split())
    assert "--size INT members at test (the authors' scripts) (default: 25)" in shown


def test_schedules_are_separated_by_spaces_because_they_contain_commas() -> None:
    settings = import_module("experiments.swa_schedules").Settings
    given = options_of(settings, "swa", "schedules").parse_args(["--schedules", "plain longer:swa=1e-3,more=20"])
    assert settings(**vars(given)).schedules == ("plain", "longer:swa=1e-3,more=20")


@pytest.mark.parametrize("name", TRAINING)
@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--models", "0", "`models` and `epochs` must be at least 1"),
        ("--precision", "int8", "`precision='int8'` must be float32, tf32, bfloat16 or float16"),
        ("--device", "gpu", "`device='gpu'` cannot be used here: try `--device cpu`"),
        ("--rows", "mnist-mlpp", "there is no row 'mnist-mlpp' in Table 2: choose from mnist-mlp,"),
        ("--rows", ",", "`rows` must name a row of Table 2"),
        ("--out", __file__, "is a file: name a folder"),
    ],
)
def test_a_wrong_option_is_one_clear_line_before_anything_runs(
    tmp_path: Path, name: str, option: str, value: str, message: str
) -> None:
    """No data are there: an experiment that looked for them first would name them."""
    with pytest.raises(SystemExit, match=message):
        main([name, "--data", str(tmp_path), option, value])


def test_an_unknown_experiment_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["table3"])
    assert "choose from" in capsys.readouterr().err
