"""Commands under torchrun: what one process prints and writes, printed and written once."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import peppermill
from peppermill.cli.app import app
from tests.sources.pictures import folder_of

CHECKOUT = str(Path(peppermill.__file__).resolve().parents[1])
NETWORK = "python:my_models:resnet"
WEIGHTS = ("--weights", "resnet.safetensors")
FIT = ("fit", NETWORK, "npz:validation.npz", *WEIGHTS, "--iterations", "2", "--size", "2", "--batch-size", "48")

#: Several commands in the same processes, because a process takes seconds to start; each begins with a line of its own.
ONE_AFTER_THE_OTHER = """
import json, os, sys
import torch.distributed
from peppermill.cli.app import app
torch.distributed.init_process_group("gloo")
for arguments in json.loads(sys.argv[1]):
    if os.environ["RANK"] == "0":
        print("-----", flush=True)
    app(arguments, standalone_mode=False)
torch.distributed.destroy_process_group()
"""


#: A network whose preparation writes down which pictures it was given.
SEEING = """

import numpy as np
from peppermill.sources.source import Source


def prepare(picture):
    with open("prepared", "a") as file:
        file.write(str(picture.getpixel((0, 0))) + chr(10))
    return torch.from_numpy(np.array(picture.convert("L").resize((3, 2)))).float().flatten() / 255


def seeing():
    torch.manual_seed(0)
    return Source(resnet(), prepare)
"""

#: A network that is killed in the second process, in the middle of a fit; what each process is, is written down.
DYING = """

import os


class Dying(nn.Sequential):
    calls, pause = 0, {pause}

    def forward(self, x):
        Dying.calls += 1
        Path("process" + os.environ["RANK"]).write_text(str(os.getpid()))
        if os.environ["RANK"] == "1" and self.calls > 5:
            os.kill(os.getpid(), 9)
        time.sleep(self.pause if self.calls > 5 else 0)
        return super().forward(x)


def dying():
    return Dying(*resnet())
