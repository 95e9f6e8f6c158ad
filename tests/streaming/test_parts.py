"""Predictions in parts: right, whole or absent, the same bytes whatever happened, and refused for another job."""

import hashlib
import json
import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import peppermill as pm

ITEMS, INPUTS, CLASSES = 1030, 5, 4


@pytest.fixture
def pep():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(INPUTS, 8), nn.ReLU(), nn.Linear(8, CLASSES)).eval()
    return pm.PepEnsemble.at_sigma(network, 0.2, size=3)


@pytest.fixture
def x():
    return torch.randn(ITEMS, INPUTS, generator=torch.Generator().manual_seed(1))


def write(pep, data, folder, **options):
    return pm.write_predictions(pep, data, folder, **{"batch_size": 50, "part_items": 200, "format": "npz", **options})


def read(folder):
    """The columns of all parts in the order of the manifest, by NumPy."""
    manifest = json.loads((folder / "manifest.json").read_text())
    files = [np.load(folder / part["file"], allow_pickle=False) for part in manifest["parts"]]
    return {name: np.concatenate([file[name] for file in files]) for name in files[0].files}


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


class Stream(IterableDataset):
    def __init__(self, x):
        self.x = x

    def __iter__(self):
        return iter(self.x)


FORMS = {
    "tensor": lambda x: x,
    "array": lambda x: x.numpy(),
    "pair": lambda x: (x, torch.arange(ITEMS)),
    "tensor data set": lambda x: TensorDataset(x),
    "labelled data set": lambda x: TensorDataset(x, torch.arange(ITEMS)),
    "loader": lambda x: DataLoader(TensorDataset(x, torch.arange(ITEMS)), batch_size=50),
    "loader that would drop the last": lambda x: DataLoader(TensorDataset(x), batch_size=50, drop_last=True),
    "loader with workers": lambda x: DataLoader(TensorDataset(x), batch_size=50, num_workers=1),
    "loader of inputs": lambda x: DataLoader(TensorDataset(x), batch_size=50),
    "iterable loader": lambda x: DataLoader(Stream(x), batch_size=50),
    "list of batches": lambda x: list(x.split(50)),
    "generator": lambda x: (batch for batch in x.split(50)),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_data_gives_the_same_predictions(pep, x, tmp_path, form):
    """Those of one call of the ensemble for each batch, in the order of the data."""
    found = write(pep, FORMS[form](x), tmp_path / "out", columns=["probabilities", "predicted"])
    assert (found.written, found.parts, found.items, found.complete) == (6, 6, ITEMS, True)
    table = read(tmp_path / "out")
    expected = torch.cat([pep.predict_proba(batch) for batch in x.split(50)]).numpy()
    np.testing.assert_allclose(table["probabilities"], expected, atol=1e-7)
    np.testing.assert_array_equal(table["predicted"], expected.argmax(axis=1))
    np.testing.assert_array_equal(table["row"], np.arange(ITEMS))
    assert ("labels" in table) == (form in ("pair", "labelled data set", "loader"))
    np.testing.assert_array_equal(table.get("labels", np.arange(ITEMS)), np.arange(ITEMS))


@pytest.mark.parametrize("form", FORMS)
def test_predict_proba_takes_every_form_of_data(pep, x, form):
    """Batch by batch, in the order of the data; a short batch at the end included."""
    expected = torch.cat([pep(batch).exp() for batch in x.split(50)]).detach()
    torch.testing.assert_close(pep.predict_proba(FORMS[form](x)), expected)


def test_predict_proba_of_a_dict_calls_the_network_with_its_names(x):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(INPUTS, CLASSES)

        def forward(self, *, left, right):
            return self.layer(left - right)

    pep = pm.PepEnsemble.at_sigma(Named().double().eval(), 0.2, size=3)
    found = pep.predict_proba({"left": x.numpy(), "right": torch.zeros_like(x)})
    assert found.dtype == torch.double
    torch.testing.assert_close(found, pep(left=x.double(), right=torch.zeros_like(x).double()).exp().detach())
    loader = DataLoader([{"left": one, "right": one, "label": 0} for one in x[:7]], batch_size=3)
    torch.testing.assert_close(pep.predict_proba(loader), pep.predict_proba(left=x[:7].double(), right=x[:7].double()))


def test_predict_proba_keeps_the_layout_of_the_network(x):
    """[N, classes, height, width] of pixels, and [N] of a yes-or-no question."""
    images = torch.randn(30, 2, 4, 4)
    pixels = pm.PepEnsemble.at_sigma(nn.Conv2d(2, 3, 1).eval(), 0.2, size=2)
    torch.testing.assert_close(pixels.predict_proba(images.numpy()), pixels.predict_proba(images))
    yes = pm.PepEnsemble.at_sigma(
        nn.Sequential(nn.Linear(INPUTS, 1), nn.Flatten(0)).eval(), 0.2, likelihood="bernoulli"
    )
    found = yes.predict_proba(DataLoader(x, batch_size=400))
    torch.testing.assert_close(found, yes(x).sigmoid().detach())


@pytest.mark.parametrize(
    ("data", "error", "match"),
    [([], ValueError, "`data` has no items"), ("text", TypeError, "`data` is a str: give a DataLoader")],
)
def test_predict_proba_refuses_what_are_no_data(pep, data, error, match):
    with pytest.raises(error, match=match):
        pep.predict_proba(data)


@pytest.mark.parametrize("form", ["tensor", "loader", "iterable loader", "generator"])
@pytest.mark.parametrize("file_format", ["npz", "parquet"])
def test_a_restart_after_any_loss_gives_the_same_bytes(pep, x, tmp_path, form, file_format):
    """Also if only the last part, one short batch, is left, and if a killed process left half a file."""
    write(pep, FORMS[form](x), tmp_path / "whole", format=file_format, columns="probabilities,entropy")
    expected, generator = contents(tmp_path / "whole"), random.Random(form)
    parts = [name for name in expected if name.parent.name == "parts"]
    for lost in ([parts[-1]], [parts[0]], generator.sample(parts, 3)):
        shutil.copytree(tmp_path / "whole", tmp_path / "cut")
        for name in lost:
            (tmp_path / "cut" / name).unlink()
        for place in ("parts/.0123456789abcdef", ".0123456789abcdef"):
            (tmp_path / "cut" / place).write_bytes(b"half a file")
        found = write(
            pep.with_engine(), FORMS[form](x), tmp_path / "cut", format=file_format, columns="probabilities,entropy"
        )
        assert found.written == len(lost)
        assert contents(tmp_path / "cut") == expected
        shutil.rmtree(tmp_path / "cut")


def test_the_manifest_says_which_rows_and_which_bytes(pep, x, tmp_path):
    write(pep, x, tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert [part["rows"] for part in manifest["parts"]] == [[k, min(k + 200, ITEMS)] for k in range(0, ITEMS, 200)]
    for part in manifest["parts"]:
        digest = hashlib.sha256((tmp_path / part["file"]).read_bytes()).hexdigest()
        assert digest.startswith(part["sha256"])
        assert len(part["sha256"]) == 16
    assert manifest["complete"] is True


def test_pandas_reads_the_folder_of_parts(pep, x, tmp_path):
    write(pep, x, tmp_path, format="parquet", top=2, columns="probabilities,mutual_information")
    table, expected = pandas.read_parquet(tmp_path / "parts"), pep.uncertainty(x)
    np.testing.assert_allclose(table["mutual_information"], expected.mutual_information, atol=1e-6)
    best = expected.outputs.exp().sort(dim=1, descending=True)
    np.testing.assert_allclose(np.stack(table["probabilities"]), best.values[:, :2], atol=1e-6)
    np.testing.assert_array_equal(np.stack(table["classes"]), best.indices[:, :2])


OTHERS = {
    "network": (lambda pep, x: (pm.PepEnsemble.at_sigma(nn.Linear(INPUTS, CLASSES).eval(), 0.2, size=3), x, {})),
    "sigma": (lambda pep, x: (pep.with_sigma(0.3), x, {})),
    "temperature": (lambda pep, x: (pep.with_temperature(1.5), x, {})),
    "the network alone": (lambda pep, x: (pep.model, x, {})),
    "a number": (lambda pep, x: (pep, torch.cat([x[:-1], x[-1:] + 1]), {})),
    "fewer items": (lambda pep, x: (pep, x[:-1], {})),
    "columns": (lambda pep, x: (pep, x, {"columns": "entropy"})),
    "top": (lambda pep, x: (pep, x, {"top": 2})),
    "format": (lambda pep, x: (pep, x, {"format": "parquet"})),
    "batch size": (lambda pep, x: (pep, x, {"batch_size": 20})),
    "part size": (lambda pep, x: (pep, x, {"part_items": 400})),
}
WORDS = {
    "network": "of a network with other weights",
    "sigma": "of another ensemble",
    "temperature": "of another ensemble",
    "the network alone": "or of the network alone",
    "a number": "for other data",
    "fewer items": "for other data",
}


@pytest.mark.parametrize("change", OTHERS)
def test_another_job_is_refused_and_nothing_is_lost(pep, x, tmp_path, change):
    write(pep, x, tmp_path)
    before = contents(tmp_path)
    predictor, data, options = OTHERS[change](pep, x)
    with pytest.raises(ValueError, match=f"holds predictions .*{WORDS.get(change, '')}.*name another folder"):
        write(predictor, data, tmp_path, **options)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("notes.txt", "mine", "holds other files and no manifest.json: name a new or an empty folder"),
        ("manifest.json", "{}", "manifest.json is not a peppermill manifest"),
        ("manifest.json", "{", "is truncated or corrupted"),
    ],
)
def test_a_folder_of_something_else_is_refused(pep, x, tmp_path, name, text, match):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=match):
        write(pep, x, tmp_path)
    assert contents(tmp_path) == {Path(name): text.encode()}


