"""Every mistake that can be made on the command line: exit code 2, a line or two with the cure, no file touched."""

import json
import re
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from peppermill.cli import app

MODEL, DATA = "python:my_models:resnet", "npz:validation.npz"
WEIGHTS = ("--weights", "resnet.safetensors")


@pytest.fixture
def validation(folder):
    """Change the arrays of validation.npz."""

    def change(**arrays):
        with np.load("validation.npz") as file:
            old = dict(file)
        np.savez("validation.npz", **{**old, **{k: v(old[k]) if callable(v) else v for k, v in arrays.items()}})

    return change


@pytest.fixture
def refused(peppermill, folder, request):
    """Run a command that must be refused."""

    def run(*arguments, match):
        request.getfixturevalue("untouched")
        found = peppermill(*arguments)
        message = " ".join(found.stderr.split())
        assert found.exit_code == 2, found.stdout
        assert len(found.stderr.strip().splitlines()) <= 2
        assert found.stderr.startswith("error: ")
        assert "Traceback" not in found.stdout + found.stderr
        assert found.stdout == ""
        assert match in message
        return message

    return run


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"y": lambda y: y.astype(np.float32)}, "labels have type torch.float32, but class numbers are integers"),
        ({"y": lambda y: y + 1}, "labels run from 1 to 3, but the network has 3 classes: labels must lie in 0..2"),
        ({"y": lambda y: y - 5}, "labels run from -5 to -3, but the network has 3 classes"),
        (
            {"y": lambda y: y[:-1]},
            "the arrays of validation.npz have different lengths (x 300, y 299): each input needs one label",
        ),
        ({"x": lambda x: x[:0], "y": lambda y: y[:0]}, "`validation` has no items: give at least one labelled batch"),
        ({"y": lambda y: np.eye(3, dtype=int)[y]}, "one-hot labels need `labels.argmax(dim=1)`"),
        ({"y": lambda y: y * 0 - 100}, "`validation` has no item that counts: every label is the ignored one"),
        ({"x": lambda x: x * np.nan}, "the network itself, without any noise, gives outputs that are NaN or infinite"),
        ({"x": lambda x: x[:, :5]}, "RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
        ({"x": np.array([{"a": 1}], dtype=object)}, "the array x of validation.npz holds pickled objects"),
        ({"y": np.array(["cat"] * 300)}, "the array y of validation.npz has shape [300] and type <U3"),
    ],
)
def test_data_that_do_not_fit(validation, refused, change, match):
    validation(**change)
    refused("fit", MODEL, DATA, *WEIGHTS, match=match)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ("npz:nowhere.npz", "there is no file nowhere.npz: save one with `np.savez(path, x=inputs, y=labels)`."),
        ("npz:my_models.py", "my_models.py is not an npz file, or is truncated"),
        ("npz:resnet.safetensors", "resnet.safetensors is not an npz file, or is truncated"),
        ("absent.npz", "there is no file absent.npz"),
        (".", "Did you mean `imagefolder:.`?"),
        ("csv:validation.csv", "DATA 'csv:validation.csv' must begin with one of"),
        ("python:my_models:nowhere", "my_models has no function 'nowhere'; it has"),
        ("python:my_models:number", "`validation` is a int: give a DataLoader, a Dataset"),
    ],
)
def test_data_that_are_not_there(refused, data, match):
    refused("fit", MODEL, data, *WEIGHTS, match=match)


