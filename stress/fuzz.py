"""The command line with damaged files and nasty options: no traceback, no hang, little memory, no silent success.

Each case is one process, forked from one that has imported everything. A case is a sane command line with up to three
mutations: a damaged file, another value of an option, an argument too many or too few.
"""

from __future__ import annotations

import gc
import json
import os
import random
import runpy
import shutil
import signal
import string
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import peppermill as pm
from peppermill.cli import app

SECONDS, BYTES = 60, 4 * 2**30  # of one case: more is a hang, or too much memory
NETWORKS = """
from torch import nn

def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

def images():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 3))

def broken():
    return 1 / 0

def quits():
    raise SystemExit(7)

def other():
    return {"not": "a network"}
"""
MODELS = ("python:nets:mlp", "python:nets:images", "python:nets:broken", "python:nets:quits", "python:nets:other")
MODELS += ("python:nets:none", "python:none:mlp", "python:../nets:mlp", "python:", "timm:", "keras:x.keras", "", "x")
MODELS += (
    "checkpoint:model.pt2",
    "checkpoint:mlp.pt@python:nets:mlp",
    "checkpoint:mlp.pt",
    "hf:nobody/nothing",
    "torchvision:none",
    "python:nets",
)
DATA = ("npz:data.npz", "npz:new.npz", "npz:none.npz", "npz:", "imagefolder:pictures", "imagefolder:none", "csv:x.csv")
DATA += ("imagefolder:pictures?size=8", "imagefolder:pictures?size=x", "imagefolder:pictures?bad=skip&size=8", "", "?")
DATA += ("npz:data.npz?x=labels", "cifar10:none", "mnist:none", "hf:none", "npz:/dev/zero", "npz:.", "imagefolder:.")
FILES = ("data.npz", "new.npz", "mlp.safetensors", "mlp.pt", "pep.json", "run.json", "model.pt2", "nets.py", "none")
FILES += ("rule.json", "/dev/null", "/dev/zero", ".", "pictures", "empty", "")
NUMBERS = ("0", "1", "2", "3", "-1", "1e9", "999999999999", "nan", "inf", "0.5", "x", "", "1,2", "--", "0x10", "１")
OPTIONS: dict[str, tuple[str, ...]] = {
    "--weights": FILES,
    "--pep": FILES,
    "--out": (
        "out/a.json",
        "out/a.npz",
        "out/a.csv",
        "out/a.pt2",
        "out/" + "n" * 250,
        "none/a.json",
        "out",
        "/dev/full",
    ),
    "--picture": ("out/a.png", "out/a.svg", "out/a.txt", "none/a.png"),
    "--size": NUMBERS,
    "--seed": NUMBERS,
    "--batch-size": NUMBERS,
    "--bins": NUMBERS,
    "--probes": NUMBERS,
    "--sigmas": ("0.01", "0,0.1", "-1", "nan", "x", "1e400", ",", ",".join(["0.01"] * 50)),
    "--parameters": ("kernels", "all", "conv", "last_layer", ".*", "(", "none", ""),
    "--noise": ("gaussian", "uniform", "cauchy", ""),
    "--likelihood": ("categorical", "bernoulli", "gaussian", "poisson", ""),
    "--engine": ("auto", "loop", "vmap", "graphs", "fast"),
    "--precision": ("bfloat16", "float16", "int8"),
    "--device": ("cpu", "cuda", "cuda:9", "mps", "tpu", "meta"),
    "--validation": NUMBERS,
    "--split-seed": NUMBERS,
    "--views": ("horizontal_flip", "vertical_flip", "flip", "none", ""),
    "--sweep": DATA,
    "--example": DATA,
    "--train": DATA,
    "--test": DATA,
    "--passes": NUMBERS,
    "--lower": NUMBERS,
    "--upper": NUMBERS,
    "--iterations": NUMBERS,
    "--search": ("two_stage", "golden", "grid", ""),
    "--calibrator": ("temperature", "vector", "matrix", "platt", ""),
    "--scale": ("layer", "filter", "array", ""),
    "--pool": NUMBERS,
    "--class-names": FILES,
    "--rule": FILES,
    "--columns": ("confidence", "class,entropy", "none", ""),
    "--top": NUMBERS,
    "--part-items": NUMBERS,
    "--format": ("npz", "parquet", "avro", ""),
    "--risk": NUMBERS,
    "--confidence": NUMBERS,
    "--shape": ("6", "3,8,8", "0", "-1", "x", "", "1,2,3,4,5,6,7,8,9", "999999999999"),
    "--loss": ("0.01", "0", "-1", "x"),
    "--model": MODELS,
    "-o": ("out/a.html", "none/a.html", "out", "/dev/full"),
    "--trust": ("",),
    "--antithetic": ("",),
    "--all-items": ("",),
    "--images": ("",),
    "--temperature": ("",),
    "--unknown": ("1",),
    "--help": ("",),
    "--debug": ("",),
}
MODEL = ["python:nets:mlp", "--weights", "mlp.safetensors"]
SANE: dict[str, list[str]] = {
    "fit": [*MODEL, "npz:data.npz", "--size", "2", "--out", "out/pep.json"],
    "calibrate": [*MODEL, "npz:data.npz", "--out", "out/pep.json"],
    "evaluate": [*MODEL, "npz:data.npz", "--pep", "pep.json", "--out", "out/run.json"],
    "predict": [*MODEL, "npz:data.npz", "--pep", "pep.json", "--out", "out/p.npz"],
    "sweep": [*MODEL, "npz:data.npz", "--size", "2", "--sigmas", "0.01,0.1", "--out", "out/run.json"],
    "size": [*MODEL, "npz:data.npz", "--pep", "pep.json"],
    "curvature": [*MODEL, "npz:data.npz", "--probes", "3"],
    "probe": [
        *("mlp.safetensors", "second.pt", "third.pt", "--model", "python:nets:mlp", "--train", "npz:data.npz"),
        *("--validation", "npz:data.npz", "--test", "npz:data.npz", "--size", "2", "--probes", "3"),
    ],
    "abstain": [*MODEL, "npz:data.npz", "--pep", "pep.json", "--risk", "0.9", "--out", "out/rule.json"],
    "export": [*MODEL, "--pep", "pep.json", "--example", "npz:new.npz", "--out", "out/model.pt2"],
    "report": ["run.json", "-o", "out/report.html"],
    "info": ["pep.json"],
}


