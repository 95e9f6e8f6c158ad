"""`scheme:rest` on the command line."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import peppermill
from peppermill.sources import SOURCES, Row, data_from, help_for, source_from


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "chosen_by_scheme.py").write_text("import torch\ndef make(): return torch.nn.Linear(2, 3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    return "chosen_by_scheme"


def test_the_scheme_chooses_the_source(module, tmp_path):
    np.savez(tmp_path / "pair.npz", x=np.ones((4, 2)), y=np.arange(4))
    assert isinstance(source_from(f"python:{module}:make").model, torch.nn.Linear)
    assert data_from(f"npz:{tmp_path}/pair.npz")[1].tolist() == [0, 1, 2, 3]


def test_data_may_lack_labels_where_only_inputs_are_needed(tmp_path):
    np.savez(tmp_path / "pair.npz", x=np.ones((4, 2)), y=np.arange(4))
    np.savez(tmp_path / "bare.npz", x=np.ones((4, 2)))
    assert data_from(f"npz:{tmp_path}/pair.npz", needs_labels=False)[1].tolist() == [0, 1, 2, 3]
    assert data_from(f"npz:{tmp_path}/bare.npz", needs_labels=False).shape == (4, 2)
    with pytest.raises(ValueError, match=r"bare.npz has no array y, only x"):
        data_from(f"npz:{tmp_path}/bare.npz")


@pytest.mark.parametrize("text", ["my_models:make", "tensorflow:my_models:make", "python:", "", ":"])
def test_a_model_of_no_known_scheme_is_told_which_there_are(text):
    with pytest.raises(ValueError, match=r"MODEL '.*' must begin with one of .*python:.* as in `timm:resnet50`"):
        source_from(text)


@pytest.mark.parametrize("text", ["other:validation.npz", "csv:validation.csv", "npz:", ""])
def test_data_of_no_known_scheme_are_told_which_there_are(text):
    with pytest.raises(ValueError, match=r"DATA '.*' must begin with one of .*npz:.* as in `npz:file\.npz`"):
        data_from(text)


@pytest.mark.parametrize("gives", ["model", "data"])
def test_a_new_source_is_one_row(gives, monkeypatch):
    """It is found by its scheme, and stands in the help and the suggestions of errors; the docs list SOURCES."""
    row = Row("tarball", gives, "tarball:files.tar", "files in an archive", lambda rest, *_: ("read", rest))
    monkeypatch.setattr("peppermill.sources.SOURCES", [*SOURCES, row])
    open_it = source_from if gives == "model" else data_from
    assert open_it("tarball:a.tar") == ("read", "a.tar")
    assert "tarball:files.tar (files in an archive)" in help_for(gives)
    with pytest.raises(ValueError, match=r"one of .*tarball:.* Did you mean `tarball:files\.tar`\?"):
        open_it("tarbal:a.tar")


def test_the_list_of_sources_needs_no_torch():
    code = "import sys, peppermill.sources as s; s.help_for('model'); print('torch' in sys.modules)"
    alone = f"import sys, types; p = types.ModuleType('peppermill'); p.__path__ = {peppermill.__path__!r}; "
    alone += f"sys.modules['peppermill'] = p; {code}"
    found = subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