@pytest.mark.parametrize(
    ("model", "match"),
    [
        ("my_models:resnet", "as in `timm:resnet50`. Did you mean `python:my_models:resnet`?"),
        ("keras9:resnet", "MODEL 'keras9:resnet' must begin with one of"),
        ("python:my_models", "must name a module and a function in it, as in `python:package.module:factory`"),
        (
            "python:their_models:resnet",
            "there is no module 'their_models'. Run the command in the folder that holds it",
        ),
        ("python:my_models:restnet", "my_models has no function 'restnet'; did you mean resnet?"),
        ("python:my_models:vgg", "my_models has no function 'vgg'; it has "),
        ("python:my_models:number", "returned int, which is not a torch.nn.Module"),
        ("python:my_models:softmaxed", "the network's outputs look like probabilities"),
        ("python:torch.nn:Linear", "is called without arguments, and cannot be"),
        (
            "python:my_models:unpacking",
            "error: ValueError: not enough values to unpack (expected 3, got 2) (`peppermill",
        ),
        ("python:torch.nn:Identity", "it has no floating-point parameter at all"),
        ("python:../nets:f", "python:../nets:f must name a module and a function in it, as in `python:package.module"),
        ("python:my_models:leaving", "python:my_models:leaving ended Python with exit code 7: let it return what it"),
        ("python:my_models:lazy", "`0.weight` is sparse, or has no values yet: call the network once"),
        ("python:my_models:Sparse", "`weight` is sparse, or has no values yet"),
        ("python:my_models:scripted", "`model` is a program of TorchScript, which cannot be perturbed: pass the"),
        ("python:my_models:traced", "`model` is a program of TorchScript, which cannot be perturbed: pass the"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_models_that_are_not_there_or_are_none(refused, model, match):
    refused("fit", model, DATA, match=match)


def test_a_script_that_ends_python_when_it_is_imported(folder, refused):
    (folder / "script.py").write_text("import sys\nsys.exit()\n")
    refused("fit", "python:script:main", DATA, match="python:script:main ended Python with exit code None")


def test_a_selection_without_a_number(refused):
    arguments = ("fit", "python:my_models:Empty", DATA, "--parameters", "nothing")
    refused(*arguments, match="`parameters='nothing'` selects nothing in this Empty")


@pytest.mark.parametrize("kind", [torch.int64, torch.bool, torch.complex64])
def test_weights_that_are_not_real_numbers(folder, refused, kind):
    """load_state_dict would cast them."""
    state = {name: value.to(kind) for name, value in load_file("resnet.safetensors").items()}
    torch.save(state, "cast.pt")
    refused(
        "evaluate", MODEL, DATA, "--weights", "cast.pt", match=f"cast.pt has {kind} for `0.weight`, which is torch.f"
    )


def test_weights_that_do_not_fit(folder, refused):
    message = refused(
        "fit", "python:my_models:narrow", DATA, *WEIGHTS, match="does not fit this Sequential: size mismatch"
    )
    assert message.endswith("(and 2 more)")


def test_weights_of_which_some_are_missing(folder, refused):
    state = load_file("resnet.safetensors")
    save_file({name: state[name] for name in ("0.weight", "0.bias")}, "resnet.safetensors")
    refused("fit", MODEL, DATA, *WEIGHTS, match='Missing key(s) in state_dict: "2.weight", "2.bias".')


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers(folder, refused, value):
    state = load_file("resnet.safetensors")
    save_file({name: torch.full_like(tensor, value) for name, tensor in state.items()}, "resnet.safetensors")
    refused("fit", MODEL, DATA, *WEIGHTS, match="the network itself, without any noise, gives outputs that are NaN or")


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("cut.safetensors", "cut.safetensors is not a safetensors file, or is truncated"),
        ("text.pt", "text.pt is not a file that `torch.save` wrote, or is truncated"),
        ("missing.pt", "there is no file missing.pt: give the path of the weights"),
        ("folder", "there is no file folder: give the path of the weights"),
    ],
)
def test_weights_that_are_not_in_a_file_of_weights(folder, refused, name, match):
    (folder / "cut.safetensors").write_bytes((folder / "resnet.safetensors").read_bytes()[:500])
    (folder / "text.pt").write_text("weights")
    (folder / "folder").mkdir()
    refused("fit", MODEL, DATA, "--weights", name, match=match)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (("--size", 0), "`size=0` must be a whole number of members, 1 to 1,000,000"),
        (("--size", -4), "`size=-4` must be a whole number of members"),
        (("--lower", 0.2, "--upper", 0.1), "`lower=0.2` must be below `upper=0.1`: exchange them or widen"),
        (("--size", 10**12), "`size=1000000000000` must be a whole number of members, 1 to 1,000,000"),
        (("--split-seed", 3), "`--split-seed 3` draws the items of `--validation`: say how many, as in `--validation"),
        (("--lower", 0.2, "--upper", 0.2), "`lower=0.2` must be below `upper=0.2`"),
        (("--lower", -1), "`lower=-1.0` must be a size of noise, zero or positive"),
        (("--upper", 0), "`lower=0.0` must be below `upper=0.0`"),
        (("--upper", "nan"), "must be below `upper=nan`"),
        (("--iterations", 0), "`iterations=0` must be at least 1"),
        (("--batch-size", 0), "`batch_size=0` must be at least 1 item"),
        (("--parameters", "conv"), "`parameters='conv'` selects nothing in this Sequential"),
        (("--parameters", "block9"), 'These would select something: "kernels" (2 arrays)'),
        (("--parameters", "("), "is neither one of conv, kernels, last_layer, lora, all nor a regular expression"),
        (("--noise", "pink"), "`noise='pink'` is unknown: choose one of gaussian, uniform"),
        (
            ("--likelihood", "poisson"),
            "`likelihood='poisson'` is unknown: choose one of categorical, bernoulli, gaussian",
        ),
        (("--likelihood", "gaussian"), "a Gaussian likelihood needs a mean and a log-variance"),
        (("--likelihood", "gaussian", "--temperature"), "a Gaussian likelihood has no temperature"),
        (("--device", "toaster"), "`--device toaster` cannot be used here: try `--device cpu`"),
        (("--device", "meta"), "`--device meta` cannot be used here"),
        (("--device", "cuda:99"), "`--device cuda:99` cannot be used here ("),
        (("--out", "my_models.py/pep.json"), "my_models.py/pep.json cannot be written: give the path of a file"),
        (("--out", "."), ". cannot be written: give the path of a file"),
    ],
)
def test_options_of_fit(refused, options, match):
    refused("fit", MODEL, DATA, *WEIGHTS, *options, match=match)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (("--sigmas", "small,large"), "`--sigmas small,large` must be numbers separated by commas, as in 0.001,0.002"),
        (("--sigmas", "0.1,"), "must be numbers separated by commas"),
        (("--sigmas", "0.1,-0.2"), "`sigmas=[0.1, -0.2]` must be sizes of noise, zero or positive, and finite"),
        (("--sigmas", "nan"), "must be sizes of noise"),
        (("--sigmas", "inf"), "must be sizes of noise"),
        (("--bins", 0), "`bins=0` must lie in 1..1,000"),
        (("--size", 0), "`size=0` must be a whole number"),
        (("--likelihood", "gaussian"), "`sweep_sigma` scores classifiers"),
        (("--picture", "curve.xyz"), "curve.xyz must end in one of .png, .svg, .pdf"),
        (("--picture", "my_models.py/curve.png"), "cannot be written"),
        (("--out", "."), "cannot be written"),
    ],
)
def test_options_of_sweep(refused, options, match):
    refused("sweep", MODEL, DATA, *WEIGHTS, *options, match=match)


