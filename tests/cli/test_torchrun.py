"""Commands under torchrun: what one process prints and writes, printed and written once."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import peppermill
from peppermill.cli.app import app
from tests.cli.conftest import digests
from tests.sources.pictures import folder_of

pytestmark = pytest.mark.slow

CHECKOUT = str(Path(peppermill.__file__).resolve().parents[1])
NETWORK = "python:my_models:resnet"
WEIGHTS = ("--weights", "resnet.safetensors")
FIT = ("fit", NETWORK, "npz:validation.npz", *WEIGHTS, "--iterations", "2", "--size", "2", "--batch-size", "48")

#: What torch before 2.11 prints in every process, sometimes in pieces.
OF_GLOO = r"\[Gloo\] Rank \d+| is connected to \d+ peer ranks\. Expected number of connected peer ranks is : \d+\n"

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
    torch.distributed.barrier()  # the next command reads what the first process wrote
torch.distributed.destroy_process_group()
"""

#: Commands that fail, as the command line runs them; every process prints the exit code of each.
MISTAKES = """
import json, sys
from peppermill.cli import torchrun
from peppermill.cli.app import main
torchrun.REPORT_SECONDS = 1
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["peppermill", *arguments]
    try:
        main()
    except SystemExit as ended:
        print(ended.code, flush=True)
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
    calls = 0

    def forward(self, x):
        Dying.calls += 1
        if os.environ["RANK"] == "1" and self.calls > 5:
            os.kill(os.getpid(), 9)
        return super().forward(x)


def dying():
    Path("process" + os.environ["RANK"]).write_text(str(os.getpid()))
    return Dying(*resnet())
"""


@pytest.fixture
def torchrun(folder):
    """Run something in several processes: exit code, what was printed, and the lines in which commands complain."""
    environment = {**os.environ, "PYTHONPATH": CHECKOUT, "OMP_NUM_THREADS": "1"}

    def start(processes, *command):
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        found = subprocess.run([*launcher, *command], env=environment, capture_output=True, text=True, timeout=300)
        return (
            found.returncode,
            re.sub(OF_GLOO, "", found.stdout),
            re.findall(r"^(?:error|note):.*", found.stderr, re.MULTILINE),
        )

    return start


def test_when_a_process_is_killed_the_others_end_and_no_file_is_left(torchrun, folder):
    """Well within a minute; torchrun ends those that still run, or they see that they are alone."""
    with Path("my_models.py").open("a") as file:
        file.write(DYING)
    start = time.monotonic()
    code, output, complaints = torchrun(
        2, "-m", "peppermill", "fit", "python:my_models:dying", *FIT[2:], "--engine", "loop"
    )
    assert time.monotonic() - start < 60
    assert (code, output) == (1, "")
    assert len(complaints) <= 1
    assert not (folder / "pep.json").exists()
    for rank in range(2):
        with pytest.raises(ProcessLookupError):
            os.kill(int((folder / f"process{rank}").read_text()), 0)


