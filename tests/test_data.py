from __future__ import annotations

import random
from types import SimpleNamespace

import networks
import numpy as np
import pandas
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from peppermill.data import Batches
from peppermill.plumbing.nested import as_arguments, call_on_copies, map_tensors, output_tensor
from peppermill.plumbing.networks import device_of, dtype_of

X, Y = networks.items(23)


@pytest.fixture
def no_reserve(tmp_path, monkeypatch):
    """An empty folder for large files, on a disk that may be filled."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("peppermill.datasets.disk_cache.FREE_SHARE", 0.0)
    return tmp_path


class Items(Dataset):
    """A map-style data set whose items may be changed on the way out."""

    def __init__(self, change=lambda k, x: x, count=23):
        self.change, self.x, self.y = change, *networks.items(count)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, k):
        return self.change(k, self.x[k]), self.y[k]


class Again:
    """Batches of a loader, read in a way of the user's own."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)


class Stream(IterableDataset):
    def __iter__(self):
        return zip(X, Y, strict=True)


class Loader:
    """Something of the user's own that can be read again and again."""

    def __iter__(self):
        yield from [(X[:9], Y[:9]), (X[9:], Y[9:])]


FORMS = {
    "a pair of tensors": (X, Y),
    "a pair of arrays": (X.numpy(), Y.numpy()),
    "a TensorDataset": TensorDataset(X, Y),
    "a Dataset": Items(),
    "an IterableDataset": Stream(),
    "a DataLoader": DataLoader(Items(), batch_size=7),
    "a DataLoader with workers' settings": DataLoader(TensorDataset(X, Y), batch_size=23, pin_memory=False),
    "a list of batches": [(X[:1], Y[:1]), (X[1:20], Y[1:20]), (X[20:], Y[20:])],
    "a list of lists": [[X[:5], Y[:5]], [X[5:], Y[5:]]],
    "a list of arrays": [(X[:5].numpy(), Y[:5].numpy()), (X[5:].numpy(), Y[5:].numpy())],
    "a tuple of batches": ((X[:5], Y[:5]), (X[5:], Y[5:])),
    "an iterable": Loader(),
}


@pytest.fixture
def memory(monkeypatch):
    """A function that sets how many bytes of inputs are held in memory."""
    return lambda limit: monkeypatch.setattr("peppermill.data.MEMORY_BYTES", limit)


def tensors_in(value):
    found = []
    map_tensors(found.append, value)
    return found


def joined(batches):
    """All inputs and all labels."""
    found = list(batches)
    return torch.cat([x for x, _ in found]), torch.cat([y for _, y in found])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kept_bytes", [1, 200, 2**30])
def test_every_form_gives_the_same_items_in_every_pass(form, kept_bytes, memory):
    memory(kept_bytes)
    batches = Batches(FORMS[form], networks.mlp(), batch_size=4)
    for _ in range(3):
        inputs, labels = joined(batches)
        assert torch.equal(inputs, X)
        assert torch.equal(labels, Y)


@pytest.mark.parametrize("form", ["a pair of tensors", "a TensorDataset", "a Dataset"])
@pytest.mark.parametrize("batch_size", [1, 7, 23, 500])
def test_data_without_batches_are_cut_into_batches_of_the_size_that_was_asked_for(form, batch_size):
    lengths = [len(labels) for _, labels in Batches(FORMS[form], batch_size=batch_size)]
    assert sum(lengths) == 23
    assert all(length == batch_size for length in lengths[:-1])
    assert lengths[-1] <= batch_size


@pytest.mark.parametrize("mode", ["r", "c"])
def test_a_mapped_array_gives_the_numbers_that_it_has_in_memory(tmp_path, mode):
    np.save(tmp_path / "x.npy", X.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode=mode)
    expected = X
    if mode == "c":
        mapped += 1
        expected = X + 1
    assert torch.equal(joined(Batches((mapped, Y), batch_size=4))[0], expected)


