"""Weights in files of any kind, `checkpoint:`, and archives of `torch.export`."""

import os
import pickle
import zipfile

import numpy as np
import pytest
import torch
from networks import seeded
from safetensors.torch import save_file
from torch import nn

import peppermill as pm
from peppermill.sources import source_from
from peppermill.sources.weight_files import load_weights, read_checkpoint

from . import tiny


def network():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


@pytest.fixture
def model():
    return seeded(network)


@pytest.fixture
def archive(model, tmp_path):
    batch = torch.export.Dim("batch", min=1, max=1000)
    program = torch.export.export(model, (torch.zeros(2, 1, 6, 6),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "model.pt2")
    return tmp_path / "model.pt2"


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda s: s,
        lambda s: {"state_dict": s, "epoch": 3},
        lambda s: {"model": s},
        lambda s: {"epoch": 3, "model_state_dict": s},
        lambda s: {f"module.{name}": value for name, value in s.items()},
        lambda s: {"model": {f"_orig_mod.{name}": value for name, value in s.items()}},
        lambda s: {f"module._orig_mod.{name}": value for name, value in s.items()},
        lambda s: {"state_dict": {f"net.{name}": value for name, value in s.items()} | {"loss.weight": torch.ones(3)}},
    ],
)
@pytest.mark.parametrize("file", ["weights.pth", "weights.th", "weights"])
def test_a_torch_file_gives_its_weights_also_from_where_training_programs_put_them(model, wrapped, file, tmp_path):
    """Known by its content: the name says nothing."""
    torch.save(wrapped(model.state_dict()), tmp_path / file)
    other = seeded(network, seed=1)
    load_weights(other, tmp_path / file)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in other.state_dict().items())


@pytest.mark.parametrize("file", ["weights.safetensors", "weights.bin", "weights"])
def test_a_safetensors_file_is_known_by_its_content(model, file, tmp_path):
    save_file(model.state_dict(), tmp_path / file)
    found = read_checkpoint(tmp_path / file)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in found.items())


