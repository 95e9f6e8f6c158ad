"""The command line as its own process: streams, Ctrl-C, a terminal."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import peppermill

pytestmark = pytest.mark.slow

CHECKOUT = str(Path(peppermill.__file__).resolve().parents[1])
FIT = (
    "fit",
    "python:my_models:slow",
    "npz:validation.npz",
    "--weights",
    "resnet.safetensors",
    "--size",
    "2",
    "--engine",
    "loop",
)


@pytest.fixture
def start(folder):
    """Start `python -m peppermill`; what is still running when the test ends is ended."""
    started = []

    def run(*arguments, environment=(), **streams):
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
        command = [sys.executable, "-m", "peppermill", *arguments]
        heeding = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}  # a background shell's ignore it
        variables = {**os.environ, "PYTHONPATH": CHECKOUT, **dict(environment)}
        started.append(subprocess.Popen(command, env=variables, **heeding, **streams))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def test_stdout_has_results_and_nothing_else(start, folder):
    output, errors = start(*FIT).communicate(timeout=120)
    lines = output.decode().splitlines()
    assert [re.sub(r"[\d.,]+", "#", line) for line in lines] == [
        "sigma = # found with # values of sigma on # items and # forward passes (# of all # members)",
        "validation NLL # -> #",
        "wrote pep#json (# bytes)# Next:",
        "peppermill evaluate python:my_models:slow TEST-DATA --weights resnet#safetensors --pep pep#json",
    ]
    assert errors == b""


def test_a_mistake_is_one_line_and_exit_code_2(start, untouched):
    process = start("fit", "python:my_models:resnet", "npz:nowhere.npz")
    said = b"error: there is no file nowhere.npz: save one with `np.savez(path, x=inputs, y=labels)`.\n"
    assert process.communicate(timeout=120) == (b"", said)
    assert process.returncode == 2


def test_warnings_of_other_libraries_are_shown_with_debug_alone(start, folder):
    command = ("evaluate", "python:my_models:loud", "npz:test.npz", "--weights", "resnet.safetensors")
    assert start(*command).communicate(timeout=120)[1] == b""
    assert start("--debug", *command).communicate(timeout=120)[1] == b"note: Polyfit may be poorly conditioned\n"


EVALUATE = (
    "evaluate",
    "python:my_models:resnet",
    "npz:test.npz",
    "--weights",
    "resnet.safetensors",
    "--out",
    "run.json",
)


def test_when_nobody_reads_the_table_any_more_the_results_are_written_all_the_same(start, folder):
    """As after `peppermill evaluate ... | head -0`."""
    process = start(*EVALUATE)
    process.stdout.close()
    assert process.wait(timeout=120) == 0
    assert process.stderr.read() == b""
    assert (folder / "run.json").is_file()


def test_a_terminal_without_greek_letters_gets_the_table_all_the_same(start, done, folder):
    done(*FIT[:1], "python:my_models:resnet", *FIT[2:])
    output, errors = start(*EVALUATE, "--pep", "pep.json", environment={"PYTHONIOENCODING": "ascii"}).communicate()
    assert errors == b""
    assert b"? = " in output
    assert (folder / "run.json").is_file()


SWALLOWING = """
import time
from pathlib import Path

Path("importing").touch()
try:
    time.sleep(60)
except KeyboardInterrupt:
    raise RecursionError
"""


def wait_for(path, process):
    """Until a process has written a file."""
    waited = time.monotonic()
    while not path.exists():
        assert process.poll() is None
        assert time.monotonic() < waited + 120
        time.sleep(0.02)


def test_ctrl_c_while_torch_is_imported_is_one_line(start, folder):
    """Also if the import swallows the interrupt; `python -m` looks for modules in the current folder first."""
    (folder / "torch.py").write_text(SWALLOWING)
    process = start("--debug", "info", "pep.json")
    wait_for(folder / "importing", process)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert errors == b"error: interrupted: no file was left half-written, and what was finished is kept.\n"
    assert process.returncode == 130


def test_ctrl_c_leaves_everything_as_it_was(start, folder):
    (folder / "pep.json").write_text("an older ensemble")
    weights = (folder / "resnet.safetensors").read_bytes()
    before = {path.name for path in folder.iterdir()}
    process = start(*FIT, "--batch-size", "1")
    wait_for(folder / "running", process)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert output == b""
    assert errors == b"error: interrupted: no file was left half-written, and what was finished is kept.\n"
    assert (folder / "pep.json").read_text() == "an older ensemble"
    assert (folder / "resnet.safetensors").read_bytes() == weights
    assert {path.name for path in folder.iterdir()} - before <= {"running", "__pycache__"}


def test_a_terminal_sees_how_far_a_long_job_is(start, folder):
    """The error stream is a terminal, the results go elsewhere: a line with a rate appears, and is gone at the end."""
    master, slave = pty.openpty()
    process = start(*FIT, "--batch-size", "100", stderr=slave)
    os.close(slave)
    seen = b""
    while part := _read(master):
        seen += part
    output, _ = process.communicate(timeout=60)
    os.close(master)
    assert process.returncode == 0
    assert re.search(rb"fitting sigma  \S+  [\d,]+/[\d,]+, [\d,]+/s, \d+ s left", seen)
    assert seen.endswith(b"\r\x1b[K")
    assert b"fitting" not in output
    assert output.startswith(b"sigma = ")


def _read(master):
    """What the terminal was sent; nothing at its end, which Linux tells by an error."""
    try:
        return os.read(master, 4096)
    except OSError:
        return b""