@pytest.mark.parametrize("data", [torch.zeros(0, INPUTS), [], iter([])], ids=["tensor", "list", "iterator"])
def test_no_items_are_an_error(pep, tmp_path, data):
    with pytest.raises(ValueError, match="`data` has no items"):
        write(pep, data, tmp_path / "out")


@pytest.mark.parametrize(
    ("data", "error", "match"),
    [
        ("text", TypeError, "`data` is a str: give a DataLoader"),
        (DataLoader(TensorDataset(torch.zeros(9, 5)), shuffle=True), ValueError, "`data` is shuffled"),
        (
            (torch.zeros(3, 5), torch.zeros(2)),
            ValueError,
            "`data` has 3 inputs and 2 labels: each input needs one label",
        ),
        ({"a": torch.zeros(3, 5), "b": torch.zeros(2)}, ValueError, "has 2, 3 inputs: .* all arrays one length"),
        (torch.full((3, 5), torch.nan), ValueError, "the prediction for item 0 is NaN"),
    ],
)
def test_data_that_cannot_be_are_refused(pep, tmp_path, data, error, match):
    with pytest.raises(error, match=match):
        write(pep, data, tmp_path / "out")


def test_a_network_in_training_mode_is_refused(pep, x, tmp_path):
    with pytest.raises(ValueError, match="in training mode"):
        write(pep.model.train(), x, tmp_path / "out")