"""


@pytest.fixture
def torchrun(folder):
    """Run something in so many processes: exit code, what was printed, and the lines in which commands complain."""
    environment = {**os.environ, "PYTHONPATH": CHECKOUT, "OMP_NUM_THREADS": "1"}

    def start(processes, *command):
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        found = subprocess.run([*launcher, *command], env=environment, capture_output=True, text=True, timeout=300)
        return found.returncode, found.stdout, re.findall(r"^(?:error|note):.*", found.stderr, re.MULTILINE)

    return start


@pytest.mark.parametrize(
    ("processes", "pause", "message"),
    [
        (2, 0, "error: process 1 of 2 was lost, or ended before the others did. Look at what it said;"),
        (3, 0, "error: process 1 of 3 was lost, or ended before the others did. Look at what it said;"),
        (2, 100, "error: ended by SIGTERM: another process was lost, or the job was ended from outside."),
    ],
    ids=["at work", "three at work", "in a call that takes very long"],
)
def test_when_a_process_is_killed_torchrun_ends_and_the_first_says_why_in_one_line(
    torchrun, folder, processes, pause, message
):
    """Well within a minute, and no process is left; the first hears of it when it next waits for the other."""
    with Path("my_models.py").open("a") as file:
        file.write(DYING.format(pause=pause))
    start = time.monotonic()
    code, output, complaints = torchrun(
        processes, "-m", "peppermill", "fit", "python:my_models:dying", *FIT[2:], "--engine", "loop"
    )
    assert time.monotonic() - start < 60
    assert (code, output, len(complaints)) == (1, "", 1)
    assert complaints[0].startswith(message)
    assert not (folder / "pep.json").exists()
    for rank in range(processes):
        with pytest.raises(ProcessLookupError):
            os.kill(int((folder / f"process{rank}").read_text()), 0)


def by_one_process(*arguments):
    found = CliRunner().invoke(app, list(arguments))
    return found.exit_code, found.stdout, found.stderr.splitlines()


def test_fit_prints_and_writes_what_one_process_does(torchrun, folder):
    """In three processes; the note is one that every process has reason to give."""
    expected = by_one_process(*FIT, "--upper", "1e-4")
    assert "sits at `upper=0.0001`" in expected[2][0]
    written = (folder / "pep.json").read_text()
    (folder / "pep.json").unlink()
    assert torchrun(3, "-m", "peppermill", *FIT, "--upper", "1e-4") == expected
    assert (folder / "pep.json").read_text() == written


def test_other_commands_print_and_write_what_one_process_does(torchrun, folder):
    """Four in two processes; 300 items are 7 batches, the last of which is smaller. `info` is left to the first."""
    by_one_process(*FIT)
    commands = [
        ("evaluate", NETWORK, "npz:test.npz", *WEIGHTS, "--pep", "pep.json", "--batch-size", "48", "--out", "run.json"),
        ("sweep", NETWORK, "npz:test.npz", *WEIGHTS, "--sigmas", "0.1", "--batch-size", "48", "--out", "sweep.json"),
        (
            "predict",
            NETWORK,
            "npz:new.npz",
            *WEIGHTS,
            "--pep",
            "pep.json",
            "--batch-size",
            "48",
            "--out",
            "predictions.npz",
        ),
        ("info", "pep.json"),
    ]
    files = [folder / "run.json", folder / "sweep.json", folder / "predictions.npz"]
    expected = [by_one_process(*command)[1] for command in commands]
    contents = [content(file) for file in files]
    for file in files:
        file.unlink()
    Path("commands.py").write_text(ONE_AFTER_THE_OTHER)
    code, output, complaints = torchrun(2, "commands.py", json.dumps(commands))
    assert (code, complaints) == (0, [])
    assert output.split("-----\n")[1:] == expected
    assert [content(file) for file in files] == contents


def test_pictures_are_decoded_once_in_all_and_only_the_first_process_speaks(torchrun, folder):
    """A folder with a damaged picture, split in two: `fit` reads the one half, `evaluate` the other."""
    with Path("my_models.py").open("a") as file:
        file.write(SEEING)
    folder_of(folder / "val", {"a": 11, "b": 20, "c": 9})
    (folder / "val" / "b" / "7.png").write_bytes(b"damaged")
    given = ("python:my_models:seeing", "imagefolder:val?bad=skip")
    commands = [
        ("fit", *given, "--validation", "25", "--size", "2", "--iterations", "2", "--batch-size", "4"),
        ("evaluate", *given, "--pep", "pep.json", "--out", "run.json", "--batch-size", "4"),
    ]
    expected = [by_one_process(*command) for command in commands]
    assert [code for code, *_ in expected] == [0, 0]
    contents = [(folder / "pep.json").read_text(), content(folder / "run.json")]
    (folder / "prepared").unlink()
    Path("commands.py").write_text(ONE_AFTER_THE_OTHER)
    code, output, complaints = torchrun(2, "commands.py", json.dumps(commands))
    assert (code, output.split("-----\n")[1:]) == (0, [said for _, said, _ in expected])
    assert complaints == [note for *_, notes in expected for note in notes]
    assert [(folder / "pep.json").read_text(), content(folder / "run.json")] == contents
    prepared = (folder / "prepared").read_text().splitlines()
    assert len(prepared) == len(set(prepared)) == 39


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA GPU")
def test_predictions_on_a_gpu_travel_by_nccl(torchrun, folder):
    command = ("predict", NETWORK, "npz:new.npz", *WEIGHTS, "--device", "cuda")
    expected = by_one_process(*command)
    found = content(folder / "predictions.npz")
    assert torchrun(1, "-m", "peppermill", *command) == expected
    assert content(folder / "predictions.npz") == found


def content(path):
    """What is in a file, but for where and when it was made."""
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return {name: arrays[name].tolist() for name in arrays.files}
    return {key: value for key, value in json.loads(path.read_text()).items() if key != "provenance"}


def test_mistakes_that_only_another_process_can_see_are_told_once(torchrun, folder):
    """A label in the part of the last process, and a network that each process draws anew; torchrun ends with 1.

    What cannot be parsed, which every process sees for itself, is told once too.
    """
    with np.load("validation.npz") as arrays:
        inputs, labels = arrays["x"], arrays["y"]
    labels[-1] = 9
    np.savez("validation.npz", x=inputs, y=labels)
    Path("commands.py").write_text(ONE_AFTER_THE_OTHER + "sys.exit(2)\n")
    drawn_anew = ["fit", NETWORK, "npz:test.npz"]
    code, output, (first, second, third) = torchrun(2, "commands.py", json.dumps([FIT, drawn_anew, ["fit", "--wrong"]]))
    assert (code, output) == (1, "-----\n-----\n-----\n")
    assert first == (
        "error: process 1 of 2 failed. ValueError: labels run from 0 to 9, but the network has 3 classes: labels must "
        "lie in 0..2 (or be -100, which is ignored)."
    )
    assert third.startswith("error: no such option: --wrong")
    assert second.startswith("error: the processes were not given the same weights: process 0 has those with digest")
    assert not (folder / "pep.json").exists()
