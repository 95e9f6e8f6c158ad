"""`peppermill predict`: predictions for every item in an npz file that needs no pickle."""

from pathlib import Path

import numpy as np
import pandas
import pytest
from scipy.special import log_softmax, softmax

import peppermill as pm

ARGUMENTS = ("predict", "python:my_models:resnet", "npz:new.npz", "--weights", "resnet.safetensors")


def load(path):
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def test_the_network_alone(done, network, data):
    written = done(*ARGUMENTS)
    found = load("predictions.npz")
    inputs, labels = data("new")
    expected = log_softmax(network(inputs).detach().double().numpy(), axis=1)
    np.testing.assert_allclose(found["log_probs"], expected, atol=1e-6)
    np.testing.assert_array_equal(found["predicted"], expected.argmax(axis=1))
    np.testing.assert_array_equal(found["labels"], labels)
    assert written == "wrote predictions.npz: log_probs, predicted, labels of 300 items\n"


def test_the_ensemble(done, network, data):
    pep = pm.fit(network, data("validation"), size=3, temperature=True)
    pep.save("pep.json")
    done(*ARGUMENTS, "--pep", "pep.json", "--out", "deep/down.npz", "--batch-size", 11)
    expected = pep.predict_proba(data("new")[0]).detach()
    np.testing.assert_allclose(np.exp(load("deep/down.npz")["log_probs"]), expected, atol=1e-5)


def test_a_csv_holds_what_the_npz_holds(done):
    """Read by NumPy, with a column for each class."""
    done(*ARGUMENTS)
    assert done(*ARGUMENTS, "--out", "p.csv") == "wrote p.csv: log_probs, predicted, labels of 300 items\n"
    found, expected = np.genfromtxt("p.csv", delimiter=",", names=True), load("predictions.npz")
    assert found.dtype.names == ("predicted", "labels", "log_probs_0", "log_probs_1", "log_probs_2")
    for name in ("predicted", "labels"):
        np.testing.assert_array_equal(found[name], expected[name])
    columns = np.stack([found[f"log_probs_{k}"] for k in range(3)], axis=1)
    np.testing.assert_array_equal(columns, expected["log_probs"])


@pytest.mark.parametrize("options", [("--engine", "loop"), ("--engine", "vmap"), ("--precision", "bfloat16")])
def test_how_the_members_run_changes_little(done, network, data, options):
    """bfloat16 rounds to 8 bits: probabilities move in the third digit."""
    pep = pm.fit(network, data("validation"), size=3)
    pep.save("pep.json")
    done(*ARGUMENTS, "--pep", "pep.json", *options)
    expected = pep.predict_proba(data("new")[0]).detach()
    tolerance = 0.03 if "--precision" in options else 1e-5
    np.testing.assert_allclose(np.exp(load("predictions.npz")["log_probs"]), expected, atol=tolerance)


@pytest.mark.parametrize("with_ensemble", [False, True])
def test_a_regression_has_means_and_log_variances(done, folder, with_ensemble):
    with np.load("new.npz") as file:
        np.savez("real.npz", x=file["x"], y=file["x"][:, 0])
    model = ("python:my_models:fixed_regression", "npz:real.npz")
    options = ("--likelihood", "gaussian")
    if with_ensemble:
        done("fit", *model, *options, "--size", 2)
        options = ("--pep", "pep.json")
    done("predict", *model, *options)
    found = load("predictions.npz")
    assert set(found) == {"mean", "log_variance", "labels"}
    if not with_ensemble:
        np.testing.assert_allclose(found["mean"], load("real.npz")["x"].sum(axis=1), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found["log_variance"], 0.5)


def test_a_parquet_file_holds_what_the_npz_holds(done):
    """Read by pandas."""
    done(*ARGUMENTS, "--columns", "probabilities,entropy")
    written = done(*ARGUMENTS, "--columns", "probabilities,entropy", "--out", "p.parquet")
    assert written == "wrote p.parquet: probabilities, entropy, labels of 300 items\n"
    found, expected = pandas.read_parquet("p.parquet"), load("predictions.npz")
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(np.stack(found[name]), array)