@pytest.mark.parametrize("command", ["evaluate", "predict"])
@pytest.mark.parametrize(
    ("options", "match"),
    [
        (("--pep", "nowhere.json"), "there is no file nowhere.json."),
        (
            ("--pep", "resnet.safetensors"),
            "resnet.safetensors is not a text file: it is corrupted or holds something else",
        ),
        (("--pep", "my_models.py"), "my_models.py is not JSON (line 2): it is truncated or corrupted"),
        (("--pep", "."), ". cannot be read: it is a folder, a device or a pipe"),
        (("--likelihood", "poisson"), "`likelihood='poisson'` is unknown"),
        (("--batch-size", -3), "`batch_size=-3` must be at least 1 item"),
        (("--out", "my_models.py/p.npz"), "cannot be written"),
        (("--engine", "loop"), "`--engine` and `--precision` are for the members of an ensemble: name it with `--pep"),
        (("--precision", "bfloat16"), "`--engine` and `--precision` are for the members of an ensemble: name it with"),
    ],
)
def test_options_of_evaluate_and_predict(refused, command, options, match):
    refused(command, MODEL, DATA, *WEIGHTS, *options, match=match)


def test_class_names_in_a_file_that_is_no_text(refused):
    options = (*WEIGHTS, "--class-names", "validation.npz")
    refused("evaluate", MODEL, DATA, *options, match="validation.npz is not a text file: expected the name of a class")