def test_a_full_disk_is_one_line_and_keeps_the_parts(pep, x, tmp_path):
    """A tmpfs of 64 kB; when it has room, the job goes on and gives what an undisturbed one gives."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("no right to mount a file system")
    try:
        with pytest.raises(OSError, match=r"the disk is full: .* what was finished is kept. Make room and run"):
            write(pep, x, disk / "out")
        assert not [path for path in (disk / "out" / "parts").iterdir() if path.name.startswith(".")]
        subprocess.run(["mount", "-o", "remount,size=1m", disk], check=True)
        assert write(pep, x, disk / "out").written < 6
        write(pep, x, tmp_path / "undisturbed")
        assert contents(disk / "out") == contents(tmp_path / "undisturbed")
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_file_in_place_of_the_folder_is_refused(pep, x, tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(ValueError, match="is a file: give the path of a folder"):
        write(pep, x, tmp_path / "out")


def test_a_mapped_array_is_read_and_not_held(pep, x, tmp_path):
    """Its rows begin in the middle of the file."""
    np.save(tmp_path / "x.npy", x.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for name, data in (("mapped", mapped), ("part", mapped[7:]), ("tensor", x)):
        write(pep, data, tmp_path / name)
    assert contents(tmp_path / "mapped") == contents(tmp_path / "tensor")
    np.testing.assert_allclose(
        read(tmp_path / "part")["log_probs"], read(tmp_path / "tensor")["log_probs"][7:], atol=1e-6
    )


def test_changes_to_a_map_in_memory_count(pep, x, tmp_path):
    """Of a copy-on-write map: the file still has the old numbers."""
    np.save(tmp_path / "x.npy", x.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="c")
    mapped *= 2
    [found] = pm.stream(pep, mapped, batch_size=ITEMS, columns="probabilities")
    np.testing.assert_allclose(found["probabilities"], pep.predict_proba(2 * x), atol=1e-6)


def test_stream_gives_batches_as_they_come(pep, x):
    """Of data without end, as many as are asked for."""

    def forever():
        while True:
            yield x[:50], torch.arange(50)

    found = pm.stream(pep, forever(), columns="probabilities,confidence")
    first, second = next(found), next(found)
    assert list(first) == ["row", "probabilities", "confidence", "labels"]
    np.testing.assert_array_equal(second["row"], np.arange(50, 100))
    np.testing.assert_allclose(second["probabilities"], pep.predict_proba(x[:50]), atol=1e-7)
    np.testing.assert_allclose(second["confidence"], second["probabilities"].max(axis=1), rtol=1e-6)


def test_stream_takes_networks_of_every_likelihood(x):
    network = nn.Linear(INPUTS, 2).eval()
    batch = next(pm.stream(network, x, likelihood="gaussian", columns="mean,variance"))
    outputs = network(x[:500]).detach()
    np.testing.assert_allclose(batch["mean"], outputs[:, 0], atol=1e-6)
    np.testing.assert_allclose(batch["variance"], outputs[:, 1].exp(), rtol=1e-5)
    batch = next(pm.stream(network, {"input": x}, likelihood="bernoulli"))
    np.testing.assert_allclose(np.exp(batch["log_probs"][..., 1]), outputs.sigmoid(), atol=1e-6)


@pytest.mark.parametrize(("items", "seen"), [(1030, {50}), (20, {20})])
def test_the_network_sees_full_batches_only(x, items, seen):
    """The last 30 of 1,030 items come in a batch of 50, so that no number depends on where a process began."""
    sizes = set()

    class Watched(nn.Linear):
        def forward(self, inputs):
            sizes.add(len(inputs))
            return super().forward(inputs)

    found = list(pm.stream(Watched(INPUTS, CLASSES).eval(), x[:items], batch_size=50))
    assert sizes == seen
    assert sum(len(batch["log_probs"]) for batch in found) == items