def test_a_pair_of_several_inputs_is_cut_as_one():
    ((left, right), labels), *_ = Batches(((X, X + 1), Y), batch_size=5)
    assert torch.equal(right, left + 1)
    assert len(left) == len(labels) == 5
    (named, _), *_ = Batches(({"left": X, "right": X + 1}, Y), batch_size=5)
    assert list(named) == ["left", "right"]
    assert torch.equal(named["right"], X[:5] + 1)


@pytest.mark.parametrize("form", [list, tuple, pandas.Series])
def test_labels_may_be_a_list_or_a_series(form):
    labels = [2, 0, 1, 1, 0]
    found = [kept for _, kept in Batches((torch.zeros(5, 3), form(labels)), batch_size=2)]
    assert torch.cat(found).tolist() == labels
    assert [len(part) for part in found] == [2, 2, 1]


def test_of_several_tensors_the_last_are_the_labels():
    for data in (TensorDataset(X, X + 1, Y), [(X, X + 1, Y)]):
        ((left, right), labels), *_ = Batches(data)
        assert torch.equal(left, X)
        assert torch.equal(right, X + 1)
        assert torch.equal(labels, Y)


@pytest.mark.parametrize("key", ["labels", "label"])
def test_a_dict_of_inputs_carries_its_labels(key):
    (inputs, labels), *_ = Batches([{"left": X, key: Y, "right": X + 1}])
    assert list(inputs) == ["left", "right"]
    assert torch.equal(labels, Y)


def test_inputs_take_the_type_of_the_network_and_labels_keep_theirs():
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        (inputs, labels), *_ = Batches(({"x": X, "mask": Y}, Y), networks.mlp(dtype=dtype))
        assert inputs["x"].dtype == dtype
        assert inputs["mask"].dtype == labels.dtype == torch.int64


def test_a_network_of_mixed_types_leaves_the_inputs_alone():
    model = networks.mlp()
    model[2].double()
    assert dtype_of(model) is None
    (inputs, _), *_ = Batches((X.half(), Y), model)
    assert inputs.dtype == torch.float16


def test_device_and_type_are_those_of_the_parameters():
    assert dtype_of(networks.cnn(dtype=torch.float64)) == torch.float64
    assert device_of(networks.mlp().to("meta")) == torch.device("meta")
    assert dtype_of(lambda x: x) is None
    assert device_of(nn.ReLU()) == torch.device("cpu")


@pytest.mark.parametrize(("kept_bytes", "chunks"), [(1, 6), (2 * 4 * 6 * 4, 3), (2**30, 1)])
def test_what_does_not_fit_is_read_in_chunks(kept_bytes, chunks, memory):
    """Batches of 4 items with 6 floats of 4 bytes each: two of them fill 192 bytes."""
    memory(kept_bytes)
    found = list(Batches((X, Y), batch_size=4).chunks())
    assert len(found) == chunks
    assert sum(len(labels) for chunk in found for _, labels in chunk) == 23


def test_what_fits_is_read_once_and_kept():
    reads = []
    batches = Batches(DataLoader(Items(lambda k, x: reads.append(k) or x), batch_size=4))
    first = list(batches)
    reads.clear()
    assert all(a is c for (a, _), (c, _) in zip(first, batches, strict=True))
    assert reads == []


def test_what_a_loader_gives_is_read_once_and_cached_on_disk_if_memory_cannot_hold_it(no_reserve, memory):
    """Every number, type and order of dimensions comes back, in every pass; the file has no name."""

    def change(k, x):
        reads.append(k)
        return {"x": x.view(1, 2, 3), "mask": (x > 0, x.half()), "n": torch.tensor(k)}

    def collate(items):
        inputs = torch.utils.data.default_collate(items)
        inputs[0]["x"] = inputs[0]["x"].expand(-1, 3, -1, -1).to(memory_format=torch.channels_last)
        return inputs

    reads = []
    memory(400)
    batches = Batches(DataLoader(Items(change), batch_size=4, collate_fn=collate))
    first = list(batches)
    reads.clear()
    for _ in range(2):
        again = list(batches)
        assert len(again) == len(first) == 6
        for (inputs, labels), (known, known_labels) in zip(again, first, strict=True):
            assert torch.equal(labels, known_labels)
            assert inputs["x"].stride() == known["x"].stride()
            for one, other in zip(tensors_in(inputs), tensors_in(known), strict=True):
                assert one.dtype == other.dtype
                assert torch.equal(one, other)
    assert reads == []
    assert list(no_reserve.iterdir()) == []


