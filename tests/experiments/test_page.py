"""docs/paper.md: our numbers beside the printed ones."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from experiments import figure1, figure2, figure3, noise_laws, out_of_distribution, page, swa_schedules, table2
from experiments.image_sets import read_image_set
from experiments.page import drawings, table1_tables, table2_tables
from experiments.page.markdown import holm, p_text
from experiments.printed import COLUMNS, inside, inside_before_rounding, printed
from experiments.settings import ROWS
from experiments.table1.cifar_resnet import CifarResNet
from experiments.table1.imagenet_networks import NETWORKS
from experiments.table1.split_methods import PAIRS
from experiments.table2.methods import METHODS
from tests.experiments.test_figures import places, tiny_figure3, tiny_ood

ROOT = Path(__file__).parents[2]


def test_the_page_is_written_from_the_results_byte_for_byte(tmp_path: Path) -> None:
    page.main(page.Settings(results=ROOT / "results/paper", page=tmp_path / "paper.md", pictures=False, say=str))
    assert (tmp_path / "paper.md").read_text() == (ROOT / "docs/paper.md").read_text()


def as_printed(row: str) -> dict[str, Any]:
    """A row whose means are the printed ones, with our columns a little better than temperature scaling."""
    columns: dict[str, Any] = {}
    for method in METHODS:
        source, less = (method, 0.0) if method in COLUMNS else ("temperature", 0.001)
        scores = {}
        for score, unit in table2_tables.UNITS.items():
            mean = printed(score, row, source)[0] / unit - less
            scores[score] = [mean - 0.0002, mean + 0.0002]
        columns[method] = {"scores": scores, "over": "models"}
    made = {"versions": {"torch": "2"}, "hardware": {"processor": "p", "cores": 2}, "time": "2020-12-06T00:00:00"}
    made |= {"command": f"python -m experiments table2 --rows {row},mnist-mlp --models 2 --out there"}
    head = {"format": table2.KIND, "version": 1, "row": row, "title": ROWS[row].title, "settings": {"swa": "plain"}}
    seconds = {"training": 60.0}
    return head | {"row_settings": asdict(ROWS[row]), "columns": columns, "seconds": seconds, "provenance": made}


def written(folder: Path, row: dict[str, Any]) -> str:
    (folder / f"table2-{row['row']}.json").write_text(json.dumps(row))
    return page.main(page.Settings(results=folder, page=folder / "paper.md", pictures=False, say=lambda text: None))


def test_the_printed_table_agrees_with_itself_in_every_cell() -> None:
    found = table2_tables.agreement({row: as_printed(row) for row in ROWS}, COLUMNS)
    assert (found["outside"], found["all"], found["agreeing"], found["before_rounding"]) == ([], 120, 120, 120)


def test_the_cells_that_equals_agree_in_are_counted_as_by_enumeration() -> None:
    """One cell of 20 varies: 12 of 25 networks have an NLL of 0.016, 13 of 0.024; the spread is printed as 0.00."""
    row = as_printed("mnist-cnn")
    for column in COLUMNS:
        row["columns"][column]["scores"] = {score: [0.5] * 25 for score in table2_tables.UNITS}
    row["columns"]["baseline"]["scores"]["nll"] = [0.016] * 12 + [0.024] * 13
    counts = np.arange(26)
    chance, means = stats.binom.pmf(counts, 25, 12 / 25), (0.016 * counts + 0.024 * (25 - counts)) / 25
    theirs = means.round(3)
    agree = abs(means[:, None] - theirs) <= 0.03 * theirs + 1e-12
    expected = float(chance @ agree @ chance)
    found = table2_tables.agreement_of_equals({"mnist-cnn": row})
    assert 0.2 < expected < 0.8
    assert set(found) == {19, 20}
    assert found.mean() == pytest.approx(19 + expected, abs=4 * 0.5 / np.sqrt(len(found)))


def test_a_number_counts_as_inside_up_to_the_spread_or_3_percent() -> None:
    assert inside(1.09, (1.063, 0.03))
    assert not inside(1.10, (1.063, 0.03))
    assert inside(0.0368, (0.036, 0.0))  # 3 % of 0.036 is 0.00108
    assert not inside(0.0372, (0.036, 0.0))
    assert not inside(0.0104, (0.010, 0.0))


def test_before_rounding_a_printed_spread_of_zero_was_less_than_half_a_hundredth() -> None:
    """0.010 ± 0.00 was at most 0.0105 with a spread below 0.005; 3 % of 22.880 is more than 0.215."""
    assert inside_before_rounding(0.0155, (0.010, 0.0))
    assert not inside_before_rounding(0.0156, (0.010, 0.0))
    assert inside_before_rounding(22.88 + 0.0005 + 0.6864, (22.880, 0.21))
    assert not inside_before_rounding(23.57, (22.880, 0.21))


def test_the_paired_difference_is_that_of_a_t_test() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.normal(size=25), generator.normal(size=25)
    expected = stats.ttest_rel(second, first).confidence_interval(0.95)
    assert table2_tables.paired_difference(first, second)[1:] == pytest.approx((expected.low, expected.high))


def test_a_cell_that_differs_is_marked_and_listed(tmp_path: Path) -> None:
    row = as_printed("cifar10")
    row["columns"]["pep"]["scores"]["nll"] = [1.2, 1.2]
    found = written(tmp_path, row)
    assert "**19 of 20 cells** (95 %)" in found
    assert "**1.2000** ± 0.0000 ✗<br>0.982 ± 0.02" in found
    assert "| NLL | CIFAR-10 | PEP | 1.2000 | 0.982 ± 0.02 |" in found
    assert "| CIFAR-10 | **no** | yes | yes |" in found  # PEP is not below the baseline now
    assert "| CIFAR-10 | -0.00100 [-0.00100, -0.00100] | -0.24500" in found  # joint less temperature, less PEP
    assert "- CIFAR-10: `python -m experiments table2 --rows cifar10,mnist-mlp --models 2 --out there`" in found
    assert "No results yet: `python -m experiments figure3 --device cuda`." in found
    assert "Not with the settings below" not in found


def test_a_row_with_settings_of_its_own_says_so(tmp_path: Path) -> None:
    row = as_printed("cifar10")
    row["row_settings"]["learning_rate"] = 0.01
    assert "**Not with the settings below: CIFAR-10 (learning_rate=0.01).**" in written(tmp_path, row)


def test_the_best_of_our_columns_is_bold_and_a_loss_of_the_joint_method_is_marked() -> None:
    row = as_printed("cifar10")
    row["columns"]["pep_antithetic"]["scores"]["nll"] = [0.9, 0.9]
    row["columns"]["pep_temperature"]["scores"]["nll"] = [0.97, 0.98]
    line = table2_tables.our_table({"cifar10": row}, "nll").splitlines()[-1]
    assert [cell for cell in line.split("|") if "**" in cell] == [" **0.9000** ± 0.0000 "]
    with_t, _, all_kernels, _ = table2_tables.joint_differences({"cifar10": row}).splitlines()[-1].split("|")[2:6]
    assert with_t.endswith("✗ ")
    assert "✗" not in all_kernels


def test_a_choice_of_the_race_with_a_lower_nll_and_a_larger_ece_is_named() -> None:
    rows = {name: as_printed(name) for name in ("cifar10", "cifar100", "fashion-mnist", "mnist-mlp")}
    for name, nll, ece in (("cifar10", 0.9, 0.02), ("cifar100", 0.9, 0.001), ("fashion-mnist", 9.0, 0.9)):
        rows[name]["columns"]["race"] = {"scores": {"nll": [nll, nll], "ece": [ece, ece]}}
    assert table2_tables.higher_ece(rows) == ["CIFAR-10"]


def test_a_p_value_that_underflows_is_not_shown_as_zero() -> None:
    assert [p_text(p) for p in (0.0123, 2e-299, 0.0)] == ["p = 0.012", "p = 2e-299", "p < 1e-300"]


def test_a_missing_folder_leaves_the_page_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "paper.md").write_text("numbers")
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*resluts: name the folder with `--results`"):
        page.main(page.Settings(results=tmp_path / "resluts", page=tmp_path / "paper.md"))
    assert (tmp_path / "paper.md").read_text() == "numbers"


def test_a_learning_rate_is_shown_beside_the_notebook() -> None:
    """By hand: T of 1 and 3, sigma* of 0.01 and 0.03, and test NLLs of 0.05 and 0.07 after one epoch."""
    row = as_printed("mnist-cnn")
    row["columns"]["temperature"]["temperature"], row["columns"]["pep"]["sigma"] = [1.0, 3.0], [0.01, 0.03]
    row["row_settings"]["learning_rate"] = 1e-3
    points = [{"epoch": epoch, "test_nll": nll} for epoch, nll in ((1, 0.05), (1, 0.07), (2, 0.01))]
    other = {"temperature": 1.5, "sigma": 0.02, "first_epoch_nll": 0.09}
    slow = {"learning_rate": 2e-4, "networks": [other, other | {"sigma": 0.04}]}
    lines = table2_tables.learning_rates(row, {"experiments": {"mnist-cnn": {"points": points}}}, slow).splitlines()
    assert lines[0] == "|  | their notebook | learning rate 0.001 | learning rate 0.0002 |"
    assert lines[2:] == [
        "| networks | 25 and 5 | 2 and 2 | 2 |",
        "| T of temperature scaling, mean (range) | 1.497 (1.381 to 1.604) | 2 (1 to 3) | 1.5 (1.5 to 1.5) |",
        "| σ* of PEP, mean (range) | 0.01517 (0.004102 to 0.02082) | 0.02 (0.01 to 0.03) | 0.03 (0.02 to 0.04) |",
        "| test NLL after one epoch | 0.050 to 0.057 | 0.050 to 0.070 | 0.090 to 0.090 |",
    ]


def test_a_cell_whose_printed_digits_hide_too_much_is_compared_with_the_notebook() -> None:
    """0.0159 is 6 % above the printed 0.015 ± 0.00, which is 0.01538 ± 0.00186."""
    hidden = table2_tables.hidden_by_rounding
    agrees = hidden(0.0159, ("brier", "mnist-cnn", "pep"))
    assert agrees.endswith("0.0154 ± 0.0019 (the authors' notebook), and ours agrees")
    assert hidden(0.0179, ("brier", "mnist-cnn", "pep")).endswith("and ours differs")
    assert hidden(0.0308, ("brier", "mnist-mlp", "swa")).startswith("it may agree with the printed numbers")
    assert hidden(0.7275, ("ece", "mnist-mlp", "swa")) == ""


@pytest.mark.slow
def test_every_section_is_written_from_results_of_this_version(
    data_folder: Path, tmp_path: Path, whole: tuple[Any, dict[str, Any]]
) -> None:
    one: dict[str, Any] = {"rows": ("mnist-mlp",), "epochs": 2, "models": 1}
    here = places(data_folder, tmp_path / "results")
    shutil.copytree(whole[0].out, tmp_path / "results")
    swa_schedules.main(swa_schedules.Settings(**here, **one, schedules=("plain:start=1",)))
    figure1.main(figure1.Settings(**here, **one, size=3, sigmas=(0.01,)))
    figure2.main(
        figure2.Settings(**here | {"checkpoints": tmp_path / "few"}, **one, items=100, size=4)
    )  # PEP corrects some
    figure3.main(tiny_figure3(data_folder, tmp_path / "results"))
    noise_laws.main(noise_laws.Settings(**here, **one, size=4))  # one network has no interval
    out_of_distribution.main(tiny_ood(data_folder, tmp_path / "results", epochs=1))
    settings = page.Settings(
        results=tmp_path / "results", page=tmp_path / "docs" / "paper.md", data=data_folder, say=lambda text: None
    )
    found = page.main(settings)
    assert found.count("No results yet") == 1  # Table 1
    assert "Nearest: MNIST (MLP): plain:start=1. 1 models each." in found  # one row is not all rows
    assert "Not run to its end: CIFAR-10, MNIST (CNN)." in found  # of Figure 3
    for figure in ("figure1", "figure2-reliability", "figure2-corrected", "figure3"):
        assert f"figures/paper-{figure}.svg" in found
        assert (tmp_path / "docs" / "figures" / f"paper-{figure}.svg").read_text().lstrip().startswith("<?xml")
    corrected = tmp_path / "docs" / "figures" / "paper-figure2-corrected.svg"
    images = corrected.read_text().count("<image")
    assert images > 0
    for there, left in ((True, images), (False, 0)):  # without the data, a figure that shows the images stays
        if not there:
            corrected.unlink()
        page.main(replace(settings, data=None))
        assert corrected.read_text().count("<image") == left


@pytest.mark.slow
def test_figures_1_and_2_of_a_network_of_table_1_are_on_the_page(data_folder: Path, tmp_path: Path) -> None:
    """A network with random weights. Its drawings, captions and commands are there, those of Table 2 are not."""
    torch.manual_seed(0)
    torch.save({"state_dict": CifarResNet(20).state_dict()}, tmp_path / "weights.th")
    options: dict[str, Any] = {"pretrained": "ResNet20-CIFAR10", "weights": tmp_path / "weights.th", "tuning": 20}
    options |= {"parameters": "conv", **places(data_folder, tmp_path / "results")}
    figure1.main(figure1.Settings(**options, size=2, sigmas=(0.01, 0.02)))
    drawn = figure2.main(figure2.Settings(**options, size=2, bins=10))
    found = page.main(page.Settings(results=tmp_path / "results", page=tmp_path / "docs" / "paper.md", say=str))
    first = found[found.index("## Figure 1") : found.index("## Figure 2")]
    second = found[found.index("## Figure 2") : found.index("## Figure 3")]
    assert "No results yet: `python -m experiments figure1 --device cuda`" in first
    assert f"{NETWORKS['ResNet20-CIFAR10'].title}, noise on `conv`, 2 members, 20 tuning images." in first
    assert "PEP on `conv` with 2 members" in second
    assert f"{len(read_image_set('cifar10', data_folder).test[1]) - 20} test images" in second
    assert f"It corrects {drawn['mistakes']['corrected']} mistakes" in second
    assert "Made by `python -m experiments" in first
    assert "Made by `python -m experiments" in second
    names = ["figure1", "figure2-reliability", *(["figure2-corrected"] if drawn["corrected"] else [])]
    for name in names:
        assert f"figures/paper-{name}-ResNet20-CIFAR10.svg" in found
        assert (tmp_path / "docs" / "figures" / f"paper-{name}-ResNet20-CIFAR10.svg").is_file()
    assert ("figure2-corrected" in second) == bool(drawn["corrected"])


MADE = {
    "versions": {"torch": "2"},
    "hardware": {"processor": "p", "cores": 2},
    "time": "2020-12-06T00:00:00",
    "command": "run",
}


def ood_page(folder: Path, content: dict[str, Any]) -> str:
    head = {"format": out_of_distribution.KIND, "version": 1, "definition": "KL."}
    head["printed"] = out_of_distribution.PRINTED
    (folder / "ood.json").write_text(json.dumps(head | content | {"provenance": MADE}))
    return page.main(page.Settings(results=folder, page=folder / "paper.md", pictures=False, say=str))


def ood_methods(network: float, PEP: float) -> dict[str, Any]:
    aurocs = {"network": network, "temperature scaling": network, "PEP": PEP}
    rest = {"kl": 0.5, "nll": 0.16, "error": 0.04}
    return {
        name: rest | {"auroc": {"entropy": auroc}, "fpr95": {"entropy": 1 - auroc}} for name, auroc in aurocs.items()
    }


def test_networks_out_of_distribution_have_intervals_and_the_paired_difference(tmp_path: Path) -> None:
    """Three networks whose AUROC PEP lowers by .01, .02 and .03; scipy's t test gives the interval."""
    pairs = [(0.75, 0.74), (0.76, 0.74), (0.77, 0.74)]
    networks = [
        {"seed": seed, "methods": ood_methods(network=bare, PEP=pep), "fitted": {"joint": [0.01 * (seed != 18), 1.5]}}
        | {"provenance": MADE | {"command": f"run {seed}"}}
        for seed, (bare, pep) in enumerate(pairs, start=17)
    ]
    found = ood_page(tmp_path, {"networks": networks, "methods": out_of_distribution.over_networks(networks)})
    low, high = stats.ttest_1samp([-0.01, -0.02, -0.03], 0).confidence_interval(0.95)
    shown = f"-0.0200 [{low:+.4f}, {high:+.4f}]"
    assert f"| PEP | entropy | 0.7400 [0.7400, 0.7400] | {shown} | 26.00 [26.00, 26.00] |" in found
    assert "| PEP | 0.500 | 0.72 | 0.1600 | 4.00 |" in found
    assert "Means over 3 networks, trained with seeds 17, 18, 19," in found
    assert "Made by `run 17`, `run 18`, `run 19`." in found  # each as it was run, whoever collected them
    assert f"goes from 0.7600 to 0.7400 with PEP, a difference of {shown} over 3 trained networks" in found
    assert "the divergence goes from 0.500 to 0.500, printed 0.47 to 0.72" in found
    assert found.count("the best σ with a temperature is 0") == found.count("For seed 18 the best σ") == 1


