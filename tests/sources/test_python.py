"""`python:package.module:factory`."""

import sys

import pytest
from torch import nn

from peppermill.sources.python import data, source

MODULE = """
import torch
from torch import nn

class Net(nn.Linear):
    def __init__(self):
        super().__init__(2, 3)

def make():
    return nn.Sequential(nn.Linear(2, 4), nn.Dropout(), nn.Linear(4, 3))

def pair():
    return torch.zeros(5, 2), torch.zeros(5, dtype=torch.long)

def needs(depth):
    return make()

def number():
    return 3

def broken():
    raise RuntimeError("no such checkpoint")

constant = 3
_hidden = make
"""


@pytest.fixture
def name(tmp_path, monkeypatch):
    """A module in the current folder, under a name that no other test has."""
    found = f"models_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{found}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield found
    sys.modules.pop(found, None)


def test_a_model_comes_in_evaluation_mode(name):
    found = source(f"{name}:make").model
    assert isinstance(found, nn.Sequential)
    assert not any(part.training for part in found.modules())


def test_a_class_without_arguments_is_a_factory(name):
    assert type(source(f"{name}:Net").model).__name__ == "Net"


def test_data_are_whatever_the_function_returns(name):
    inputs, labels = data(f"{name}:pair")
    assert (tuple(inputs.shape), tuple(labels.shape)) == ((5, 2), (5,))


def test_the_file_name_that_a_shell_completes_serves_too(name):
    assert type(source(f"{name}.py:Net").model).__name__ == "Net"


def test_a_package_is_reached_with_dots():
    assert isinstance(source("torch.nn:Identity").model, nn.Identity)


@pytest.mark.parametrize("text", ["my_models", "my_models:"])
def test_both_parts_are_needed(text):
    with pytest.raises(ValueError, match=r"must name a module and a function in it, as in `python:package\.module"):
        source(text)


def test_a_missing_module_is_named_with_the_cure():
    with pytest.raises(ValueError, match=r"there is no module 'nowhere_at_all'\. Run the command in the folder"):
        source("nowhere_at_all:make")


def test_a_package_that_the_module_itself_misses_is_named(name, tmp_path):
    (tmp_path / f"{name}.py").write_text("import a_package_that_nobody_has\n")
    with pytest.raises(ValueError, match=r"there is no module 'a_package_that_nobody_has'.*install its package"):
        source(f"{name}:make")


@pytest.mark.parametrize("missing", ["missing", "constant"])
def test_a_missing_function_is_told_which_there_are(name, missing):
    with pytest.raises(ValueError, match=rf"{name} has no function '{missing}'; it has Net, make, pair, needs"):
        source(f"{name}:{missing}")


def test_what_is_no_network_is_refused(name):
    with pytest.raises(ValueError, match=r":number returned int, which is not a torch\.nn\.Module"):
        source(f"{name}:number")


def test_a_factory_that_wants_arguments_is_refused(name):
    with pytest.raises(ValueError, match=r":needs is called without arguments, and cannot be \(missing.*'depth'\)"):
        source(f"{name}:needs")


def test_an_error_of_the_factory_itself_is_left_as_it_is(name):
    with pytest.raises(RuntimeError, match="no such checkpoint"):
        source(f"{name}:broken")