@pytest.mark.parametrize("why", ["a full disk", "no folder", "a reader of the user's own", "already in memory"])
def test_what_does_not_fit_and_is_not_kept_on_disk_is_read_in_each_pass(no_reserve, memory, monkeypatch, why):
    reads = []
    items = DataLoader(Items(lambda k, x: reads.append(k) or x), batch_size=4)
    if why == "a full disk":
        monkeypatch.setattr("peppermill.datasets.disk_cache.FREE_SHARE", 2.0)
    elif why == "no folder":
        (no_reserve / "file").touch()
        monkeypatch.setenv("TMPDIR", str(no_reserve / "file"))
        monkeypatch.setattr("tempfile.tempdir", str(no_reserve / "nowhere"))
    elif why == "already in memory":
        items.dataset.is_cached = True
    else:
        items = Again(items)
    memory(1)
    batches = Batches(items)
    list(batches)
    reads.clear()
    for _ in range(2):
        list(batches)
    assert reads == list(range(23)) * 2


def test_a_pass_that_was_broken_off_leaves_nothing_half_kept(no_reserve, memory):
    memory(1)
    batches = Batches(DataLoader(Items(), batch_size=4))
    next(batches.chunks())
    assert [len(labels) for _, labels in batches] == [len(labels) for _, labels in batches] == [4] * 5 + [3]
    with_two = zip(batches.chunks(), batches.chunks(), strict=True)
    assert all(torch.equal(a[0][0], b[0][0]) for a, b in with_two)


CHANGING = {
    "shuffled": lambda: DataLoader(Items(), batch_size=4, shuffle=True),
    "shuffled by a generator": lambda: DataLoader(
        Items(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(0)
    ),
    "augmented with torch": lambda: Items(lambda k, x: x + 0.01 * torch.randn(6)),
    "augmented with numpy": lambda: DataLoader(Items(lambda k, x: x * float(np.random.rand()))),
    "augmented with random": lambda: DataLoader(Items(lambda k, x: x.flip(0) if random.random() < 0.5 else x)),
    "a generator": lambda: ((X[k : k + 4], Y[k : k + 4]) for k in range(0, 23, 4)),
    "a generator of one batch": lambda: iter([(X, Y)]),
    "a generator that repeats itself": lambda: ((X, Y) for _ in range(600)),
}


@pytest.mark.parametrize("data", CHANGING)
def test_data_that_change_between_passes_are_refused_with_the_reason(data):
    with pytest.raises(ValueError) as error:
        list(Batches(CHANGING[data](), argument="validation"))
    text = str(error.value)
    assert "`validation` changes between two passes: it is shuffled, augmented or can be read only once" in text
    assert "Every sigma must be judged on the same items" in text
    assert "Use `shuffle=False`" in text


def test_a_change_beyond_the_first_items_is_found_in_the_second_pass(memory):
    memory(1)
    late = Items(lambda k, x: x + torch.randn(6) if k > 300 else x, count=320)
    batches = Batches(Again(DataLoader(late, batch_size=64)))
    list(batches)
    with pytest.raises(ValueError, match="changes between two passes"):
        list(batches)


def test_labels_that_change_are_found_too():
    class Relabelled(Items):
        def __getitem__(self, k):
            return self.x[k], torch.randint(100, ())

    with pytest.raises(ValueError, match="changes between two passes"):
        list(Batches(Relabelled()))


@pytest.mark.parametrize("form", FORMS)
def test_no_global_generator_is_touched(form, memory):
    memory(1)
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    for _ in range(2):
        list(Batches(FORMS[form]))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert random.getstate() == states[2]


@pytest.mark.parametrize(
    "data",
    [(X[:0], Y[:0]), [], DataLoader(Items(count=0)), TensorDataset(X[:0], Y[:0])],
    ids=lambda d: type(d).__name__,
)
def test_data_without_items_are_refused(data):
    with pytest.raises(ValueError, match="`validation` has no items: give at least one labelled batch"):
        list(Batches(data, argument="validation"))


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        (X[:-1], "22 inputs and 23 labels"),
        ((X, X[:5]), "5, 23 inputs and 23 labels"),
        ({"a": X[:-2]}, "21 inputs and 23 labels"),
        ((), "no inputs and 23 labels"),
    ],
)
def test_inputs_and_labels_of_different_length_are_refused(inputs, text):
    with pytest.raises(ValueError, match=rf"`test` has {text}: each input needs one label"):
        Batches((inputs, Y), argument="test")


