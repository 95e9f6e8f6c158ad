"""docs/paper.md: our numbers beside the printed ones."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from peppermill.paper import document, figure1, figure2, figure3, noise_laws, ood, swa, table2, tables
from peppermill.paper.columns import METHODS
from peppermill.paper.printed import COLUMNS, inside, inside_before_rounding, printed
from peppermill.paper.rates import learning_rates
from peppermill.paper.result import typed
from peppermill.paper.rows import ROWS
from peppermill.paper.table2_page import table2_section, what_rounding_hides
from peppermill.paper.work import Settings, tiny


def as_printed(row: str) -> dict[str, Any]:
    """A row whose means are the printed ones, with our columns a little better than temperature scaling."""
    columns: dict[str, Any] = {}
    for method in METHODS:
        source = method if method in COLUMNS else "temperature"
        scores = {}
        for score in tables.SCORES:
            mean = printed(score, row, source)[0] / (100 if score in tables.PERCENT else 1)
            less = 0.001 if method not in COLUMNS else 0.0
            scores[score] = [mean - less - 0.0002, mean - less + 0.0002]
        columns[method] = {"scores": scores, "over": "models"}
    made = {"versions": {"torch": "2"}, "hardware": {"processor": "p", "cores": 2}, "time": "2020-12-06T00:00:00"}
    made |= {"command": f"peppermill paper table2 --rows {row},mnist-mlp --models 2 --out there"}
    head = {
        "format": table2.KIND,
        "version": table2.VERSION,
        "row": row,
        "title": ROWS[row].title,
        "settings": {"swa": "plain"},
        "row_settings": asdict(ROWS[row]),
    }
    return head | {"columns": columns, "seconds": {"training": 60.0}, "provenance": made}


def test_the_printed_table_agrees_with_itself_in_every_cell() -> None:
    rows = {row: as_printed(row) for row in ROWS}
    assert tables.agreement(rows, COLUMNS) == ([], 120, 0)


def test_a_number_counts_as_inside_up_to_the_spread_or_3_percent() -> None:
    assert inside(1.09, (1.063, 0.03))
    assert not inside(1.10, (1.063, 0.03))
    assert inside(0.0368, (0.036, 0.0))  # 3 % of 0.036 is 0.00108
    assert not inside(0.0372, (0.036, 0.0))
    assert not inside(0.0104, (0.010, 0.0))


def test_before_rounding_a_printed_spread_of_nothing_was_less_than_half_a_hundredth() -> None:
    """0.010 ± 0.00 was at most 0.0105 with a spread below 0.005; of 22.880 ± 0.21, 3 % is more than 0.215."""
    assert inside_before_rounding(0.0155, (0.010, 0.0))
    assert not inside_before_rounding(0.0156, (0.010, 0.0))
    assert inside_before_rounding(22.88 + 0.0005 + 0.6864, (22.880, 0.21))
    assert not inside_before_rounding(23.57, (22.880, 0.21))


def test_the_paired_difference_is_that_of_a_t_test() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.normal(size=25), generator.normal(size=25)
    found = tables.paired_difference(first.tolist(), second.tolist())
    expected = stats.ttest_rel(second, first).confidence_interval(0.95)
    assert (found.lower, found.upper) == pytest.approx((expected.low, expected.high))


def test_a_cell_that_differs_is_marked_and_listed(tmp_path: Path) -> None:
    row = as_printed("cifar10")
    row["columns"]["pep"]["scores"]["nll"] = [1.2, 1.2]
    (tmp_path / "table2-cifar10.json").write_text(json.dumps(row))
    page = document.main(document.Settings(tmp_path, tmp_path / "paper.md", pictures=False, say=lambda text: None))
    assert "**19 of 20 cells** (95 %)" in page
    assert "**1.2000** ± 0.0000 ✗<br>0.982 ± 0.02" in page
    assert "| NLL | CIFAR-10 | PEP | 1.2000 | 0.982 ± 0.02 |" in page
    assert "| CIFAR-10 | **no** | yes | yes |" in page  # PEP is not below the baseline now
    assert (
        "| CIFAR-10 | -0.00100 [-0.00100, -0.00100] | -0.24500" in page
    )  # the joint method less temperature, less PEP
    assert "Made by `peppermill paper table2 --models 2`." in page
    assert "No results yet: `peppermill paper figure3 --device cuda`." in page


def test_a_row_with_settings_of_its_own_is_told(tmp_path: Path) -> None:
    row = as_printed("cifar10")
    assert "Not with the settings below" not in "\n".join(table2_section({"cifar10": row}))
    row["row_settings"]["learning_rate"] = 0.01
    assert table2_section({"cifar10": row})[0] == "**Not with the settings below: CIFAR-10 (learning_rate=0.01).**"


def test_a_folder_that_is_not_there_leaves_the_page_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "paper.md").write_text("numbers")
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*resluts: name that of the results with `--resu"):
        document.main(document.Settings(tmp_path / "resluts", tmp_path / "paper.md"))
    assert (tmp_path / "paper.md").read_text() == "numbers"


def test_the_best_of_our_columns_is_bold_and_a_loss_of_the_joint_method_is_marked() -> None:
    row = as_printed("cifar10")
    row["columns"]["pep_antithetic"]["scores"]["nll"] = [0.9, 0.9]
    row["columns"]["pep_temperature"]["scores"]["nll"] = [0.97, 0.98]
    line = tables.our_table({"cifar10": row}, "nll")[-1]
    assert [cell for cell in line.split("|") if "**" in cell] == [" **0.9000** ± 0.0000 "]
    with_t, _, all_kernels, _ = tables.joint_differences({"cifar10": row})[-1].split("|")[2:6]
    assert with_t.endswith("✗ ")
    assert "✗" not in all_kernels


@pytest.mark.filterwarnings("ignore::peppermill.PepWarning")
def test_every_section_is_written_from_real_results(data_folder: Path, tmp_path: Path) -> None:
    base = Settings(data=data_folder, out=tmp_path / "r", checkpoints=tmp_path / "work", say=lambda text: None)
    small = tiny(base, rows=("mnist-mlp",))
    table2.main(small)
    swa.main(small, ("plain:start=1",))
    figure1.main(small, figure1.Curve("mnist-mlp", size=3, sigmas=(0.01,)))
    figure2.main(replace(small, epochs=20), figure2.Pictures("mnist-mlp", size=4))  # overfitted: PEP corrects some
    figure3.main(small)
    noise_laws.main(replace(small, seeds=(17,)))  # one network has no interval
    out = ood.Settings(data=data_folder, out=tmp_path / "r", checkpoints=tmp_path / "work", say=lambda text: None)
    ood.main(ood.tiny(out))
    page = document.main(
        document.Settings(tmp_path / "r", tmp_path / "docs" / "paper.md", data_folder, say=lambda text: None)
    )
    assert page.count("No results yet") == 1  # of Table 1: test_table1.py
    assert "Nearest: MNIST (MLP): plain:start=1. 3 models each." in page  # one row is not all rows
    assert "Not run to its end: CIFAR-10, MNIST (CNN)." in page  # of Figure 3
    for figure in ("figure1", "figure2-reliability", "figure2-corrected", "figure3"):
        assert f"figures/paper-{figure}.svg" in page
        assert (tmp_path / "docs" / "figures" / f"paper-{figure}.svg").read_text().lstrip().startswith("<?xml")


def test_a_learning_rate_is_shown_beside_the_notebook_with_the_command_that_runs_it() -> None:
    """By hand: T of 1 and 3, sigma* of 0.01 and 0.03, and test NLLs of 0.05 and 0.07 after one epoch."""
    row = as_printed("mnist-cnn")
    row["columns"]["temperature"]["temperature"], row["columns"]["pep"]["sigma"] = [1.0, 3.0], [0.01, 0.03]
    row["row_settings"]["learning_rate"] = 1e-3
    points = [{"epoch": epoch, "test_nll": nll} for epoch, nll in ((1, 0.05), (1, 0.07), (2, 0.01))]
    figure = {"experiments": {"mnist-cnn": {"points": points}}, "provenance": row["provenance"]}
    head, _, *lines = learning_rates([(row, figure)], {"mnist-mlp": as_printed("mnist-mlp")})
    assert head == "| | their notebook | learning rate 0.001 |"
    assert "| T of temperature scaling, mean (range) | 1.497 (1.381 to 1.604) | 2 (1 to 3) |" in lines
    assert "| σ* of PEP, mean (range) | 0.01517 (0.004102 to 0.02082) | 0.02 (0.01 to 0.03) |" in lines
    assert "| cells of the whole table |  | 40 of 40 |" in lines
    assert "| test NLL of five networks after one epoch | 0.050 to 0.057 | 0.050 to 0.070 |" in lines
    command = (
        "peppermill paper table2 --rows mnist-cnn --models 2 --learning-rate 0.001 --out results/paper/rate-2.5e-4"
    )
    assert lines[-1].count(f"`{command}`") == 2  # without a folder of its own it would replace the row's own result


def test_a_cell_whose_printed_digits_hide_too_much_is_told_as_the_notebook_has_it() -> None:
    """0.0159 is 6 % above the printed 0.015 ± 0.00, which is 0.01538 ± 0.00186."""
    assert what_rounding_hides(0.0159, ("brier", "mnist-cnn", "pep")).endswith(
        "0.0154 ± 0.0019 (the authors' notebook), and ours agrees"
    )
    assert what_rounding_hides(0.0179, ("brier", "mnist-cnn", "pep")).endswith("and ours differs")
    assert (
        what_rounding_hides(0.0308, ("brier", "mnist-mlp", "swa"))
        == "it may agree with the printed numbers before they were rounded"
    )
    assert what_rounding_hides(0.7275, ("ece", "mnist-mlp", "swa")) == ""


def test_the_page_shows_the_command_without_its_folders() -> None:
    command = "peppermill paper ood --epochs 30 --data here --device cuda --out there --checkpoints .local"
    assert typed({"provenance": {"command": command}}) == "peppermill paper ood --epochs 30 --device cuda"
