"""What cannot be exported is refused in one line, and a file that was there stays as it was."""

import sys

import networks
import pytest
import torch
from torch import nn


@pytest.fixture
def refused(ensemble, tmp_path):
    """Export must fail, in one line, and leave the older file alone."""

    def run(model, example, match, path="model.pt2", error=ValueError):
        (tmp_path / "model.pt2").write_text("an older file")
        with pytest.raises(error, match=match) as found:
            ensemble(model, size=2).export(tmp_path / path, example)
        assert "\n" not in str(found.value)
        assert [one.name for one in tmp_path.iterdir()] == ["model.pt2"]
        assert (tmp_path / "model.pt2").read_text() == "an older file"

    return run


class Branching(nn.Module):
    """Another function where the mean of the batch is positive."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(networks.FEATURES, networks.CLASSES)

    def forward(self, inputs):
        return self.layer(inputs) if inputs.mean() > 0 else self.layer(-inputs)


class FixedBatch(Branching):
    def forward(self, inputs):
        return self.layer(inputs).reshape(4, networks.CLASSES)


class Random(Branching):
    def forward(self, inputs):
        return self.layer(nn.functional.dropout(inputs, 0.5, training=True))


def test_an_unknown_suffix(mlp, data, refused):
    refused(mlp, data[0], r"has an unknown suffix: choose one of \.pt2, \.onnx\.$", path="model.tflite")


def test_a_folder_that_is_a_file(mlp, data, refused):
    refused(mlp, data[0], "cannot be written: give the path of a file", path="model.pt2/model.onnx")


@pytest.mark.parametrize("name", ["onnx", "onnxscript", "onnxruntime"])
def test_onnx_without_its_packages(mlp, data, refused, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    match = rf'^writing ONNX needs {name}: `pip install "peppermill\[onnx\]"`\.$'
    refused(mlp, data[0], match, path="model.onnx", error=ImportError)


def test_a_branch_on_values(data, refused):
    refused(networks.seeded(Branching), data[0], "^this Branching cannot be exported: .*data-dependent")


def test_a_batch_size_in_the_code(data, refused):
    match = r"^this FixedBatch cannot be exported: it takes 4 items but not 8 \(shape '\[4, 3\]' is invalid"
    refused(networks.seeded(FixedBatch), data[0][:4], match)


@pytest.mark.filterwarnings("ignore:this Random gives other outputs")
def test_random_numbers_in_the_network(data, refused):
    refused(networks.seeded(Random), data[0], "model.pt2 was not written: .* differ from the ensemble's by up to 0")


def test_a_network_in_training_mode(cnn, images, refused):
    refused(cnn.train(), images[0], r"call `model\.eval\(\)` first")


@pytest.mark.parametrize("example", [torch.zeros(0, 6), torch.tensor(1.0), "text", {}, ()])
def test_an_example_without_items(mlp, refused, example):
    refused(mlp, example, "^`example` is a .*, in which no item was found: give a batch of inputs")


class Huge(nn.Module):
    """4 GiB of weights that take no memory."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 1).expand(2**15, 2**15))

    def forward(self, inputs):
        return inputs @ self.weight[: networks.FEATURES, : networks.CLASSES]


def test_more_than_one_onnx_file_can_hold(ensemble, data, tmp_path):
    with pytest.raises(ValueError, match=r"at most 2 GiB, and the members' weights are 4\.0 GiB: export to \.pt2"):
        ensemble(Huge().eval(), sigma=0.0).export(tmp_path / "model.onnx", data[0])
