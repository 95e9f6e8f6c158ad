"""Commands under torchrun: what one process prints and writes, printed and written once."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import peppermill

CHECKOUT = str(Path(peppermill.__file__).resolve().parents[1])
NETWORK = ("python:my_models:resnet", "--weights", "resnet.safetensors")


@pytest.fixture
def run(folder):
    """Run commands, each after the other in every process; streams and exit code."""
    environment = {**os.environ, "PYTHONPATH": CHECKOUT, "OMP_NUM_THREADS": "1"}

    def start(processes, *arguments):
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes else []
        command = [sys.executable, *launcher, "-m", "peppermill", *arguments]
        found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        return found.returncode, found.stdout, _ours(found.stderr)

    return start


def _ours(errors):
    """What the commands said, of all that torchrun and its processes said."""
    return [line for line in errors.splitlines() if re.match(r"(error|note):", line)]


@pytest.mark.parametrize("processes", [2, 3])
def test_fit_prints_and_writes_what_one_process_does(run, folder, processes):
    arguments = ("fit", "python:my_models:resnet", "npz:validation.npz", *NETWORK[1:], "--upper", "1e-4")
    options = ("--iterations", "2", "--size", "2", "--batch-size", "48")
    code, output, notes = run(0, *arguments, *options)
    assert code == 0
    assert "sits at `upper=0.0001`" in notes[0]
    written = (folder / "pep.json").read_text()
    (folder / "pep.json").unlink()
    assert run(processes, *arguments, *options) == (0, output, notes)
    assert (folder / "pep.json").read_text() == written


def test_evaluate_sweep_and_predict_write_what_one_process_does(run, folder):
    """Three commands in two processes; 300 items in 7 batches, the last of which is smaller."""
    run(0, "fit", NETWORK[0], "npz:validation.npz", *NETWORK[1:], "--iterations", "2", "--size", "2")
    commands = {
        "run.json": ("evaluate", NETWORK[0], "npz:test.npz", *NETWORK[1:], "--pep", "pep.json"),
        "sweep.json": ("sweep", NETWORK[0], "npz:test.npz", *NETWORK[1:], "--sigmas", "0.1", "--size", "2"),
        "predictions.npz": ("predict", NETWORK[0], "npz:new.npz", *NETWORK[1:], "--pep", "pep.json"),
    }
    for name, command in commands.items():
        found = []
        for processes in (0, 2):
            code, output, notes = run(processes, *command, "--out", name, "--batch-size", "48")
            assert (code, notes) == (0, [])
            found.append((output, _content(folder / name)))
        assert found[0] == found[1]


def _content(path):
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return {name: arrays[name].tolist() for name in arrays.files}
    content = json.loads(path.read_text())
    content.pop("provenance")
    return content


def test_a_mistake_in_the_part_of_another_process_is_told_once(run, folder):
    with np.load("validation.npz") as arrays:
        inputs, labels = arrays["x"], arrays["y"]
    labels[-1] = 9
    np.savez("validation.npz", x=inputs, y=labels)
    code, output, errors = run(2, "fit", NETWORK[0], "npz:validation.npz", *NETWORK[1:], "--batch-size", "50")
    assert (code, output) == (1, "")  # torchrun's own exit code
    assert errors == [
        "error: process 1 of 2 failed. ValueError: labels run from 0 to 9, but the network has 3 classes: labels must "
        "lie in 0..2 (or be -100, which is ignored)."
    ]
    assert not (folder / "pep.json").exists()


def test_a_network_that_each_process_draws_anew_is_refused(run, folder):
    code, _, errors = run(2, "fit", "python:my_models:resnet", "npz:validation.npz")
    assert code == 1
    assert re.match(r"error: the processes were not given the same weights: process 0 has those with digest", errors[0])
    assert len(errors) == 1


def test_other_commands_are_left_to_the_first_process(run):
    code, output, errors = run(2, "info")
    assert (code, errors) == (0, [])
    assert output == run(0, "info")[1]
