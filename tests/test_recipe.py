from __future__ import annotations

import copy
import hashlib
import json
import math
import struct
from dataclasses import replace

import networks
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import peppermill as pm
from peppermill import parameters
from peppermill.calibrators.temperature import Temperature
from peppermill.datasets.splitting import Split
from peppermill.noise import Noise
from peppermill.pep_json import read_recipe, write_recipe
from peppermill.recipe import Recipe, difference, fingerprint
from peppermill.tuning.result import Evaluation, SigmaSearch

MODEL = networks.cnn()


def recipe_for(model, rule="kernels", points=3, joint=False, **changes):
    """A recipe as `fit` writes it, with a search of this many points, the worst of them sigma = 0."""
    evaluations = [Evaluation(0.0, -500.125, 2.0 if joint else 1.0, -500.0 if joint else -500.125)]
    for k in range(1, points):
        value = -100.0 - 1 / k
        evaluations.append(
            Evaluation(0.0123456789 * k / 7, value, 1.5 if joint else 1.0, value + (0.5 if joint else 0))
        )
    made = Recipe(
        sigma=0.1 / 3,
        size=10,
        noise=Noise(seed=7),
        rule=rule,
        selected=tuple(parameters.select(model, rule)),
        likelihood=pm.Categorical(),
        calibrator=Temperature(1.0),
        search=SigmaSearch(tuple(evaluations), 0.01, 0.02, 300, joint),
        fingerprint=fingerprint(model),
    )
    return replace(made, **changes)


def written(tmp_path, recipe, model=MODEL):
    path = tmp_path / "pep.json"
    write_recipe(recipe, path, model)
    return path


def of_version_one(path):
    """What version one would have written: no checksum, a temperature in place of a calibrator, and no views."""
    content = json.loads(path.read_text())
    temperature = content["calibrator"]["temperature"]
    for name in ("checksum", "views", "calibrator"):
        del content[name]
    return {**content, "version": 1, "temperature": temperature}


@settings(max_examples=60)
@given(
    sigma=st.floats(0, 1e6),
    size=st.integers(1, 10**6),
    temperature=st.floats(1e-3, 1e3),
    noise=st.builds(Noise, st.sampled_from(["gaussian", "uniform"]), st.booleans(), st.integers(-(2**80), 2**80)),
    likelihood=st.sampled_from([pm.Categorical(), pm.Categorical(-1, 255), pm.Bernoulli(7), pm.Gaussian()]),
    rule=st.sampled_from(["kernels", "conv", "all", "last_layer", "bias", r"[02468]\.weight$"]),
)
def test_what_is_written_is_what_is_read(tmp_path_factory, sigma, size, temperature, noise, likelihood, rule):
    """To the last bit, all that decides a prediction."""
    recipe = recipe_for(
        MODEL,
        rule,
        sigma=sigma,
        size=size,
        calibrator=Temperature(temperature),
        noise=noise,
        likelihood=likelihood,
    )
    again = read_recipe(written(tmp_path_factory.mktemp("recipe"), recipe), MODEL)
    assert replace(again, search=recipe.search) == recipe


@pytest.mark.parametrize("joint", [False, True])
def test_the_search_is_kept_to_ten_digits_and_sigma_to_the_last(tmp_path, joint):
    recipe = recipe_for(MODEL, points=5, joint=joint)
    again = read_recipe(written(tmp_path, recipe), MODEL).search
    assert [e.sigma for e in again.evaluations] == [e.sigma for e in recipe.search.evaluations]
    for kept, known in zip(again.evaluations, recipe.search.evaluations, strict=True):
        assert kept.log_likelihood == pytest.approx(known.log_likelihood, rel=1e-9)
        assert kept.temperature == known.temperature
        assert kept.tempered_log_likelihood == pytest.approx(known.tempered_log_likelihood, rel=1e-9)
    assert (again.lower, again.upper, again.items, again.joint) == (0.01, 0.02, 300, joint)


