"""The built wheel, installed in an empty folder, runs the demo, and the demo shows what it promises."""

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from matplotlib.image import imread

import peppermill as pm
import peppermill.demo

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.slow

#: `peppermill demo`, tuned on 300 of its 5,000 images, too few for noise by layer, which is most of the work; tested on
#: all.
DEMO = """
import peppermill.demo
(images, labels), test = peppermill.demo.data()
peppermill.demo.data = lambda: ((images[:300], labels[:300]), test)
from peppermill.__main__ import main
main()
"""


def run(*command, **options):
    found = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder, ROOT)
    [found] = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def demo(wheel, tmp_path_factory) -> Path:
    """The folder that `peppermill demo` wrote, with what it said in `stdout`; nothing of the checkout in sight."""
    site, folder = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("empty")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", "--target", site, wheel)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    assert run(sys.executable, "-m", "peppermill", "--version", cwd=folder, env=environment)
    shown = run(sys.executable, "-c", DEMO, "demo", "--size", "2", cwd=folder, env=environment)
    (folder / "peppermill-demo" / "stdout").write_text(shown)
    return folder / "peppermill-demo"


@pytest.fixture(scope="module")
def content(demo):
    """The run, as strict JSON."""

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads((demo / "run.json").read_text(), parse_constant=refuse)


def test_the_wheel_is_small_and_whole(wheel):
    assert wheel.stat().st_size < 7_000_000
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for name in (
        "peppermill/py.typed",
        "peppermill/demo/network.safetensors",
        "peppermill/demo/training.json",
        "peppermill/demo/t10k-images-idx3-ubyte.gz",
        "peppermill/demo/t10k-labels-idx1-ubyte.gz",
        "peppermill/demo/LICENSE-fashion-mnist",
    ):
        assert name in names
    licenses = [name.partition(".dist-info/licenses/")[2] for name in names if ".dist-info/licenses/" in name]
    assert sorted(licenses) == ["LICENSE", "peppermill/demo/LICENSE-fashion-mnist"]
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"peppermill"}
    assert not any("tests" in name for name in names)


def test_an_index_would_take_the_wheel(wheel):
    run(sys.executable, "-m", "twine", "check", "--strict", wheel)
    run(sys.executable, "-m", "check_wheel_contents", "--config", ROOT / "pyproject.toml", wheel)


def test_links_of_a_released_readme_lead_to_the_repository(tmp_path):
    run(sys.executable, ROOT / "scripts" / "release_files.py", tmp_path, "https://example.org/me/pep/")
    readme = (tmp_path / "README.md").read_text(encoding="utf-8")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    links = re.findall(r"\]\(([^)]+)\)", readme)
    assert f"https://example.org/me/pep/blob/v{version}/CITATION.cff" in links
    assert f"https://example.org/me/pep/raw/v{version}/docs/images/sigma.png" in links
    assert [link for link in links if not link.startswith("https://")] == []
    urls = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    assert urls["Documentation"] == "https://me.github.io/pep/"
    assert urls["Issues"] == "https://example.org/me/pep/issues"


def test_one_version_everywhere():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_wheel_offers_the_command_and_names_its_needs(wheel):
    with zipfile.ZipFile(wheel) as archive:
        [entry] = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        [metadata] = [name for name in archive.namelist() if name.endswith("METADATA")]
        assert "peppermill = peppermill.__main__:main" in archive.read(entry).decode()
        lines = archive.read(metadata).decode().splitlines()
    required = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    core = {line.split(">")[0] for line in required if "extra ==" not in line}
    assert core == {"torch", "numpy", "scipy", "safetensors", "typer", "rich"}
    assert any(line.startswith("matplotlib") and "extra == 'plots'" in line for line in required)


def test_the_installed_demo_is_not_the_checkout(content):
    versions = content["provenance"]["versions"]
    assert versions["peppermill"] != "from a checkout"
    assert content["provenance"]["commit"] is None
    assert content["provenance"]["command"].endswith("demo --size 2")


def test_the_demo_writes_its_files(demo):
    names = {path.name for path in demo.iterdir()} - {"pep.arrays.safetensors"}  # arrays of a calibrator
    assert names == {
        "pep.json",
        "run.json",
        "sigma.png",
        "reliability.png",
        "report.html",
        "stdout",
    }
    assert (demo / "pep.json").stat().st_size < 4000
    for name in ("sigma.png", "reliability.png"):
        assert (demo / name).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        pixels = imread(demo / name)
        assert min(pixels.shape[:2]) > 300
        assert pixels[..., :3].std() > 0.05


@pytest.mark.parametrize("score", ["nll", "ece"])
def test_pep_is_significantly_better_than_the_network(content, score):
    """On 5,000 images that neither the training nor the tuning has seen; p-values are corrected for three methods."""
    methods = {method["name"]: method for method in content["methods"]}
    for name in ("PEP", "PEP with temperature"):
        assert methods[name]["scores"]["items"] == 5000
        difference = methods[name]["comparison"]["differences"][score]
        assert difference["value"] < difference["upper"] < 0
        assert difference["p_value"] < 0.05


def test_the_scores_can_be_had_again_from_the_saved_ensemble(demo, content):
    """In this process, from the file alone."""
    network, (_, test) = peppermill.demo.network(), peppermill.demo.data()
    pep = pm.load(demo / "pep.json", network)
    again = pm.predict(pep, (test[0][:500], test[1][:500])).log_likelihoods
    assert pep.method == content["methods"][-1]["name"]
    nll = content["methods"][-1]["scores"]["estimates"]["nll"]["value"]
    assert float(-again.mean()) == pytest.approx(nll, abs=4 * float(again.std()) / 500**0.5)


def test_the_table_shows_what_the_run_holds(demo, content):
    shown = (demo / "stdout").read_text()
    for method in content["methods"]:
        assert method["name"] in shown
        assert f"{method['scores']['estimates']['nll']['value']:.4f}" in shown
        assert f"{100 * method['scores']['estimates']['ece']['value']:.2f}" in shown
    assert "ECE % (20 bins)" in shown
    assert "Your own model, in Python:" in shown
