"""`keras:NAME` and files that Keras wrote. What a Keras model does inside PEP is in test_keras_module.py."""

import sys
import zipfile

import keras
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import peppermill as pm
from peppermill.parameters import select
from peppermill.plumbing.networks import as_network
from peppermill.sources import source_from
from peppermill.sources.pictures import resized_by_the_paper

from . import tiny
from .pictures import folder_of

pytestmark = [
    pytest.mark.slow,  # the library takes seconds to import
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # of Keras beside numpy 2
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file"),
]

layers = keras.layers


def saved(path, *last):
    """A small classifier of images [8, 8, 1], saved; the model that was saved."""
    keras.utils.set_random_seed(0)
    body = [layers.Conv2D(4, 3), layers.BatchNormalization(), layers.Dropout(0.5), layers.Flatten()]
    model = keras.Sequential([keras.Input((8, 8, 1)), *body, *last], name="network")
    model.save(path)
    return model


@pytest.fixture
def images():
    return 5 * torch.randn(50, 8, 8, 1, generator=torch.Generator().manual_seed(0))


def test_an_application_gives_logits_and_takes_channels_last():
    source = source_from("keras:MobileNetV2?pretrained=false&classes=5&size=64")
    inputs = source.prepare(tiny.picture())
    assert inputs.shape == (64, 64, 3)
    assert inputs[30, 10].tolist() == pytest.approx([200 / 127.5 - 1, -1, -1], abs=1e-3)  # red; MobileNetV2 sees -1..1
    logits = source.model(inputs[None])
    assert logits.shape == (1, 5)
    assert source.model.layers[-1].activation in (None, keras.activations.linear)
    assert not source.model.training


def test_resnet50_by_name_has_53_convolution_kernels_to_perturb():
    source = source_from("keras:ResNet50?pretrained=false&size=32&classes=3")
    assert len(select(as_network(source.model), "conv")) == 53


def test_images_are_resized_by_their_short_side_cropped_and_scaled_by_keras():
    """224 pixels from the middle of 256, as the paper did; ResNet50 sees blue, green, red minus ImageNet's means."""
    prepare = source_from("keras:ResNet50?pretrained=false").prepare
    pixels = prepare(tiny.picture(80, 64))
    assert pixels.shape == (224, 224, 3)
    assert pixels[100, 20].tolist() == pytest.approx([-103.939, -116.779, 200 - 123.68], abs=1e-3)
    assert pixels[100, 200].tolist() == pytest.approx([200 - 103.939, -116.779, -123.68], abs=1e-3)
    wide = prepare(tiny.picture(448, 224))  # the border between red and blue stays in the middle
    assert (wide[0, 100, 2] > 0, wide[0, 124, 2] > 0) == (True, False)


def test_images_are_cut_as_those_of_table_1_are(tmp_path):
    """Sides that another rounding makes a pixel longer, or crops a pixel further down."""
    source = source_from("keras:ResNet50?pretrained=false")
    for width, height in ((333, 250), (250, 333), (301, 299)):
        picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))
        square = resized_by_the_paper(picture, 256, 224)
        expected = keras.applications.resnet.preprocess_input(np.asarray(square, dtype=np.float32))
        assert np.array_equal(source.prepare(picture).numpy(), expected)


@pytest.mark.parametrize("ending", [".keras", ".h5"])
@pytest.mark.parametrize(
    "last",
    [
        lambda: [layers.Dense(3, activation="softmax")],
        lambda: [layers.Dense(3), layers.Softmax()],
        lambda: [layers.Dense(3), layers.Activation("softmax")],
        lambda: [layers.Dense(3)],
    ],
    ids=["in the layer", "as a layer", "as an activation", "none"],
)
def test_a_file_gives_logits_whatever_its_network_ends_in(ending, last, images, tmp_path):
    """Their softmax is what the saved network said, or its logits are."""
    model = saved(tmp_path / f"model{ending}", *last())
    found = source_from(f"keras:{tmp_path}/model{ending}")
    with torch.no_grad():
        before, logits = model(images), found.model(images)
    expected = before.log() if torch.allclose(before.sum(dim=1), torch.ones(50)) else before.log_softmax(dim=1)
    torch.testing.assert_close(logits.log_softmax(dim=1), expected, atol=1e-4, rtol=1e-4)
    assert len(select(as_network(found.model), "kernels")) == 2
    assert found.prepare is None


def test_a_sigmoid_is_taken_off_too(images, tmp_path):
    model = saved(tmp_path / "model.keras", layers.Dense(1, activation="sigmoid"))
    found = source_from(f"keras:{tmp_path}/model.keras").model
    with torch.no_grad():
        torch.testing.assert_close(found(images).sigmoid(), model(images))