def test_top_keeps_the_most_probable_classes(done, network, data):
    """Against a sort of the network's own outputs."""
    done(*ARGUMENTS, "--top", 2, "--columns", "probabilities,confidence")
    found, probabilities = load("predictions.npz"), softmax(network(data("new")[0]).detach().numpy(), axis=1)
    order = np.argsort(-probabilities, axis=1)[:, :2]
    np.testing.assert_array_equal(found["classes"], order)
    np.testing.assert_allclose(found["probabilities"], np.take_along_axis(probabilities, order, axis=1), rtol=1e-5)
    np.testing.assert_allclose(found["confidence"], probabilities.max(axis=1), rtol=1e-5)


# A folder of parts


def test_a_folder_gets_parts_and_the_same_command_goes_on(done, network, data):
    pm.fit(network, data("validation"), size=3).save("pep.json")
    command = (*ARGUMENTS, "--pep", "pep.json", "--out", "out/", "--batch-size", 40, "--part-items", 100)
    assert done(*command) == "wrote 3 of 3 parts into out: 300 items\n"  # three batches of 40 in a part
    parts = sorted(Path("out/parts").iterdir())
    assert [path.name.split(".")[1] for path in parts] == ["rows-0-120", "rows-120-240", "rows-240-300"]
    contents = [path.read_bytes() for path in parts]
    parts[1].unlink()
    assert done(*command) == "wrote 1 of 3 parts into out: 300 items\n"
    assert [path.read_bytes() for path in parts] == contents
    table, expected = pandas.read_parquet("out/parts"), pm.load("pep.json", network).predict_proba(data("new")[0])
    np.testing.assert_allclose(np.exp(np.stack(table["log_probs"])), expected, atol=1e-6)
    np.testing.assert_array_equal(table["labels"], data("new")[1])
    np.testing.assert_array_equal(table["row"], np.arange(300))


# Columns


def test_columns_say_how_sure_the_members_are(done, network, data):
    pep = pm.fit(network, data("validation"), size=3, temperature=True)
    pep.save("pep.json")
    names = ["probabilities", "predicted", "confidence", "entropy", "mutual_information"]
    written = done(*ARGUMENTS, "--pep", "pep.json", "--columns", ", ".join(names))
    found, expected = load("predictions.npz"), pep.uncertainty(data("new")[0])
    assert list(found) == [*names, "labels"]
    assert written == f"wrote predictions.npz: {', '.join(names)}, labels of 300 items\n"
    for name in names[2:]:
        np.testing.assert_allclose(found[name], getattr(expected, name), atol=1e-5)
    np.testing.assert_allclose(found["probabilities"], expected.outputs.exp(), atol=1e-5)


def test_a_table_has_a_row_for_each_item(done, network, data, unlabelled):
    """pandas reads what Python's csv wrote; without labels there is no column of them."""
    pm.fit(network, data("validation"), size=3).save("pep.json")
    columns = ("--columns", "probabilities,confidence,disagreement", "--pep", "pep.json")
    done(*unlabelled, *columns, "--out", "table.csv")
    done(*ARGUMENTS, *columns)
    table, arrays = np.genfromtxt("table.csv", delimiter=",", names=True), load("predictions.npz")
    probabilities = ("probabilities_0", "probabilities_1", "probabilities_2")
    assert table.dtype.names == ("confidence", "disagreement", *probabilities)
    np.testing.assert_allclose(table["confidence"], arrays["confidence"], atol=1e-6)
    np.testing.assert_allclose(
        np.stack([table[name] for name in probabilities], axis=1), arrays["probabilities"], atol=1e-6
    )


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ("entropy,mutual_information", "no 'mutual_information' here, only log_probs, predicted, probabilities, conf"),
        ("mutual_information", "Members, and what they do not agree on, come with an ensemble: `--pep`."),
        ("", "there is no '' here"),
    ],
)
def test_columns_that_are_not_there_are_refused(peppermill, folder, columns, match):
    found = peppermill(*ARGUMENTS, "--columns", columns)
    assert found.exit_code == 2
    assert match in " ".join(found.stderr.split())