def test_the_passes_that_were_spent_are_kept_and_a_file_without_them_is_read(tmp_path):
    search = replace(recipe_for(MODEL).search, passes=35.4446)
    path = written(tmp_path, recipe_for(MODEL, search=search))
    assert read_recipe(path, MODEL).search.passes == 35.4446
    content = of_version_one(path)
    del content["search"]["passes"]
    path.write_text(json.dumps(content))
    assert read_recipe(path, MODEL).search.passes is None


def test_a_sigma_at_which_members_broke_down_is_null_in_the_file(tmp_path):
    broken = SigmaSearch(
        (Evaluation(0.0, -3.0, 1.0, -3.0), Evaluation(9.0, -math.inf, 1.0, -math.inf)), 0.0, 9.0, 5, True
    )
    path = written(tmp_path, recipe_for(MODEL, search=broken))
    assert json.loads(path.read_text())["search"]["evaluations"][1][1] is None
    assert read_recipe(path, MODEL).search == broken


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("points", [3, 30, 500])
def test_the_file_stays_under_four_kilobytes(tmp_path, points, joint):
    recipe = recipe_for(MODEL, points=points, joint=joint)
    path = written(tmp_path, recipe)
    assert path.stat().st_size <= 4000
    kept = read_recipe(path, MODEL).search
    assert kept.baseline == recipe.search.baseline
    assert kept.best.sigma == recipe.search.best.sigma
    assert kept.gain == pytest.approx(recipe.search.gain, rel=1e-8)
    if points > 30:
        worst = min(e.tempered_log_likelihood for e in kept.evaluations if e.sigma)
        assert len(kept.evaluations) > 20
        assert worst > recipe.search.evaluations[1].tempered_log_likelihood


def test_a_network_of_a_thousand_arrays_fits_in_the_file(tmp_path):
    deep = nn.Sequential(*(nn.Linear(1, 1) for _ in range(500))).eval()
    recipe = recipe_for(deep, r"(1|7)\.weight")
    path = written(tmp_path, recipe, deep)
    assert path.stat().st_size <= 4000
    assert read_recipe(path, deep).selected == recipe.selected