@pytest.mark.parametrize("labels", [["cat"] * 23, np.array(["cat"] * 23), np.array(["cat"] * 23, dtype=object)])
def test_labels_that_are_words_are_refused(labels):
    with pytest.raises(TypeError, match=r"the labels of `test` have type .*: give class numbers, 0 to K - 1\."):
        Batches((X, labels), argument="test")


@pytest.mark.parametrize("labels", [Y[0], np.array(3)])
def test_one_number_in_place_of_labels_is_refused(labels):
    with pytest.raises(ValueError, match=r"`data` has 23 inputs and 0 labels: each input needs one label"):
        Batches((X, labels))


def test_a_data_set_of_inputs_alone_is_refused():
    with pytest.raises(TypeError, match=r"a batch of `data` is a list in which no labels were found"):
        list(Batches(TensorDataset(X)))


@pytest.mark.parametrize("data", [X, X.numpy(), "validation.npz", {"x": X, "y": Y}, 7, None])
def test_data_of_another_form_are_refused(data):
    with pytest.raises(TypeError, match=rf"`data` is a {type(data).__name__}: give a DataLoader, a Dataset, a list of"):
        Batches(data)


@pytest.mark.parametrize("data", [[(X, Y[0])], [{"x": X, "labels": Y[0]}], [(X, 2)]])
def test_one_label_for_all_inputs_is_refused(data):
    with pytest.raises(ValueError, match=r"the labels of `data` are one number, \d: expected one for each input"):
        list(Batches(data))


@pytest.mark.parametrize("data", [[X, Y], [(X,)], [{"x": X, "y": Y}], [X.numpy()], (X, None)])
def test_batches_without_labels_are_refused(data):
    kind = type(data[0]).__name__
    with pytest.raises(TypeError, match=rf"a batch of `data` is a {kind} in which no labels were found"):
        list(Batches(data))


def test_a_network_is_called_as_its_inputs_ask():
    model = networks.seeded(networks.TwoInputs)
    expected = model(X, X + 1)
    assert torch.equal(call_on_copies(model, *as_arguments((X, X + 1))), expected)
    assert torch.equal(call_on_copies(model, *as_arguments([X, X + 1])), expected)
    assert torch.equal(call_on_copies(model, *as_arguments({"right": X + 1, "left": X})), expected)
    assert not torch.equal(call_on_copies(model, *as_arguments((X + 1, X))), expected)
    assert as_arguments(X) == ((X,), {})


def test_logits_are_found_in_what_a_network_returns():
    for outputs in (X, SimpleNamespace(logits=X), {"loss": 0, "logits": X}, (X, Y), [X]):
        assert output_tensor(outputs) is X


@pytest.mark.parametrize("outputs", [None, {"scores": X}, (), "logits", SimpleNamespace(logits=None), ([X], Y)])
def test_outputs_without_logits_are_refused(outputs):
    with pytest.raises(TypeError, match=rf"returned {type(outputs).__name__}, in which no tensor of logits was found"):
        output_tensor(outputs)


def test_mapping_over_tensors_keeps_the_structure():
    value = {"a": X, "b": [X, (Y, "text")], "c": None}
    found = map_tensors(lambda t: t.shape, value)
    assert found == {"a": X.shape, "b": (X.shape, (Y.shape, "text")), "c": None}