def test_a_process_whose_others_never_start_gives_up_in_one_line(folder):
    """As when somebody starts two processes by hand and the second one dies at once."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment = {**os.environ, "PYTHONPATH": CHECKOUT, **group, "PEPPERMILL_JOIN_SECONDS": "6"}
    command = [sys.executable, "-m", "peppermill", *FIT]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert (found.returncode, found.stdout) == (2, "")
    assert "waiting for the other processes, 6 s at most" in found.stderr.splitlines()
    assert found.stderr.splitlines()[-1] == (
        "error: process 0 of 2 waited 6 s for the others, and not all of them came: look at what they reported, and "
        "start all of them again."
    )


def by_one_process(*arguments):
    found = CliRunner().invoke(app, list(arguments))
    return found.exit_code, found.stdout, found.stderr.splitlines()


def test_commands_print_and_write_what_one_process_does_and_decode_a_picture_at_most_once(torchrun, folder):
    """In three processes; every process has reason to give the note; 300 items are 7 batches, the last one smaller.

    `info` is left to the first process. Of a folder with a damaged picture, `fit` reads the one half, `evaluate` the
    other.
    """
    with Path("my_models.py").open("a") as file:
        file.write(SEEING)
    folder_of(folder / "val", {"a": 11, "b": 20, "c": 9})
    (folder / "val" / "b" / "7.png").write_bytes(b"damaged")
    given = ("npz:test.npz", *WEIGHTS, "--batch-size", "48")
    pictures = ("python:my_models:seeing", "imagefolder:val?bad=skip", "--batch-size", "4")
    few = ("--validation", "25", "--size", "2", "--iterations", "2")
    commands = [
        (*FIT, "--upper", "1e-4"),
        ("evaluate", NETWORK, *given, "--pep", "pep.json", "--out", "run.json"),
        ("sweep", NETWORK, *given, "--sigmas", "0.1", "--out", "sweep.json"),
        ("predict", NETWORK, "npz:new.npz", *given[1:], "--pep", "pep.json", "--out", "predictions.npz"),
        ("info", "pep.json"),
        ("fit", *pictures, *few, "--out", "pep-pictures.json"),
        ("evaluate", *pictures, "--pep", "pep-pictures.json", "--out", "run-pictures.json"),
    ]
    names = ("pep.json", "run.json", "sweep.json", "predictions.npz", "pep-pictures.json", "run-pictures.json")
    files = [folder / name for name in names]
    expected = [by_one_process(*command) for command in commands]
    assert [code for code, *_ in expected] == [0] * len(commands)
    assert "sits at `upper=0.0001`" in expected[0][2][0]
    contents = [content(file) for file in files]
    fitted = (folder / "pep-pictures.json").read_text()
    for file in (*files, folder / "prepared"):
        file.unlink()
    Path("commands.py").write_text(ONE_AFTER_THE_OTHER)
    code, output, complaints = torchrun(3, "commands.py", json.dumps(commands))
    assert (code, complaints) == (0, [note for *_, notes in expected for note in notes])
    assert output.split("-----\n")[1:] == [said for _, said, _ in expected]
    assert [content(file) for file in files] == contents
    assert (folder / "pep-pictures.json").read_text() == fitted
    prepared = (folder / "prepared").read_text().splitlines()
    assert len(set(prepared)) == 39
    assert max(Counter(prepared).values()) <= 3


def test_every_number_of_processes_writes_the_same_parts(torchrun, folder):
    """300 items in 7 parts of a batch each: by one process, by two, and by two of which the second is killed."""
    by_one_process(*FIT)
    with Path("my_models.py").open("a") as file:
        file.write(DYING)
    command = (NETWORK, "npz:new.npz", *WEIGHTS, "--pep", "pep.json", "--batch-size", "48", "--part-items", "48")
    assert by_one_process("predict", *command, "--out", "one")[1] == "wrote 7 of 7 parts into one: 300 items\n"
    code, output, complaints = torchrun(2, "-m", "peppermill", "predict", *command, "--out", "two")
    assert (code, complaints) == (0, [])
    assert re.fullmatch("wrote 4 of 7 parts into two: (300 items|other processes are still writing)\n", output)
    dying = ("python:my_models:dying", *command[1:], "--engine", "loop", "--out", "killed")
    code, _, complaints = torchrun(2, "-m", "peppermill", "predict", *dying)
    assert code == 1
    assert len(complaints) <= 1
    left = len(list(Path("killed/parts").glob("part-*")))
    assert 0 < left < 7
    found = by_one_process("predict", *command, "--engine", "loop", "--out", "killed")
    assert found[1] == f"wrote {7 - left} of 7 parts into killed: 300 items\n"
    by_one_process("predict", *command, "--engine", "loop", "--out", "undisturbed")
    written = {name: digests(folder / name) for name in ("one", "two", "killed", "undisturbed")}
    assert written["two"] == written["one"]
    assert written["killed"] == written["undisturbed"]


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


def test_a_mistake_in_the_data_of_one_process_is_reported_once(torchrun, folder):
    """torchrun itself ends with 1."""
    with np.load("validation.npz") as arrays:
        inputs, labels = arrays["x"], arrays["y"]
    labels[60] = 9  # in the second batch, which the second process runs
    np.savez("validation.npz", x=inputs, y=labels)
    code, output, complaints = torchrun(2, "-m", "peppermill", *FIT)
    assert (code, output, len(complaints)) == (1, "", 1)
    assert complaints[0].startswith("error: labels run from 0 to 9, but the network has 3 classes: labels must lie in")
    assert not (folder / "pep.json").exists()


def test_mistakes_that_every_process_sees_are_reported_once(torchrun, folder):
    """The first process reports them; each process would exit with 2."""
    Path("commands.py").write_text(MISTAKES)
    commands = [(*FIT[:2], "npz:nowhere.npz", *FIT[3:]), (*FIT, "--wrong")]
    code, output, complaints = torchrun(2, "commands.py", json.dumps(commands))
    assert (code, sorted(output.split())) == (0, ["2"] * 4)
    assert [line.partition(": s")[0] for line in complaints] == [
        "error: there is no file nowhere.npz",
        "error: no such option: --wrong",
    ]
    assert not (folder / "pep.json").exists()