def test_the_command_line_fits_and_evaluates_a_saved_model(images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = saved("model.keras", layers.Dense(3, activation="softmax"))
    labels = tiny.overconfident_labels(model(images).log())
    np.savez("images.npz", x=images.numpy(), y=labels.numpy())
    fitted = tiny.run("fit", "keras:model.keras", "npz:images.npz", "--size", "4")
    assert fitted.exit_code == 0, fitted.stderr
    scored = tiny.run("evaluate", "keras:model.keras", "npz:images.npz", "--pep", "pep.json")
    assert scored.exit_code == 0, scored.stderr
    pep = pm.load("pep.json", source_from("keras:model.keras").model)
    assert pep.sigma > 0
    assert f"{pm.evaluate(pep, (images, labels)).nll.value:.4f}" in scored.stdout


def test_a_saved_model_takes_a_folder_of_pictures_with_the_channels_last(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((6, 6, 3)), layers.Conv2D(4, 3), layers.GlobalAveragePooling2D(), layers.Dense(2)], name="network"
    )
    model.save("model.keras")
    folder_of(tmp_path / "val", {"cat": 3, "dog": 2}, height=6, width=6)
    found = tiny.run("predict", "keras:model.keras", "imagefolder:val?size=6&std=0.5,0.5,0.5")
    assert found.exit_code == 0, found.stderr
    pixels = [np.array(Image.open(path)) for path in sorted((tmp_path / "val").glob("*/*.png"))]
    with torch.no_grad():
        expected = model(torch.from_numpy(np.stack(pixels) / 255 / 0.5).float()).log_softmax(dim=1)
    with np.load("predictions.npz") as predictions:
        np.testing.assert_allclose(predictions["log_probs"], expected, atol=1e-5)


@pytest.mark.parametrize("ending", [".weights.h5", ".safetensors", ".pt"])
def test_weights_from_a_file_go_into_an_application(ending, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "keras:MobileNetV2?classes=3&size=32"
    model = source_from(text, pretrained=False).model
    if ending == ".weights.h5":
        model.save_weights("model.weights.h5")
    else:
        save = torch.save if ending == ".pt" else save_file
        save(model.state_dict(), f"model{ending}")
    again = source_from(f"checkpoint:model{ending}@{text}").model
    inputs = torch.randn(2, 32, 32, 3)
    with torch.no_grad():
        torch.testing.assert_close(again(inputs), model(inputs))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("keras:ResNet5", r"keras has no classifier 'ResNet5': did you mean keras:ResNet50"),
        ("keras:resnet50", r"did you mean keras:ResNet50,"),
        ("keras:nowhere.keras", r"there is no file nowhere\.keras"),
        (
            "keras:broken.keras",
            r"keras:broken\.keras could not be loaded \(.*zip.*\): expected a whole model of Keras'",
        ),
        ("keras:broken.h5", r"keras:broken\.h5 could not be loaded \(.*\): expected a whole model of Keras' own lay"),
        (
            "keras:other.keras",
            r"keras:other\.keras could not be loaded \(.*\): expected a whole model of Keras' own lay",
        ),
        (
            "keras:only.weights.h5",
            r"keras:only\.weights\.h5 could not be loaded \(.*\): expected a whole model of Keras",
        ),
        ("keras:ResNet50?size=large", r"`size=large` must be a whole number, at least 1"),
        ("keras:ResNet50?pretrained=false&size=8", r"keras:ResNet50 could not be loaded \(.*at least 32"),
        ("checkpoint:broken.h5@keras:MobileNetV2?size=32", r"broken\.h5 does not fit this Functional: "),
        (
            "checkpoint:broken.h5@timm:resnet18",
            r"broken\.h5 holds weights of Keras, and this ResNet is not a Keras model",
        ),
    ],
)
def test_what_cannot_be_had_gets_one_clear_line(text, match, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("broken.keras", "broken.h5"):
        (tmp_path / name).write_bytes(b"neither")
    with zipfile.ZipFile("other.keras", "w") as archive:
        archive.writestr("config.json", "{}")
    keras.Sequential([layers.Input((2,)), layers.Dense(2)]).save_weights("only.weights.h5")
    with pytest.raises((OSError, ValueError), match=match) as error:
        source_from(text)
    assert "\n" not in str(error.value)


def test_weights_that_cannot_be_downloaded_get_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # where Keras keeps its files
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    with pytest.raises(
        OSError, match=r"^keras:MobileNet could not be loaded \(URL fetch failure .*: connect to the net"
    ):
        source_from("keras:MobileNet")


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_another_backend_is_refused_before_keras_is_imported(backend, monkeypatch):
    monkeypatch.delitem(sys.modules, "keras")
    monkeypatch.setenv("KERAS_BACKEND", backend)
    with pytest.raises(ValueError, match=rf"Keras is on the {backend} backend, .*: set KERAS_BACKEND=torch in the env"):
        source_from("keras:MobileNet")
    assert "keras" not in sys.modules
