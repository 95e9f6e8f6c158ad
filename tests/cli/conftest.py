"""A folder as a user has it: a module with models, weights in a safetensors file, data in npz files."""

import hashlib
import importlib
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner

from peppermill.cli.app import app

MODELS = '''
import time
from pathlib import Path

import torch
from torch import nn


def resnet():
    """A small network under a large name: 6 numbers in, 3 classes out."""
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))


def narrow():
    return nn.Sequential(nn.Linear(6, 31), nn.ReLU(), nn.Linear(31, 3))


def flat():
    """Pictures of 4 x 4 pixels in."""
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def softmaxed():
    return nn.Sequential(resnet(), nn.Softmax(dim=1))


def half():
    return resnet().bfloat16()


def single():
    return nn.Linear(6, 1)


def regression():
    return nn.Linear(6, 2)


def fixed_regression():
    """The mean is the sum of the inputs, the log-variance one half."""
    network = nn.Linear(6, 2)
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[1.0] * 6, [0.0] * 6]))
        network.bias.copy_(torch.tensor([0.0, 0.5]))
    return network


def quiet():
    """A network that draws nothing from the global generator."""
    with torch.random.fork_rng(devices=[]):
        return resnet()


class Slow(nn.Sequential):
    """Leaves a file when it runs, and takes its time; it asks for a value, so that no engine traces it."""

    def forward(self, x):
        Path("running").touch()
        time.sleep(0.05 if float(x[0, 0]) < 1e30 else 1.0)
        return super().forward(x)


def slow():
    return Slow(*resnet())


class Unpacking(nn.Sequential):
    def forward(self, x):
        batch, length, width = x.shape


def unpacking():
    return Unpacking(*resnet())


def number():
    return 3


def leaving():
    raise SystemExit(7)


def lazy():
    return nn.Sequential(nn.LazyLinear(3))


def scripted():
    return torch.jit.script(resnet())


def traced():
    return torch.jit.trace(resnet(), torch.zeros(2, 6))


class Sparse(nn.Linear):
    def __init__(self):
        super().__init__(6, 3)
        self.weight = nn.Parameter(self.weight.detach().to_sparse())


class Empty(nn.Linear):
    def __init__(self):
        super().__init__(6, 3)
        self.nothing = nn.Parameter(torch.zeros(0, 3))


def loud():
    """A network whose making makes another library warn."""
    import warnings

    warnings.warn("Polyfit may be poorly conditioned", RuntimeWarning)
    return resnet()


def overflowing():
    return torch.full((50, 6), 1e38), torch.zeros(50, dtype=torch.long)


def validation():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(50, 6, generator=generator), torch.randint(3, (50,), generator=generator)
'''


@pytest.fixture(scope="session")
def template(tmp_path_factory) -> Path:
    """The network is three times as sure of itself as the labels, drawn from its tempered probabilities, allow."""
    folder = tmp_path_factory.mktemp("template")
    (folder / "my_models.py").write_text(MODELS)
    torch_state = torch.get_rng_state()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
    with torch.no_grad():
        network[2].weight.mul_(20)
    save_file(network.state_dict(), folder / "resnet.safetensors")
    for name in ("validation", "test", "new"):
        inputs = torch.randn(300, 6)
        labels = torch.distributions.Categorical(logits=network(inputs).detach() / 3).sample()
        np.savez(folder / f"{name}.npz", x=inputs.numpy(), y=labels.numpy())
    torch.set_rng_state(torch_state)
    return folder


@pytest.fixture
def folder(template, tmp_path, monkeypatch):
    """A copy of the template, as the current folder."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    importlib.invalidate_caches()
    sys.modules.pop("my_models", None)
    yield tmp_path
    sys.modules.pop("my_models", None)


@pytest.fixture
def peppermill(folder):
    """The command line in this process: `peppermill("fit", ...)` has exit_code, stdout and stderr."""
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def done(peppermill):
    """The same, for commands that must succeed: what they wrote on stdout."""

    def run(*arguments):
        found = peppermill(*arguments)
        assert found.exit_code == 0, found.stderr or found.exception
        return found.stdout

    return run


@pytest.fixture
def network(folder):
    """The network of the folder, in Python."""
    found = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3)).eval()
    found.load_state_dict(load_file(folder / "resnet.safetensors"))
    return found


@pytest.fixture
def data(folder):
    """A pair of tensors of the folder, by name."""

    def pair(name):
        with np.load(folder / f"{name}.npz") as file:
            return torch.from_numpy(file["x"]), torch.from_numpy(file["y"])

    return pair


def digests(folder):
    """Every file of a folder by its content, compiled Python apart."""
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def untouched(folder):
    """Fails where a file of the folder was changed, added or removed."""
    before = digests(folder)
    yield
    assert digests(folder) == before