# Data without labels


@pytest.fixture
def unlabelled(folder):
    np.savez("bare.npz", x=load("new.npz")["x"])
    return ("predict", "python:my_models:resnet", "npz:bare.npz", "--weights", "resnet.safetensors")


@pytest.mark.parametrize("with_ensemble", [False, True])
def test_without_labels_the_predictions_are_the_same(done, network, data, unlabelled, with_ensemble):
    options = ("--batch-size", 11)
    if with_ensemble:
        pm.fit(network, data("validation"), size=3, temperature=True).save("pep.json")
        options = ("--pep", "pep.json", *options)
    done(*ARGUMENTS, *options, "--out", "labelled.npz")
    written = done(*unlabelled, *options, "--out", "bare-predictions.npz")
    found, expected = load("bare-predictions.npz"), load("labelled.npz")
    np.testing.assert_allclose(found["log_probs"], expected["log_probs"], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found["predicted"], expected["predicted"])
    assert set(found) == {"log_probs", "predicted"}
    assert written == "wrote bare-predictions.npz: log_probs, predicted of 300 items\n"


@pytest.mark.parametrize(
    ("likelihood", "names"), [("gaussian", ["mean", "log_variance"]), ("bernoulli", ["log_probs"])]
)
def test_every_likelihood_does_without_labels(done, folder, unlabelled, likelihood, names):
    """The fixed regression gives the sum of the inputs and one half; as a logit, p(yes) = 1 / (1 + exp(-z))."""
    model = "python:my_models:fixed_regression"
    done("predict", model, "npz:bare.npz", "--likelihood", likelihood)
    found, sums = load("predictions.npz"), load("bare.npz")["x"].sum(axis=1)
    assert set(names) <= set(found)
    assert "labels" not in found
    if likelihood == "gaussian":
        np.testing.assert_allclose(found["mean"], sums, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found["log_variance"], 0.5)
    else:
        yes = np.exp(found["log_probs"][..., 1])  # [300, 2]: two logits for each item are two questions
        np.testing.assert_allclose(yes[:, 0], 1 / (1 + np.exp(-sums.astype(np.float64))), rtol=1e-4, atol=1e-6)


def test_a_factory_may_return_inputs_alone(done, folder):
    with open("my_models.py", "a") as file:
        file.write("\ndef inputs():\n    return torch.ones(5, 6)\n")
    assert done("predict", "python:my_models:quiet", "python:my_models:inputs").endswith("predicted of 5 items\n")


@pytest.mark.parametrize(
    ("model", "match"),
    [("softmaxed", "the network's outputs look like probabilities"), ("single", "leaves fewer than two classes")],
)
def test_outputs_that_are_no_logits_are_refused_without_labels_too(peppermill, unlabelled, model, match):
    found = peppermill("predict", f"python:my_models:{model}", "npz:bare.npz")
    assert found.exit_code == 2
    assert match in " ".join(found.stderr.split())


@pytest.mark.parametrize("command", ["fit", "evaluate", "sweep"])
def test_who_needs_labels_says_so(peppermill, unlabelled, command):
    found = peppermill(command, *unlabelled[1:])
    assert found.exit_code == 2
    assert "bare.npz has no array y, only x" in found.stderr


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"z": np.ones(3)}, "bare.npz has no array x, only z: save it with"),
        ({"x": np.ones((0, 6))}, "`data` has no items"),
        (
            {"x": np.full((3, 6), np.nan)},
            "the prediction for item 0 is NaN: check the network's weights and this input.",
        ),
        (
            {"x": np.ones((3, 6)), "y": np.ones(2, dtype=int)},
            "bare.npz have different lengths (x 3, y 2): each input needs one label",
        ),
    ],
)
def test_inputs_that_are_none_are_refused(peppermill, unlabelled, arrays, match):
    np.savez("bare.npz", **arrays)
    found = peppermill(*unlabelled)
    assert found.exit_code == 2
    assert match in " ".join(found.stderr.split())
