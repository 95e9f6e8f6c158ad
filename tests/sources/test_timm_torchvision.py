"""`timm:NAME` and `torchvision:NAME`, and what all sources of pre-trained networks share."""

import subprocess
import sys

import numpy as np
import pytest
import timm
import torch
import torchvision
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import peppermill as pm
from peppermill.parameters import select
from peppermill.sources import data_from, source_from

from . import tiny
from .pictures import folder_of

pytestmark = pytest.mark.slow  # the libraries take seconds to import

SMALL = {  # networks of a few thousand weights, untrained
    "timm": "timm:test_resnet.r160_in1k?pretrained=false&classes=3",
    "torchvision": "torchvision:squeezenet1_1?pretrained=false&classes=3",
}


def sharp(model):
    """The network, so sure of itself that PEP helps, on images [30, 3, 40, 40]; and labels less sure than it."""
    inputs = torch.randn(30, 3, 40, 40, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = model(inputs)
        spread = float((logits - logits.mean(dim=0)).std())
        next(iter(select(model, "last_layer").values())).mul_(6 / spread)
        return inputs, tiny.overconfident_labels(model(inputs) - model(inputs).mean(dim=0))


@pytest.mark.parametrize("library", ["timm", "torchvision"])
@pytest.mark.parametrize(("rule", "count"), [("conv", 20), ("kernels", 21), ("last_layer", 1), ("all", 62)])
def test_resnet18_is_counted(library, rule, count):
    """16 convolutions in 8 blocks, 3 shortcuts, the stem; the dense layer and its bias; 20 norms with two arrays."""
    model = source_from(f"{library}:resnet18?pretrained=false").model
    selected = select(model, rule)
    assert len(selected) == count
    norms = {
        f"{name}.{kind}" for name, part in model.named_modules() if isinstance(part, nn.BatchNorm2d)
        for kind in ("weight", "bias")
    }  # fmt: skip
    assert len(norms) == 40
    assert not (norms & set(selected) and rule != "all")


def test_timm_brings_its_own_preparation_and_names():
    source = source_from("timm:resnet18?pretrained=false")
    assert not any(part.training for part in source.model.modules())
    expected = timm.data.create_transform(**timm.data.resolve_data_config(model=source.model))(tiny.picture())
    assert torch.equal(source.prepare(tiny.picture()), expected)
    assert expected.shape == (3, 224, 224)
    assert (len(source.class_names), source.class_names[1]) == (1000, "goldfish, Carassius auratus")


def test_torchvision_brings_the_transforms_and_names_of_its_weights():
    source = source_from("torchvision:resnet18?pretrained=false")
    weights = torchvision.models.ResNet18_Weights.DEFAULT
    assert not any(part.training for part in source.model.modules())
    assert torch.equal(source.prepare(tiny.picture()), weights.transforms()(tiny.picture()))
    assert (len(source.class_names), source.class_names[1]) == (1000, "goldfish")


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_pictures_are_cached_as_bytes_without_loss(library, tmp_path):
    source = source_from(f"{library}:resnet18?pretrained=false")
    items = data_from(
        f"imagefolder:{folder_of(tmp_path / 'val', {'a': 2, 'b': 1}, height=300, width=260)}", source.prepare
    )
    expected = [source.prepare(Image.open(tmp_path / "val" / name)) for name in items.names]
    assert items.prepare.pixels(Image.open(tmp_path / "val" / items.names[0])).dtype == torch.uint8
    for _ in range(2):
        assert torch.equal(torch.stack([items[k][0] for k in range(3)]), torch.stack(expected))


@pytest.mark.parametrize("library", SMALL)
def test_other_classes_have_no_names(library):
    assert source_from(SMALL[library]).class_names is None


@pytest.mark.filterwarnings("ignore:torch.nn.init:UserWarning")
@pytest.mark.parametrize("library", SMALL)
def test_fit_takes_such_a_network_and_a_loader_as_they_are(library, tmp_path):
    model = tiny.seeded(lambda: source_from(SMALL[library]).model)
    data = sharp(model)
    pep = pm.fit(model, DataLoader(TensorDataset(*data), batch_size=20), size=2)
    assert pep.sigma > 0
    assert pm.compare(model, pep, data).nll.value < 0
    pep.save(tmp_path / "pep.json")
    torch.testing.assert_close(pm.load(tmp_path / "pep.json", model)(data[0]), pep(data[0]))


@pytest.mark.parametrize("ending", [".safetensors", ".pt", ".pth"])
def test_the_command_line_takes_the_architecture_from_the_library_and_weights_from_a_file(
    ending, tmp_path, monkeypatch
):
    """`--weights` alone is enough: nothing is downloaded, and no `?pretrained=false` is needed."""
    monkeypatch.chdir(tmp_path)
    text = "timm:test_resnet.r160_in1k?classes=3"
    model = tiny.seeded(lambda: source_from(f"{text}&pretrained=false").model)
    inputs, labels = sharp(model)
    save = save_file if ending == ".safetensors" else torch.save
    save(model.state_dict(), f"weights{ending}")
    np.savez("images.npz", x=inputs.numpy(), y=labels.numpy())
    expected = model(inputs).detach().log_softmax(dim=1)
    for arguments in ([text, "npz:images.npz", "--weights", f"weights{ending}"],
                      [f"checkpoint:weights{ending}@{text}", "npz:images.npz"]):  # fmt: skip
        found = tiny.run("predict", *arguments)
        assert found.exit_code == 0, found.stderr
        with np.load("predictions.npz") as predictions:
            np.testing.assert_allclose(predictions["log_probs"], expected, atol=1e-4)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("timm:resnet1888", r"timm has no classifier 'resnet1888': did you mean timm:resnet18, .*\?"),
        ("timm:resnet18.a1_in", r"timm has no classifier 'resnet18\.a1_in': did you mean timm:resnet18\.a1_in1k"),
        ("timm:Resnet18", r"did you mean timm:resnet18"),
        ("timm:qqqqqqqqqq", r"timm has no classifier 'qqqqqqqqqq': its documentation lists them"),
        ("timm:test_vit4.r160_in1k?depth=3", r"the option .depth=3. is unknown or empty: after `\?` may stand pretr"),
        ("timm:resnet18?classes=3", r"`classes=3` would put a fresh, untrained last layer on the pre-trained network"),
        ("timm:resnet18?pretrained=false&classes=few", r"`classes=few` must be a whole number, at least 1"),
        ("timm:resnet18?pretrained=no", r"`pretrained=no` must be `pretrained=true` or `pretrained=false`"),
        ("timm:darknet17", r"has no pre-trained weights: give your own with `--weights FILE`"),
        ("torchvision:resnet17", r"torchvision has no classifier 'resnet17': did you mean torchvision:resnet18"),
        ("torchvision:fcn_resnet50", r"torchvision has no classifier 'fcn_resnet50': did you mean"),
        ("torchvision:resnet18?weights=V9", r"has no weights 'V9': choose one of IMAGENET1K_V1, DEFAULT"),
    ],
)
def test_a_wrong_name_or_setting_gets_one_clear_line(text, match):
    with pytest.raises(ValueError, match=match) as error:
        source_from(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["timm:resnet18", "timm:hf-hub:nobody/nothing", "torchvision:resnet18"])
