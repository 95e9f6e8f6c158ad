"""`peppermill demo` on a few of its images; tests/test_packaging.py runs the whole of it."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from typer.testing import CliRunner

import peppermill as pm
import peppermill.demo
from peppermill.cli.app import app

CHECKOUT = str(Path(pm.__file__).resolve().parents[1])


def run_on_few(out, *options):
    """The demo on 300 images of each half: what it wrote on stdout."""
    cut = tuple((images[:300], labels[:300]) for images, labels in peppermill.demo.data())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peppermill.demo, "data", lambda: cut)
        found = CliRunner().invoke(app, ["demo", "--size", "2", "--out", str(out), *options])
    assert found.exit_code == 0, found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("demo") / "deep" / "results"


@pytest.fixture(scope="module")
def written(out):
    return run_on_few(out)


def methods_of(folder):
    return json.loads((folder / "run.json").read_text())["methods"]


def test_it_writes_what_it_says(written, out):
    listed = ["pep.json", "pep-temperature.json", "run.json", "sigma.png", "reliability.png"]
    assert f"wrote {out}/: {', '.join(listed)} (" in written
    assert f"Open {out}/report.html in a browser" in written
    assert {path.name for path in out.iterdir()} == {*listed, "report.html"}


def test_the_files_belong_to_the_methods_of_the_run(written, out):
    methods = {method["name"]: method for method in methods_of(out)}
    assert list(methods) == ["network", "temperature scaling", "PEP", "PEP with temperature"]
    for name, file in (("PEP", "pep.json"), ("PEP with temperature", "pep-temperature.json")):
        pep = pm.load(out / file, peppermill.demo.network())
        assert methods[name]["fitted"]["sigma"] == pep.sigma
        assert methods[name]["fitted"].get("temperature", 1.0) == pep.temperature
        assert methods[name]["forward_passes"] == (pep.size if pep.sigma else 1)
        assert pep.size == 2


@pytest.mark.slow
def test_the_same_seed_gives_the_same_numbers(written, out, tmp_path):
    for name, seed in (("same", "0"), ("other", "1")):
        run_on_few(tmp_path / name, "--seed", seed)
    assert methods_of(tmp_path / "same") == methods_of(out)
    assert methods_of(tmp_path / "other")[2]["fitted"] != methods_of(out)[2]["fitted"]


def test_what_to_try_next_can_be_tried(written, done, folder):
    """Its commands run as they stand in a folder with a my_models.py, weights and data of those names."""
    with (folder / "my_models.py").open("a") as file:
        file.write("\nmake = resnet\n")
    (folder / "resnet.safetensors").rename(folder / "model.safetensors")
    ending = written[written.index("Your own model") :]
    assert "pm.fit(model, validation, temperature=True)" in ending
    commands = [line.split() for line in ending.splitlines() if line.strip().startswith("peppermill ")]
    assert [command[1] for command in commands] == ["fit", "evaluate", "report"]
    for command in commands:
        done(*command[1:])


@pytest.mark.slow
def test_without_matplotlib_it_works_and_says_the_cure(tmp_path):
    """In a process of its own, in which nobody can import it; on 300 images of each half."""
    code = """
        import sys

        class Blocked:
            def find_spec(self, name, *_):
                if name.partition(".")[0] == "matplotlib":
                    raise ModuleNotFoundError("No module named 'matplotlib'")

        sys.meta_path.insert(0, Blocked())
        import peppermill.demo
        cut = tuple((images[:300], labels[:300]) for images, labels in peppermill.demo.data())
        peppermill.demo.data = lambda: cut
        from peppermill.cli.app import main
        sys.argv = ["peppermill", "demo", "--size", "2"]
        main()
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": CHECKOUT}, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert 'run.json; no pictures, because pictures need matplotlib: `pip install "peppermill[plots]"`.' in found.stdout
    names = {path.name for path in (tmp_path / "peppermill-demo").iterdir()}
    assert names == {"pep.json", "pep-temperature.json", "run.json", "report.html"}
