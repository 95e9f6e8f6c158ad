"""The embedded network and its data are what they claim to be."""

import gzip
import hashlib
import json
from importlib.resources import files

import numpy as np
import pytest
import torch

from peppermill import demo

FOLDER = files("peppermill.demo")


@pytest.fixture(scope="module")
def published():
    """The 10,000 images and labels, read by hand: 16 and 8 bytes of header, then one byte for each number."""
    images = gzip.decompress((FOLDER / "t10k-images-idx3-ubyte.gz").read_bytes())[16:]
    labels = gzip.decompress((FOLDER / "t10k-labels-idx1-ubyte.gz").read_bytes())[8:]
    return np.frombuffer(images, np.uint8).reshape(10_000, 28, 28), np.frombuffer(labels, np.uint8)


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
        ("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
    ],
)
def test_the_files_are_those_that_the_authors_of_fashion_mnist_publish(name, digest):
    assert hashlib.md5((FOLDER / name).read_bytes()).hexdigest() == digest


def test_the_weights_are_those_that_the_training_script_wrote():
    raw = (FOLDER / "network.safetensors").read_bytes()
    assert len(raw) < 1_000_000
    assert hashlib.sha256(raw).hexdigest() == json.loads((FOLDER / "training.json").read_text())["sha256"]


def test_validation_and_test_are_two_halves_of_the_published_items(published):
    """Each image with its label occurs in the two halves together as often as in the published files."""
    (images, labels), (other_images, other_labels) = demo.data()
    assert tuple(images.shape) == tuple(other_images.shape) == (5000, 1, 28, 28)
    assert len(labels) == len(other_labels) == 5000
    halves = torch.cat([images, other_images]).mul(255).round().to(torch.uint8).squeeze(1).numpy()
    found = sorted(zip(map(bytes, halves), torch.cat([labels, other_labels]).tolist(), strict=True))
    assert found == sorted(zip(map(bytes, published[0]), published[1].tolist(), strict=True))


def test_the_split_is_fixed(published):
    """Pinned, for every number in the README depends on it: positions in the published file of the first test items."""
    _, (images, labels) = demo.data()
    whole = [image.tobytes() for image in published[0]]
    first = [whole.index(image.mul(255).round().to(torch.uint8).numpy().tobytes()) for image in images[:6]]
    assert first == sorted(first)
    assert first == np.sort(np.random.RandomState(0).permutation(10_000)[5000:])[:6].tolist()
    assert published[1][first].tolist() == labels[:6].tolist()


def test_inputs_are_numbers_from_0_to_1_and_labels_ten_classes():
    for images, labels in demo.data():
        assert images.dtype == torch.float32
        assert (images.min(), images.max()) == (0, 1)
        assert labels.dtype == torch.int64
        assert sorted(labels.unique().tolist()) == list(range(10)) == list(range(len(demo.CLASS_NAMES)))


def test_the_network_is_overconfident_on_images_it_has_never_seen():
    """It errs on 2 % of its training images, and on far more of these than its confidence says."""
    network, (_, (images, labels)) = demo.network(), demo.data()
    assert not network.training
    with torch.no_grad():
        confidence, predicted = network(images).softmax(dim=1).max(dim=1)
    error = float((predicted != labels).double().mean())
    training = json.loads((FOLDER / "training.json").read_text())["epochs"][-1]["error"]
    assert training < 0.03
    assert 0.07 < error < 0.13
    assert float(confidence.double().mean()) > 1 - error + 0.03