def test_more_directions_than_can_ever_be_tried(refused):
    refused("curvature", MODEL, DATA, *WEIGHTS, "--probes", 10**12, match="must be a whole number, 3 (for an error) to")


def test_a_seed_below_zero(refused):
    refused("evaluate", MODEL, DATA, *WEIGHTS, "--seed", -1, match="invalid value for '--seed'")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (("p.npy",), "`--out p.npy` must end in .npz, .csv or .parquet, or be a folder, without a dot."),
        ((".",), ". holds other files and no manifest.json: name a new or an empty folder."),
        (("p", "--format", "avro"), "`format='avro'` must be one of parquet, npz."),
        (("p", "--part-items", 0), "`part_items=0` must be at least 1."),
        (("p", "--top", 0), "`top=0` must be at least 1"),
        (("p", "--top", 2, "--columns", "predicted"), "with a column log_probs or probabilities to shorten."),
    ],
)
def test_predictions_where_they_cannot_be_written(refused, options, match):
    refused("predict", MODEL, DATA, *WEIGHTS, "--out", *options, match=match)


def test_no_bins(refused):
    refused("evaluate", MODEL, DATA, *WEIGHTS, "--bins", 0, match="`bins=0` must lie in 1..1,000")


def change_pep(**changes):
    """Change entries of pep.json, an absent one where the value is None, a deeper one as a dict."""
    with open("pep.json") as file:
        content = json.load(file)
    for key, value in changes.items():
        content[key] = {**content[key], **value} if isinstance(value, dict) else value
    with open("pep.json", "w") as file:
        json.dump({key: value for key, value in content.items() if value is not None}, file)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"sigma": None}, "pep.json is damaged (sigma is None): fit and save the ensemble again"),
        ({"sigma": "large"}, "pep.json is damaged"),
        ({"sigma": -0.1}, "pep.json is damaged"),
        ({"temperature": 0}, "pep.json is damaged"),
        ({"size": "ten"}, "pep.json is damaged"),
        ({"size": 0}, "pep.json is damaged"),
        ({"noise": {"law": "pink"}}, "pep.json is damaged (it was changed after it was written)"),
        ({"noise": {"antithetic": "no"}}, "pep.json is damaged"),
        ({"likelihood": {"name": "poisson"}}, "pep.json is damaged (it was changed after it was written)"),
        ({"selection": {"mask": "everything"}}, "pep.json is damaged"),
        ({"selection": {"mask": "0x0"}}, "pep.json is damaged"),
        ({"search": {"evaluations": 3}}, "pep.json is damaged"),
        ({"fingerprint": None}, "pep.json is damaged (fingerprint."),
        ({"version": 99}, "has version 99, and this library reads up to 2: install a newer peppermill"),
        ({"format": "another tool"}, "pep.json is not a peppermill ensemble: it was written by another tool"),
    ],
)
@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_an_ensemble_that_is_damaged(done, refused, command, changes, match):
    done("fit", MODEL, DATA, *WEIGHTS, "--size", 2, "--upper", 0.1, "--iterations", 1)
    change_pep(**changes)
    refused(command, MODEL, DATA, *WEIGHTS, "--pep", "pep.json", match=match)


def test_an_ensemble_that_is_truncated(done, refused, folder):
    done("fit", MODEL, DATA, *WEIGHTS, "--size", 2, "--upper", 0.1, "--iterations", 1)
    (folder / "pep.json").write_text((folder / "pep.json").read_text()[:400])
    refused("evaluate", MODEL, DATA, *WEIGHTS, "--pep", "pep.json", match="pep.json is not JSON (line")
    refused("info", "pep.json", match="pep.json is not JSON (line")