def test_the_file_is_json_that_people_can_read(tmp_path):
    content = json.loads(written(tmp_path, recipe_for(MODEL)).read_text())
    assert content["format"] == "peppermill ensemble"
    assert content["version"] == 2
    assert content["sigma"] == 0.1 / 3
    assert content["selection"] == {"rule": "kernels", "arrays": 3, "mask": "0x111"}
    assert content["noise"] == {"law": "gaussian", "antithetic": True, "seed": 7}
    assert content["likelihood"] == {"name": "categorical", "class_dimension": 1, "ignored_label": -100}
    assert content["versions"]["torch"] == torch.__version__
    assert set(content["fingerprint"]) == {"tensors", "numbers", "types", "architecture", "parameters", "buffers"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sigma", "small"),
        ("sigma", -0.1),
        ("sigma", None),
        ("sigma", math.nan),
        ("temperature", 0),
        ("size", 0),
        ("size", "10"),
        ("noise", {"law": "cauchy", "antithetic": True, "seed": 0}),
        ("noise", {"law": "gaussian", "antithetic": True, "seed": "0"}),
        ("noise", {"law": "gaussian", "seed": 0}),
        ("noise", {"antithetic": True, "seed": 0}),
        ("noise", {"law": "gaussian", "antithetic": "no", "seed": 0}),
        ("noise", [1, 2]),
        ("selection", {"rule": "kernels", "arrays": 0, "mask": "0x0"}),
        ("selection", {"rule": "kernels", "arrays": 3, "mask": "0x110"}),
        ("selection", {"rule": "kernels", "arrays": 3, "mask": "seven"}),
        ("selection", {"rule": "kernels"}),
        ("likelihood", {"name": "poisson"}),
        ("likelihood", {"name": "gaussian", "ignored_label": 3}),
        ("likelihood", {"name": "categorical", "class_dimension": 1}),
        ("likelihood", {"name": "categorical", "class_dimension": 1, "ignored_label": True}),
        ("version", -5),
        ("fingerprint", {}),
        ("search", {}),
        ("search", {"items": 1, "joint": False, "lower": 0, "upper": 1, "evaluations": [[]]}),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_a_damaged_entry_is_refused(tmp_path, version, key, value):
    path = written(tmp_path, recipe_for(MODEL))
    content = of_version_one(path) if version == 1 else json.loads(path.read_text())
    path.write_text(json.dumps({**content, key: value}))
    with pytest.raises(ValueError, match=r"pep.json is damaged \(.*\): fit and save the ensemble again"):
        read_recipe(path, MODEL)


def test_any_changed_number_is_noticed(tmp_path):
    path = written(tmp_path, recipe_for(MODEL))
    path.write_text(path.read_text().replace('"seed": 7', '"seed": 8'))
    with pytest.raises(ValueError, match="it was changed after it was written"):
        read_recipe(path, MODEL)


def json_of(content):
    try:
        return json.loads(bytes(content))
    except ValueError:
        return None


def loaded(path):
    try:
        pm.load(path, MODEL)
    except ValueError as error:
        return str(error)
    return "an ensemble"


@settings(max_examples=150)
@given(position=st.integers(0, 10**6), byte=st.integers(0, 255), cut=st.booleans())
def test_a_corrupted_or_truncated_file_is_refused(tmp_path_factory, position, byte, cut):
    """One byte changed, or the end missing: a ValueError that names the file and nothing else."""
    path = written(tmp_path_factory.mktemp("recipe"), recipe_for(MODEL))
    original = path.read_bytes()
    content = bytearray(original)
    position %= len(content) - 2
    if cut:
        del content[position:]
    else:
        content[position] = byte
    path.write_bytes(bytes(content))
    outcome = loaded(path)
    unchanged = json_of(content) == json_of(original)
    assert (outcome == "an ensemble") == unchanged
    assert unchanged or str(path) in outcome


def test_a_split_is_kept_and_the_file_stays_small_whatever_the_data_are_called(tmp_path):
    """200 letters of six bytes each in JSON, beside a search that would fill the file alone."""
    split = Split("é" * 200, 50_000, 5000, 2**32 - 1, "0123456789abcdef")
    path = written(tmp_path, recipe_for(MODEL, points=500, joint=True, split=split))
    assert path.stat().st_size <= 4000
    assert read_recipe(path, MODEL).split == split


def test_a_file_from_before_there_were_splits_has_none(tmp_path):
    path = written(tmp_path, recipe_for(MODEL))
    assert "split" not in json.loads(path.read_text())
    assert read_recipe(path, MODEL).split is None


@pytest.mark.filterwarnings("ignore:.* classes do not occur|the best temperature is")
def test_arrays_that_do_not_fit_have_a_file_of_their_own_and_never_that_of_the_weights(tmp_path):
    """Vector scaling of 300 classes, saved as net.json beside the network's weights, net.safetensors."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 300)).eval()
    weights = tmp_path / "net.safetensors"
    weights.write_bytes(b"the weights")
    x = torch.randn(900, 5)
    pep = pm.fit_calibrator(model, (x, model(10 * x).argmax(dim=1)), "vector")
    pep.save(tmp_path / "net.json")
    assert weights.read_bytes() == b"the weights"
    assert {path.name for path in tmp_path.iterdir()} == {"net.json", "net.arrays.safetensors", "net.safetensors"}
    assert torch.equal(pm.load(tmp_path / "net.json", model)(x), pep(x))


@pytest.mark.filterwarnings("ignore:.* classes do not occur|the best temperature is")
@pytest.mark.parametrize("names", [("pep-0.1", "pep-0.2"), ("pep.vector", "pep.json"), ("link.json", "pep.json")])
def test_ensembles_under_similar_names_do_not_share_a_file_of_arrays(tmp_path, names):
    """Names with a dot of their own, and a link, whose target and its arrays are read under either name."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(5, 300)).eval(), torch.randn(900, 5)
    labels = (300 * torch.rand(900).square()).long()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "elsewhere" / "one.json")
    several = [pm.fit_calibrator(model, (x[some], labels[some]), "vector") for some in (slice(0, 900), slice(0, 700))]
    for name, one in zip(names, several, strict=True):
        one.save(tmp_path / name)
    for name, one in zip(names, several, strict=True):
        assert torch.equal(pm.load(tmp_path / name, model)(x), one(x))
        assert torch.equal(pm.load((tmp_path / name).resolve(), model)(x), one(x))


