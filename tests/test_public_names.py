"""What `import peppermill as pm` offers, pinned: adding a name is a decision, removing one breaks somebody."""

import ast
import importlib.metadata
import inspect
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

import peppermill as pm

ROOT = Path(__file__).resolve().parents[1]
NAMES = [
    "Abstention",
    "Bernoulli",
    "Calibrated",
    "Candidate",
    "Categorical",
    "Comparison",
    "DeepEnsemble",
    "Effect",
    "Effects",
    "Gaussian",
    "Golden",
    "Likelihood",
    "LocalAnalysis",
    "McDropout",
    "Noise",
    "OverfittingProbe",
    "PepEnsemble",
    "PepWarning",
    "Predictions",
    "Predictor",
    "ProcessError",
    "Race",
    "Run",
    "Scores",
    "SingleNetwork",
    "SizeCurve",
    "Sweep",
    "Tempered",
    "TestTimeAugmentation",
    "TwoStage",
    "Uncertainty",
    "WeightAverage",
    "abstain",
    "alone",
    "calibrate",
    "carried_by",
    "compare",
    "compare_all",
    "compare_effects",
    "demo",
    "evaluate",
    "fit",
    "fit_calibrator",
    "fit_temperature",
    "helped_and_hurt",
    "load",
    "load_abstention",
    "local_analysis",
    "metrics",
    "plots",
    "predict",
    "probe_overfitting",
    "provenance",
    "read_run",
    "record_run",
    "size_curve",
    "split_off",
    "stream",
    "sweep_around",
    "sweep_sigma",
    "write_predictions",
    "write_report",
    "write_run",
]

#: Not in `__all__`, because they need an extra.
WITH_EXTRAS = ["PepCallback", "PepClassifier"]

#: Modules, exceptions, and what functions return.
WITHOUT_ARGUMENTS = {
    *("demo", "metrics", "plots", "PepWarning", "ProcessError"),
    *("Abstention", "Candidate", "Comparison", "Effect", "Effects", "LocalAnalysis", "OverfittingProbe", "Predictions"),
    *("Race", "Run", "Scores", "SizeCurve", "Sweep", "Uncertainty"),
}

METRICS = [
    "auroc",
    "brier_score",
    "classwise_calibration_error",
    "entropy",
    "error_rate",
    "expected_calibration_error",
    "false_positive_rate",
    "maximum_calibration_error",
    "nll",
    "reliability",
    "symmetrized_kl",
    "top_k_error",
]


def test_the_public_names_are_these_and_no_others():
    assert pm.__all__ == NAMES


def test_they_stand_in_order():
    assert sorted(pm.__all__, key=lambda name: (name.islower(), name)) == pm.__all__


def test_editors_are_offered_the_public_names_and_nothing_else():
    assert dir(pm) == sorted([*NAMES, *WITH_EXTRAS, "__version__"])


def test_type_checkers_see_the_same_names_in_the_same_modules():
    """The imports in the stub, by name, give the objects that the lazy imports give."""
    tree = ast.parse((files("peppermill") / "__init__.pyi").read_text(encoding="utf-8"))
    found = {
        (alias.asname or alias.name): (node.module, alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted(found) == sorted([*NAMES, *WITH_EXTRAS])
    for name, (module, attribute) in found.items():
        where = importlib.import_module(module)
        expected = getattr(where, attribute, None) or importlib.import_module(f"{module}.{attribute}")
        assert getattr(pm, name) is expected


def test_the_version_is_that_of_the_installed_package():
    assert pm.__version__ in (importlib.metadata.version("peppermill"), "from a checkout")


def test_a_name_that_is_not_there_is_missed_as_in_any_module():
    with pytest.raises(AttributeError, match="module 'peppermill' has no attribute 'PepRegressor'"):
        pm.PepRegressor  # noqa: B018


@pytest.mark.parametrize("name", [*pm.__all__, *WITH_EXTRAS])
def test_each_is_there_and_says_what_it_is(name):
    assert getattr(pm, name).__doc__


@pytest.mark.parametrize("name", METRICS)
def test_each_metric_is_a_function_of_two_tensors_or_one(name):
    """Log-probabilities and labels, or two samples; what else it takes has a default."""
    required = [
        parameter.annotation
        for parameter in inspect.signature(getattr(pm.metrics, name)).parameters.values()
        if parameter.default is parameter.empty
    ]
    assert required in (["Tensor", "Tensor"], ["Tensor"])


@pytest.mark.parametrize("name", sorted({*NAMES, *WITH_EXTRAS} - WITHOUT_ARGUMENTS))
def test_each_argument_is_described(name):
    """In the docstring, or on the page of arguments that mean the same everywhere."""
    found = getattr(pm, name)
    common = re.findall(r"`(\w+)`", (ROOT / "docs" / "api" / "arguments.md").read_text(encoding="utf-8"))
    own = re.findall(r"`(\w+)[`=]", inspect.getdoc(found))
    parameters = set(inspect.signature(found).parameters) - {"args", "kwargs", "deprecated"}
    assert parameters - {*common, *own} == set()


def test_types_are_for_users_too():
    assert (files("peppermill") / "py.typed").is_file()


USE = """
from torch import Tensor, nn
import peppermill as pm

def use(model: nn.Module, pep: pm.PepEnsemble, data: tuple[Tensor, Tensor], scores: pm.Scores) -> None:
    print(scores.nll.upper + pm.compare(model, pep, data).ece.p_value)
    reveal_type(pm.fit_temperature(model, data))
    reveal_type(pm.fit_calibrator(pep, data, "matrix"))
    reveal_type(pm.fit_calibrator(pm.McDropout(model), data))
    pm.fit(model, data, noise="uniform", search="golden", calibrator="vector", scale="layer", engine="auto:bfloat16")
    pm.fit(model, data, noise=pm.Noise("uniform"), search=pm.TwoStage(), likelihood=pm.Categorical(ignored_label=255))
    print(scores.nlll)
    pm.fit(model, data, noise="cauchy")
    pm.calibrate(model, data, engine="fast")
    pm.fit_calibrator(model, data, "isotonic")
"""


@pytest.mark.slow
def test_a_type_checker_knows_scores_and_options_by_name_and_what_comes_back(tmp_path):
    script = tmp_path / "use.py"
    script.write_text(USE)
    command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", script]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    kinds = re.findall(r'Revealed type is "peppermill\.([\w.]+)"', found)
    assert [kind.rpartition(".")[2] for kind in kinds] == ["PepEnsemble", "PepEnsemble", "Calibrated"]
    mistakes = {int(line): text for line, text in re.findall(r"use.py:(\d+): error: (.*)", found)}
    assert [USE.splitlines()[line - 1].strip() for line in mistakes] == [line.strip() for line in USE.splitlines()[-4:]]
    assert mistakes[12].startswith('"Scores" has no attribute "nlll"')