def test_an_ensemble_of_another_network(done, refused):
    done("fit", MODEL, DATA, *WEIGHTS, "--size", 2, "--upper", 0.1, "--iterations", 1)
    refused(
        "evaluate", MODEL, DATA, "--pep", "pep.json",
        match="pep.json was fitted on another network: this Sequential differs, its parameters have other values",
    )  # fmt: skip
    refused("evaluate", "python:my_models:narrow", DATA, "--pep", "pep.json", match="differs, it has 4 arrays with 313")


def test_a_likelihood_that_contradicts_the_ensemble(done, refused):
    done("fit", MODEL, DATA, *WEIGHTS, "--size", 2, "--upper", 0.1, "--iterations", 1)
    refused(
        "evaluate", MODEL, DATA, *WEIGHTS, "--pep", "pep.json", "--likelihood", "gaussian",
        match="`--likelihood gaussian` contradicts pep.json, fitted with categorical: leave the option out",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("path", "match"),
    [
        ("nowhere.json", "there is no file nowhere.json."),
        ("resnet.safetensors", "is not a text file"),
        ("my_models.py", "my_models.py is not JSON"),
        (".", "cannot be read: it is a folder, a device or a pipe"),
    ],
)
def test_info_on_what_it_does_not_know(refused, path, match):
    refused("info", path, match=match)


@pytest.mark.parametrize("kind", ["peppermill ensemble", "peppermill run"])
def test_info_on_a_file_without_its_parts(refused, folder, kind):
    parts = {"title": "", "settings": {}, "provenance": {}, "methods": [{"name": "network"}]}
    (folder / "a.json").write_text(json.dumps({"format": kind, "version": 1, **parts}))
    refused("info", "a.json", match="a.json is damaged")


def test_the_demo_checks_its_folder_first(refused):
    refused("demo", "--out", "my_models.py", match="my_models.py/run.json cannot be written")


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("fit",), "missing argument 'MODEL': see `"),
        (("fit", MODEL), "missing argument 'DATA'"),
        (("fit", MODEL, DATA, "--sise", "3"), "no such option"),
        (("fit", MODEL, DATA, "--size", "x"), "invalid value for '--size'"),
        (("fit", MODEL, DATA, "--size"), "option '--size' requires an argument"),
        (("predict", MODEL, DATA, "more"), "got unexpected extra argument"),
        (("fyt",), "no such command 'fyt'"),
        (("fti",), "no such command 'fti'. Did you mean 'fit'?"),
        (("--nope",), "no such option"),
    ],
)
def test_what_cannot_be_parsed_gets_one_line_that_points_to_the_help(peppermill, refused, arguments, match):
    message = refused(*arguments, match=match)
    assert re.search(r"see `\S+( \w+)? --help`\.$", message)
    assert len(peppermill(*arguments).stderr.splitlines()) == 1


def test_the_help_that_is_pointed_to_is_that_of_the_command(peppermill):
    assert re.search(r"see `\S+ fit --help`\.", peppermill("fit").stderr)


@pytest.mark.parametrize("place", [0, 1, 3, 5])
def test_debug_shows_the_traceback_wherever_it_stands(folder, monkeypatch, place):
    arguments = ["fit", MODEL, DATA, "--size", "0"]
    monkeypatch.setattr(sys, "argv", ["peppermill", *arguments[:place], "--debug", *arguments[place:]])
    with pytest.raises(ValueError, match="`size=0` must be a whole number of members"):
        app.main()


def test_without_debug_there_is_none(folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["peppermill", "fit", MODEL, DATA, "--size", "0"])
    with pytest.raises(SystemExit) as stopped:
        app.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("error: `size=0` must be")


@pytest.mark.parametrize("command", ["fit", "sweep", "evaluate", "predict"])
@pytest.mark.parametrize(
    ("options", "match"),
    [
        (("--engine", "turbo"), "`engine='turbo'` is unknown: choose one of auto, loop, vmap, graphs, compile."),
        (("--precision", "int8"), "`precision='int8'` is unknown: choose one of bfloat16, float16"),
    ],
)
def test_ways_to_run_that_have_no_name(refused, command, options, match):
    refused(command, MODEL, DATA, *WEIGHTS, *options, match=match)