def test_without_a_connection_there_is_one_clear_line(text, tmp_path, monkeypatch):
    """Nothing is in the cache, and the hub is not asked; torchvision's server does not exist for a proxy nobody is."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    with pytest.raises(
        OSError, match=rf"^{text} could not be loaded \(.*\): connect to the network once, or give weig"
    ):
        source_from(text)


@pytest.mark.parametrize(
    ("scheme", "extra"),
    [("timm", "timm"), ("torchvision", "torchvision"), ("hf", "transformers"), ("keras", "keras")],
)
def test_a_missing_library_is_named_with_its_extra(scheme, extra, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == extra]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, extra, None)
    with pytest.raises(ImportError, match=rf'`pip install "peppermill\[{extra}\]"`') as error:
        source_from(f"{scheme}:anything")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_torchvision_of_another_torch_gets_one_clear_line(library, tmp_path, monkeypatch):
    """It raises a RuntimeError when it is imported, also where timm imports it."""
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / f"{library}.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    why = r"which is installed but does not import \(RuntimeError: operator torchvision::nms does not exist\)"
    with pytest.raises(ImportError, match=rf"needs {library}, {why}: install it, and what it imports, in versions for"):
        source_from(f"{library}:resnet18")


@pytest.mark.parametrize(
    ("scheme", "package", "extra"),
    [("timm", "timm", "timm"), ("hf", "transformers", "transformers"), ("keras", "keras", "keras")],
)
def test_a_library_that_lacks_another_is_said_to_be_there(scheme, package, extra, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / f"{package}.py").write_text("import a_package_that_nobody_has")
    monkeypatch.syspath_prepend(tmp_path)
    why = r"installed but does not import \(ModuleNotFoundError: No module named 'a_package_that_nobody_has'\)"
    with pytest.raises(ImportError, match=rf'{why}: `pip install "peppermill\[{extra}\]"`\.$'):
        source_from(f"{scheme}:anything")


def test_no_library_is_imported_before_it_is_asked_for():
    code = "import sys, peppermill.cli.app; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"timm", "torchvision", "transformers", "keras"} & set(loaded)
    assert "peppermill" in loaded