class Malicious:
    """Would make a folder if it were unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (os.mkdir, (self.path,))


def test_a_file_that_would_run_code_is_refused_and_does_not(model, tmp_path):
    torch.save({"state_dict": model.state_dict(), "extra": Malicious(tmp_path / "ran")}, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match="holds more than numbers, which could run code when opened, and is refused"):
        load_weights(model, tmp_path / "weights.pt")
    assert not (tmp_path / "ran").exists()


def test_a_whole_pickled_network_is_refused(model, tmp_path):
    torch.save(model, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=r"is refused: save `model\.state_dict\(\)` alone"):
        load_weights(model, tmp_path / "model.pt")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"hello world", r"weights\.pt is not a file that `torch\.save` wrote, or is truncated"),
        (b"neither", r"weights\.pt is not a file that `torch\.save` wrote, or is truncated"),
        (b"", r"weights\.pt is not a file that `torch\.save` wrote, or is truncated"),
        (pickle.dumps({"a": 1}, protocol=2), r"weights\.pt is not a file that `torch\.save` wrote, or is truncated"),
    ],
)
def test_what_is_no_torch_file_is_told_so(model, content, match, tmp_path):
    (tmp_path / "weights.pt").write_bytes(content)
    with pytest.raises(ValueError, match=match):
        load_weights(model, tmp_path / "weights.pt")


def test_a_truncated_torch_file_is_told_so(model, tmp_path):
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    whole = (tmp_path / "weights.pt").read_bytes()
    (tmp_path / "weights.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"is not a file that `torch\.save` wrote, or is truncated"):
        load_weights(model, tmp_path / "weights.pt")


@pytest.mark.parametrize(
    ("content", "found"), [({"epoch": 3, "net": {}}, " but epoch, net"), ([1, 2], ""), (torch.zeros(3), "")]
)
def test_a_torch_file_without_a_state_dict_is_told_so(model, content, found, tmp_path):
    torch.save(content, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=rf"weights\.pt holds no arrays by name{found}: save `model\.state_dict\(\)`"):
        load_weights(model, tmp_path / "weights.pt")


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_program_of_torchscript_is_told_so_in_one_line(model, tmp_path):
    torch.jit.save(torch.jit.script(model), tmp_path / "weights.pt")
    with pytest.raises(
        ValueError, match=r"weights\.pt is a program of TorchScript, .*: save `model\.state_dict\(\)` al"
    ):
        load_weights(model, tmp_path / "weights.pt")


def test_weights_of_another_network_are_told_what_does_not_fit(model, tmp_path):
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=r"Missing key.*: (\"[\w.]+\"(, )?){3} and 5 others\. \(and 1 more\)$"):
        load_weights(model, tmp_path / "weights.pt")


def test_weights_for_other_classes_are_told_how_many(model, tmp_path):
    other = nn.Sequential(*network()[:4], nn.Linear(64, 7))
    torch.save(other.state_dict(), tmp_path / "weights.pt")
    with pytest.raises(
        ValueError, match=r"size mismatch for 4\.weight: .* say how many .* as in `timm:NAME\?classes=7`"
    ):
        load_weights(model, tmp_path / "weights.pt")


def test_weights_without_a_network_are_asked_for_one():
    with pytest.raises(
        ValueError, match=r"names weights and no network: name one after an @, as in `checkpoint:w\.pt@"
    ):
        source_from("checkpoint:w.pt")


def test_a_path_with_an_at_sign_is_read_up_to_the_last_one(tmp_path):
    with pytest.raises(ValueError, match=r"there is no file a@b\.pt: give the path of the weights, a \.safetensors, "):
        source_from("checkpoint:a@b.pt@timm:resnet18")


def test_an_archive_is_a_whole_network(archive, model):
    inputs = torch.randn(7, 1, 6, 6)
    with torch.no_grad():
        torch.testing.assert_close(source_from(f"checkpoint:{archive}", trust=True).model(inputs), model(inputs))


def test_the_command_line_fits_and_evaluates_an_archive(archive, model, tmp_path, monkeypatch):
    """With the same sigma as the network in Python."""
    monkeypatch.chdir(tmp_path)
    generator = torch.Generator().manual_seed(0)
    inputs = 9 * torch.randn(80, 1, 6, 6, generator=generator)
    labels = torch.multinomial((model(inputs).detach() / 4).softmax(dim=1), 1, generator=generator)[:, 0]
    np.savez("images.npz", x=inputs.numpy(), y=labels.numpy())
    fitted = tiny.run("fit", "checkpoint:model.pt2", "npz:images.npz", "--size", "4", "--trust")
    assert fitted.exit_code == 0, fitted.stderr
    expected = pm.fit(model, (inputs, labels), size=4)
    assert expected.sigma > 0
    assert f"sigma = {expected.sigma:.4g}, found with" in fitted.stdout
    scored = tiny.run("evaluate", "checkpoint:model.pt2", "npz:images.npz", "--pep", "pep.json", "--trust")
    assert scored.exit_code == 0, scored.stderr
    assert f"{pm.evaluate(expected, (inputs, labels)).nll.value:.4f}" in scored.stdout


def rewritten(archive, change):
    """The archive with members changed, added or left out."""
    with zipfile.ZipFile(archive) as old:
        members = {name: old.read(name) for name in old.namelist()}
    change(members)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as new:
        for name, content in members.items():
            new.writestr(name, content)


def test_an_archive_runs_code_and_is_opened_only_if_it_is_trusted(archive, tmp_path, monkeypatch):
    """By every command; also behind an @."""

    def change(members):
        [name] = [name for name in members if name.endswith("sample_inputs/model.pt")]
        torch.save(((Malicious(tmp_path / "ran"),), {}), tmp_path / "inputs.pt")
        members[name] = (tmp_path / "inputs.pt").read_bytes()

    rewritten(archive, change)
    monkeypatch.chdir(tmp_path)
    for model in ("checkpoint:model.pt2", "checkpoint:weights.pt@checkpoint:model.pt2"):
        for arguments in (
            *(
                (command, model, "npz:images.npz")
                for command in ("fit", "evaluate", "predict", "sweep", "curvature", "calibrate")
            ),
            *((command, model, "--pep", "pep.json", "--shape", "1,6,6") for command in ("export",)),
            ("size", model, "npz:images.npz", "--pep", "pep.json"),
            (
                "probe",
                "w.pt",
                "--model",
                model,
                "--train",
                "npz:a.npz",
                "--validation",
                "npz:a.npz",
                "--test",
                "npz:a.npz",
            ),
        ):
            found = tiny.run(*arguments)
            assert found.exit_code == 2
            assert (
                "checkpoint:model.pt2 is a program and can run any code when it is opened: add `--trust`"
                in found.stderr
            )
    assert not (tmp_path / "ran").exists()
    tiny.run("evaluate", "checkpoint:model.pt2", "npz:images.npz", "--trust")
    assert (tmp_path / "ran").exists()


def test_what_is_no_archive_is_told_so(archive, tmp_path, caplog):
    """In one line: torch's own log of its traceback is not shown."""
    (tmp_path / "text.pt2").write_text("neither")
    rewritten(archive, lambda members: [members.pop(name) for name in list(members) if "models/" in name])
    for name in ("text.pt2", "model.pt2"):
        with pytest.raises(
            ValueError, match=rf"{name} is not an archive that `torch\.export\.save` .* wrote, or is damaged\.$"
        ):
            source_from(f"checkpoint:{tmp_path}/{name}", trust=True)
    with pytest.raises(ValueError, match=r"there is no file .*nowhere\.pt2"):
        source_from(f"checkpoint:{tmp_path}/nowhere.pt2", trust=True)
    assert caplog.records == []
