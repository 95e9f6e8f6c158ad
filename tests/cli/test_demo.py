"""`peppermill demo` on a few of its images; tests/test_packaging.py runs the whole of it."""

import json
import os
import re
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


IMAGES = 16  # of each half: most of the work, finding noise by layer, grows with their number


def run_on_few(out, *options):
    """The demo on a few images: what it wrote on stdout."""
    cut = tuple((images[:IMAGES], labels[:IMAGES]) for images, labels in peppermill.demo.data())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peppermill.demo, "data", lambda: cut)
        found = CliRunner().invoke(app, ["demo", "--passes", "2", "--out", str(out), *options])
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
    listed = ["pep.json", "run.json", "sigma.png", "reliability.png"]
    assert f"wrote {out}/: {', '.join(listed)} (" in written
    assert f"Open {out}/report.html in a browser" in written
    assert {path.name for path in out.iterdir()} == {*listed, "report.html"}


def test_the_table_ends_with_the_choice_of_the_race_which_is_saved(written, out):
    methods = {method["name"]: method for method in methods_of(out)}
    pep = pm.load(out / "pep.json", peppermill.demo.network())
    assert {"network", "PEP", "PEP with temperature"} < set(methods)
    assert list(methods)[-1] == pep.method
    assert methods[pep.method]["forward_passes"] == pep.passes <= 2
    for candidate in pep.race.candidates:
        assert f"{candidate.name} " in written
    assert f"chosen: {pep.race.choice.name}." in written
    race = json.loads((out / "run.json").read_text())["race"]
    assert race["method"] == pep.method
    assert [c["name"] for c in race["candidates"]] == [c.name for c in pep.race.candidates]


def test_the_last_line_says_what_more_passes_would_give(written, out):
    assert methods_of(out)[-1]["forward_passes"] == 1
    assert re.search(r"(No extra pass pays|More passes pay here): .*, at 2 forward passes, reaches NLL", written)


def test_what_to_try_next_can_be_tried(written, done, folder):
    """Its commands run as they stand in a folder with a my_models.py, weights and data of those names."""
    with (folder / "my_models.py").open("a") as file:
        file.write("\nmake = resnet\n")
    (folder / "resnet.safetensors").rename(folder / "model.safetensors")
    ending = written[written.index("Your own model") :]
    assert "pm.calibrate(model, validation)" in ending
    commands = [line.split() for line in ending.splitlines() if line.strip().startswith("peppermill ")]
    assert [command[1] for command in commands] == ["calibrate", "evaluate", "report"]
    for command in commands:
        done(*command[1:])


@pytest.mark.slow
def test_another_seed_gives_other_members(written, out, tmp_path):
    run_on_few(tmp_path, "--seed", "1")
    first, other = ({m["name"]: m["fitted"] for m in methods_of(folder)} for folder in (out, tmp_path))
    assert first["PEP"] != other["PEP"]


@pytest.mark.slow
def test_without_matplotlib_it_works_says_the_cure_and_finds_the_same_numbers(written, out, tmp_path):
    """In a process of its own that cannot import matplotlib; the same seed gives the same numbers there."""
    code = f"""
        import sys

        class Blocked:
            def find_spec(self, name, *_):
                if name.partition(".")[0] == "matplotlib":
                    raise ModuleNotFoundError("No module named 'matplotlib'")

        sys.meta_path.insert(0, Blocked())
        import peppermill.demo
        cut = tuple((images[:{IMAGES}], labels[:{IMAGES}]) for images, labels in peppermill.demo.data())
        peppermill.demo.data = lambda: cut
        from peppermill.cli.app import main
        sys.argv = ["peppermill", "demo", "--passes", "2"]
        main()
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, cwd=tmp_path, check=False,
        env={**os.environ, "PYTHONPATH": CHECKOUT, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert 'run.json; no pictures, because pictures need matplotlib: `pip install "peppermill[plots]"`.' in found.stdout
    results = tmp_path / "peppermill-demo"
    assert {path.name for path in results.iterdir()} == {"pep.json", "run.json", "report.html"}
    assert methods_of(results) == methods_of(out)