# The fingerprint


@pytest.fixture
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def change(network, name):
    changed = copy.deepcopy(network)
    changed.state_dict()[name].flatten()[-1].add_(1)
    return changed


def test_a_copy_is_the_same_network_whatever_its_mode(network):
    other = copy.deepcopy(network).eval().requires_grad_(False)
    assert difference(fingerprint(network), fingerprint(other)) == ""


def test_a_fingerprint_by_hand():
    """SHA-256 of the little-endian bytes; pinned, for a saved ensemble must be known again by later versions."""
    network = nn.Linear(2, 1)
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[1.0, -2.0]]))
        network.bias.copy_(torch.tensor([0.5]))
    found = fingerprint(network)
    assert (found.tensors, found.numbers, found.types) == (2, 3, "float32")
    assert found.architecture == hashlib.sha256(b"weight[1, 2]bias[1]").hexdigest()[:16]
    assert found.parameters == hashlib.sha256(struct.pack("<3f", 1.0, -2.0, 0.5)).hexdigest()[:16]
    assert found.buffers == hashlib.sha256(b"").hexdigest()[:16]


def test_another_number_of_arrays_is_another_architecture(network):
    found = difference(fingerprint(network), fingerprint(nn.Linear(3, 4)))
    assert found == "it has 2 arrays with 16 numbers, the saved one has 9 with 43: another architecture"


def test_other_shapes_of_the_same_size_are_another_architecture():
    assert "other names or shapes" in difference(fingerprint(nn.Linear(3, 4)), fingerprint(nn.Linear(7, 2)))
    renamed = nn.ModuleDict({"other": nn.Linear(3, 4)})
    assert "other names or shapes" in difference(
        fingerprint(nn.ModuleDict({"one": nn.Linear(3, 4)})), fingerprint(renamed)
    )


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16, torch.float16])
def test_another_type_is_named(network, kind):
    found = difference(fingerprint(network), fingerprint(copy.deepcopy(network).to(kind)))
    name = str(kind).removeprefix("torch.")
    assert found == f"its numbers are {name},int64, the saved one's are float32,int64: convert it first"


@pytest.mark.parametrize("name", ["0.weight", "0.bias", "1.weight", "2.bias"])
def test_one_changed_number_is_seen_in_any_parameter(network, name):
    found = difference(fingerprint(network), fingerprint(change(network, name)))
    assert found == (
        "its parameters have other values: it was trained further, or its weights were not loaded "
        "(did you forget `--weights`?)"
    )


@pytest.mark.parametrize("name", ["1.running_mean", "1.running_var", "1.num_batches_tracked"])
def test_other_batch_norm_statistics_are_distinguished_from_other_parameters(network, name):
    found = difference(fingerprint(network), fingerprint(change(network, name)))
    assert found.startswith("its parameters are the same, but its buffers (batch-norm statistics, say) have other")


def test_two_arrays_that_change_places_are_seen():
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    swapped = nn.Sequential(network[1], network[0])
    assert "other values" in difference(fingerprint(network), fingerprint(swapped))


def test_layout_in_memory_does_not_matter():
    """The weight lies column by column, the bias is every second number of an array."""
    network, other = nn.Linear(3, 3), nn.Linear(3, 3)
    other.weight = nn.Parameter(network.weight.detach().T.contiguous().T)
    other.bias = nn.Parameter(network.bias.detach().repeat_interleave(2)[::2])
    assert not other.weight.is_contiguous()
    assert not other.bias.is_contiguous()
    assert fingerprint(network) == fingerprint(other)


def test_tied_parameters_are_parameters():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(2, 2, bias=False)
            self.other = nn.Linear(2, 2, bias=False)
            self.other.weight = self.one.weight

    assert fingerprint(Tied()).buffers == hashlib.sha256(b"").hexdigest()[:16]