@pytest.mark.parametrize(("gains", "disagrees"), [((0.01, 0.02, 0.03), True), ((0.02, 0.021, 0.022), False)])
def test_pep_disagrees_with_the_paper_out_of_distribution_unless_its_gain_is_sure(
    tmp_path: Path, gains: tuple[float, ...], disagrees: bool
) -> None:
    """Gains of .01, .02 and .03 have an interval from -.0048 to .0448, which contains 0."""
    rest = {"seed": 17, "fitted": {"joint": [0.01, 1.5]}, "provenance": MADE}
    networks = [rest | {"methods": ood_methods(network=0.7, PEP=0.7 + gain)} for gain in gains]
    found = ood_page(tmp_path, {"networks": networks, "methods": out_of_distribution.over_networks(networks)})
    assert ("Out of distribution PEP gains little or nothing" in found) == disagrees


def test_figure_3_has_a_row_of_panels_for_each_choice_of_layers() -> None:
    """Two rows, each with the NLL over epochs and a panel for every experiment."""
    points = [
        {"seed": 17, "epoch": epoch, "training_nll": 0.1, "test_nll": 0.2 * epoch, "pep_nll": 0.1, "sigma": 0.01}
        for epoch in (1, 2, 3, 4)
    ]
    rho = {"rho": None}
    one = {"points": points, "correlations": {"overfitting and effect": rho, "overfitting and sigma": rho}}
    both = {"title": "Network", **one, "table2_layers": one}
    for experiments, panels in (([both], 4), ([both, both], 6)):
        figure = drawings.figure3({"experiments": dict(enumerate(experiments))})
        assert len([axis for axis in figure.axes if axis.get_label() != "<colorbar>"]) == panels