def run(seed: int, count: int, deadline: float) -> dict[str, Any]:
    generator, outcomes, faults = random.Random(seed), Counter[str](), list[str]()
    torch.set_num_threads(1)
    for path in sorted(Path(pm.__file__).parent.glob("cli/*.py")):
        import_module(f"peppermill.cli.{path.stem}")
    here, largest = os.getcwd(), 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            prepare()
            gc.freeze()  # a collection in a child would touch, and so copy, all of the parent's memory
            while outcomes.total() < count and time.monotonic() < deadline:
                shutil.copytree("originals", ".", dirs_exist_ok=True)  # a case without --out replaces pep.json
                words = mutated(generator, outcomes.total())
                outcome, used = tried(words)
                outcomes[outcome.partition(":")[0]] += 1
                largest = max(largest, used)
                if outcome not in ("success", "refused"):
                    faults.append(f"{outcome} of peppermill {' '.join(words)}")
                    print(faults[-1], flush=True)
        finally:
            os.chdir(here)
    counts = {
        name: outcomes[name] for name in ("success", "refused", "traceback", "hang", "memory", "silent", "killed")
    }
    return {"cases": outcomes.total(), **counts, "largest_mb": largest // 2**20, "faults": faults}


def prepare() -> None:
    """The files of a user in the current folder: networks, weights, data, pictures, an ensemble and a run."""
    from PIL import Image
    from safetensors.torch import save_file

    torch.manual_seed(0)
    sys.path.insert(0, os.getcwd())
    Path("nets.py").write_text(NETWORKS)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    save_file(model.state_dict(), "mlp.safetensors")
    for scale, path in ((1, "mlp.pt"), (2, "second.pt"), (4, "third.pt")):
        torch.save({name: scale * value for name, value in model.state_dict().items()}, path)
    x, y = torch.randn(40, 6), torch.arange(40) % 3
    np.savez("data.npz", x=x.numpy(), y=y.numpy())
    np.savez("new.npz", x=x.numpy())
    pep = pm.PepEnsemble.at_sigma(model, 0.1, size=2)
    pep.save("pep.json")
    torch.export.save(torch.export.export(model, (x,)), "model.pt2")
    Path("empty").touch()
    for k in range(6):
        Path(f"pictures/c{k % 3}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((9, 9, 3), 40 * k, dtype=np.uint8)).save(f"pictures/c{k % 3}/{k}.png")
    Path("pictures/c0/bad.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"?" * 40)
    for command, path in (("evaluate", "run.json"), ("abstain", "rule.json")):
        assert tried([command, *SANE[command]], keep=path)[0] == "success", command
    shutil.copytree(".", "originals")
    for command, words in SANE.items():  # in this process, so that the children need not import what these use
        with open("said", "w") as said, redirect_stdout(said), redirect_stderr(said):
            assert _exit_code([command, *words]) == 0, Path("said").read_text()


def mutated(generator: random.Random, number: int) -> list[str]:
    """A sane command line with up to three mutations."""
    command = generator.choice(list(SANE))
    words = [command, *SANE[command]]
    for turn in range(generator.randint(0, 3)):
        kind = generator.choice(("file", "file", "value", "value", "value", "option", "option", "drop", "word"))
        places = [k for k, word in enumerate(words) if k]
        if kind == "file":
            named = [k for k in places if os.path.isfile(words[k].removeprefix("npz:"))]
            if named:
                place = generator.choice(named)
                prefix, path = ("npz:", words[place][4:]) if words[place].startswith("npz:") else ("", words[place])
                words[place] = prefix + damaged(generator, Path(path), f"bad-{number}-{turn}")
        elif kind == "value":
            named = [k for k in places if words[k - 1] in OPTIONS]
            if named and generator.random() < 0.7:
                place = generator.choice(named)
                words[place] = generator.choice(OPTIONS[words[place - 1]])
            else:
                place = generator.choice(places)
                words[place] = generator.choice(MODELS if words[place].startswith("python:") else DATA)
        elif kind == "option":
            own = [option for parameter in app.load(command).params for option in parameter.opts if option in OPTIONS]
            name = generator.choice(own if own and generator.random() < 0.8 else list(OPTIONS))
            words += [word for word in (name, generator.choice(OPTIONS[name])) if word]
        elif kind == "drop":
            del words[generator.choice(places)]
        else:
            letters = generator.choices(string.printable + "σ\u2028\ud800", k=generator.randint(0, 12))
            words.insert(generator.choice(places), "".join(letters).replace("\0", "").encode("utf8", "ignore").decode())
        if len(words) < 2:
            return words
    return words


def damaged(generator: random.Random, path: Path, name: str) -> str:
    """A damaged copy of a file."""
    content = bytearray(path.read_bytes())
    kind = generator.choice(("cut", "flip", "zeros", "grow", "json", "empty"))
    if kind == "json" and path.suffix == ".json" and not path.name.startswith("bad-"):
        found = json.loads(content)
        key = generator.choice(list(found))
        values = [None, -1, 1e308, "x", [], {}, True, float("nan"), "🙂" * 100, [[[]]] * 5]
        if isinstance(found[key], dict) and found[key] and generator.random() < 0.6:
            found[key][generator.choice(list(found[key]))] = generator.choice(values)
        else:
            found[key] = generator.choice(values)
        content = bytearray(json.dumps(found).encode())
    elif kind == "cut":
        del content[generator.randrange(len(content) + 1) :]
    elif kind == "zeros" and content:
        start = generator.randrange(len(content))
        content[start : start + 64] = bytes(64)
    elif kind == "grow":
        content += generator.randbytes(generator.randint(1, 5000))
    elif kind == "empty":
        content.clear()
    else:
        for _ in range(generator.randint(1, 20)):
            if content:
                content[generator.randrange(len(content))] = generator.randrange(256)
    target = Path(name + path.suffix)
    target.write_bytes(content)
    return str(target)


def tried(words: list[str], keep: str = "") -> tuple[str, int]:
    """The outcome of one command line, and the bytes of memory that it took."""
    shutil.rmtree("out", ignore_errors=True)
    os.mkdir("out")
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _be_peppermill(words)
    deadline = time.monotonic() + SECONDS
    while True:
        done, status, used = os.wait4(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "hang", 0
        time.sleep(0.005)
    said, peak = Path("said").read_text(errors="replace"), used.ru_maxrss * 1024
    litter = [*Path().glob(".*"), *Path("out").glob(".*")]
    for path in [*Path().glob("bad-*"), *litter]:
        path.unlink()
    if keep:
        shutil.copy("out/" + keep, keep)
    outs = [path for option, path in pairwise(words) if option in ("--out", "-o")]
    asked = outs[-1] if outs else ""
    code = os.waitstatus_to_exitcode(status)
    if "Traceback (most recent call last)" in said and "--debug" not in words:
        return f"traceback: {said.strip().splitlines()[-1][:150]}", peak
    if code < 0:
        return f"killed: by signal {-code}", peak
    if peak > BYTES:
        return f"memory: {peak / 2**30:.1f} GB", peak
    if code == 0 and asked.startswith("out/") and not os.path.exists(asked) and "--help" not in words:
        return "silent: success without its file", peak
    if litter:
        return f"silent: left {litter[0]} behind", peak
    if not said.strip():
        return f"silent: exit {code} without a word", peak
    return ("success" if code == 0 else "refused"), peak


def _be_peppermill(words: list[str]) -> None:
    """The child: it never returns."""
    code = 70
    try:
        os.setpgid(0, 0)
        said = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")  # a runner of tests has replaced them
        code = _exit_code(words)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 255)


def _exit_code(words: list[str]) -> int:
    sys.argv = ["peppermill", *words]
    try:
        runpy.run_module("peppermill", run_name="__main__", alter_sys=False)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    return 0