def test_holm_multiplies_by_the_tests_that_are_left() -> None:
    """By hand for three: 3 * .01, then the larger of that and 2 * .02, then the larger of that and .04."""
    assert holm({"a": 0.04, "b": 0.01, "c": 0.02}) == pytest.approx({"b": 0.03, "c": 0.04, "a": 0.04})
    assert holm({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}


def test_table_2_is_tested_over_models_and_over_images() -> None:
    """Two rows: the p-values of scipy over models, doubled or not by Holm; images as the file has them."""
    rows = {name: as_printed(name) for name in ("cifar10", "cifar100")}
    for name, gain in (("cifar10", 0.01), ("cifar100", 0.0001)):
        first = np.array([1.0, 1.1])
        rows[name]["columns"]["temperature"]["scores"]["nll"] = first.tolist()
        rows[name]["columns"]["pep_temperature"]["scores"]["nll"] = (first - gain * np.array([1, 3])).tolist()
    rows["cifar10"]["tests_over_items"] = {
        "pep_temperature - temperature": {"difference": -0.02, "standard_error": 0.005, "p": 0.0001}
    }
    lines = [line for line in table2_tables.tests(rows).splitlines() if line.startswith("| PEP with T − Temp")]
    p = stats.ttest_1samp([-1.0, -3.0], 0.0).pvalue  # the same for both rows
    assert lines[0] == f"| PEP with T − Temp. scaling | CIFAR-10 | -0.02000 | p = {2 * p:.2g} | ± 0.00500, p = 0.0001 |"
    assert lines[1] == f"| PEP with T − Temp. scaling | CIFAR-100 | -0.00020 | p = {2 * p:.2g} | not run |"


def test_swa_is_judged_on_the_rows_that_had_no_part_in_its_choice() -> None:
    rows = {row: as_printed(row) for row in ROWS}
    rows["cifar10"]["columns"]["swa"]["scores"]["nll"] = [2.0, 2.0]
    found = table2_tables.swa_elsewhere(rows, ["mnist-mlp"])
    assert (found["agreeing"], found["all"]) == (15, 16)
    assert table2_tables.swa_elsewhere(rows, ["cifar10"])["agreeing"] == 16


def test_a_row_of_table_1_shows_both_spreads_and_corrects_its_tests() -> None:
    """Two seeds and two splits by hand: means over seeds 2 and 4, over splits 2.5 and 3.5."""
    shown = {"scores": {score: [[1.0, 4.0], [3.0, 4.0]] for score in table1_tables.SCORES}, "sigma": [[0.0, 0.0]] * 2}
    shown["temperature"] = [[1.0, 1.0]] * 2
    pairs = [f"{second} - {first}" for first, second in PAIRS]
    nothing = {"mean": 0.0, "lower": 0.0, "upper": 0.0, "p": 1.0, "seeds": 0.0}
    found = {pair: dict.fromkeys(("nll", "brier", "error"), nothing) for pair in pairs}
    better = {"mean": -0.1, "lower": -0.15, "upper": -0.05, "p": 0.001, "seeds": 0.0}
    found["pep - temperature"] = {"nll": better, "brier": better | {"p": 0.04}, "error": nothing}
    row = {"title": "Small", "columns": dict.fromkeys(table1_tables.TITLES, shown), "comparisons": found}
    assert "| Small | Network |  |  | **3.0000 ± 1.0000 ± 0.7071** |" in table1_tables.our_columns({"Small": row})
    expected = "| Small | PEP − Temp. scaling | -0.1000 [-0.1500, -0.0500] ✓ | 0.01 | -0.1000 | +0.00 |"
    assert expected in table1_tables.tests({"Small": row}).splitlines()  # 10 pairs: .001 becomes .01 and .04 .4
    assert (
        table1_tables.in_short({"Small": row}).splitlines()[-1] == "| Small | -0.1000 ✓ | +0.0000 | +0.0000 | +0.0000 |"
    )
    assert table1_tables.seeds_of(row) == 2


def test_the_gap_is_read_beside_the_spread_over_seeds() -> None:
    """By hand: seeds gain 0.02 and 0.04, with standard deviation 0.0141; the gap is from -0.02 to -0.12."""
    scores = {"network": [[1.0, 1.0], [1.0, 1.0]], "pep": [[0.98, 0.98], [0.95, 0.97]]}
    row = {"columns": {name: {"scores": {"nll": values}} for name, values in scores.items()}}
    found = table1_tables.gain_by_seed(row, {"rows": [{"pep": -0.02}], "printed": -0.12})
    assert "over the 2 seeds of the table, PEP changes the NLL by -0.0300 ± 0.0141" in found
    assert "is 14 % of the gap" in found


def test_underconfident_networks_are_those_with_a_temperature_below_1() -> None:
    def row(title: str, temperature: float) -> dict[str, Any]:
        nll = {"mean": 0.01, "lower": -0.02, "upper": 0.04}
        columns = {"temperature": {"temperature": [[temperature, 0.9]]}}
        return {"title": title, "columns": columns, "comparisons": {"pep - network": {"nll": nll}}}

    found = table1_tables.underconfident({"a": row("A", 0.7), "b": row("B", 1.3)})
    assert found == "on A (T = 0.80) it changes the NLL by +0.0100 [-0.0200, +0.0400]"


def test_means_that_differ_from_the_notebooks_are_marked() -> None:
    """The interval is that of a t test of two samples of equal spread, one of them shifted to the notebook's mean."""
    row = as_printed("mnist-mlp")
    ours = np.random.default_rng(0).normal(1.83, 0.05, 25)
    row["columns"]["temperature"]["temperature"] = ours.tolist()
    row["columns"]["pep"]["sigma"] = (ours / 10).tolist()
    lines = table2_tables.beside_notebooks({"mnist-mlp": row}).splitlines()
    interval = stats.ttest_ind(ours, ours - ours.mean() + 1.839).confidence_interval()
    assert lines[2].endswith(f"{ours.mean() - 1.839:+.2g} [{interval.low:+.2g}, {interval.high:+.2g}] |")
    assert lines[3].endswith("✗ |")
