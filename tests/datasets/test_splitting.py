"""Tuning items and test items: none in both, none in neither, the same whenever they are drawn again."""

from __future__ import annotations

import networks
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import peppermill as pm
from peppermill.data import Batches
from peppermill.datasets.loaders import rebuild_loader
from peppermill.datasets.splitting import LONGEST_NAME, Split, split_of, take

X, Y = networks.items(23)


class Map(Dataset):
    """A map-style data set that counts what is read, with or without labels of its own."""

    def __init__(self, labels=None):
        self.reads = 0
        if labels:
            setattr(self, labels, Y.tolist())

    def __len__(self):
        return len(Y)

    def __getitem__(self, k):
        self.reads += 1
        return X[k], Y[k]


class Stream(IterableDataset):
    def __iter__(self):
        return zip(X, Y, strict=True)


FORMS = {
    "a pair of tensors": (X, Y),
    "a pair of arrays": (X.numpy(), Y.numpy()),
    "labels in a list": (X, Y.tolist()),
    "a pair of lists of inputs": ((X, X + 1), Y),
    "a dict of inputs": ({"left": X, "right": X + 1}, Y),
    "a TensorDataset": TensorDataset(X, Y),
    "a Dataset": Map(),
    "a Dataset with targets": Map("targets"),
    "a DataLoader": DataLoader(Map(), batch_size=7),
    "a list of batches": [(X[:1], Y[:1]), (X[1:20].numpy(), Y[1:20].numpy()), (X[20:], Y[20:])],
    "a list of dicts": [{"x": X[:9], "labels": Y[:9]}, {"x": X[9:], "labels": Y[9:]}],
}


def first_input(inputs):
    """The first of the tensors of a batch."""
    while not isinstance(inputs, torch.Tensor):
        inputs = next(iter(inputs.values())) if isinstance(inputs, dict) else inputs[0]
    return inputs


def read(data):
    found = [(first_input(inputs), labels) for inputs, labels in Batches(data, batch_size=5)]
    return torch.cat([inputs for inputs, _ in found]), torch.cat([labels for _, labels in found])


@given(items=st.integers(2, 500), seed=st.integers(0, 2**32 - 1), data=st.data())
def test_every_item_is_in_one_part_and_in_one_only(items, seed, data):
    validation = data.draw(st.integers(1, items - 1))
    tuning, rest = Split("", items, validation, seed, "").rows()
    assert len(tuning) == validation
    assert sorted([*tuning, *rest]) == list(range(items))
    assert list(tuning) == sorted(tuning)
    assert list(rest) == sorted(rest)


def test_the_same_seed_draws_the_same_items_forever():
    """Drawn once by numpy's frozen generator and written down here: a split in an old file must never move."""
    assert Split("", 10, 4, 0, "").rows()[0].tolist() == [2, 4, 8, 9]
    assert Split("", 10, 4, 7, "").rows()[0].tolist() == [0, 2, 5, 8]


def test_another_seed_draws_other_items():
    drawn = {tuple(Split("", 1000, 100, seed, "").rows()[0]) for seed in range(20)}
    assert len(drawn) == 20


def test_every_item_is_as_likely_as_any_other():
    """Over 2,000 seeds each of 10 items is drawn about 600 times: the deviation is 20.5, so 5 of them are allowed."""
    counts = np.zeros(10)
    for seed in range(2000):
        counts[Split("", 10, 3, seed, "").rows()[0]] += 1
    assert np.abs(counts - 600).max() < 5 * (2000 * 0.3 * 0.7) ** 0.5


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_data_is_split_into_the_same_items(form):
    tuning, test = pm.split_off(FORMS[form], 6, seed=3)
    rows = split_of((X, Y), 6, seed=3).rows()
    for part, chosen in zip((tuning, test), rows, strict=True):
        inputs, labels = read(part)
        assert torch.equal(inputs, X[chosen])
        assert torch.equal(labels, Y[chosen])


def test_a_loader_keeps_its_ways():
    def collate(batch):
        return {"x": torch.stack([x for x, _ in batch]), "labels": torch.stack([y for _, y in batch])}

    tuning, _ = pm.split_off(DataLoader(Map(), batch_size=2, collate_fn=collate), 5)
    assert [len(batch["labels"]) for batch in tuning] == [2, 2, 1]


@pytest.mark.parametrize("labels", ["labels", "targets"])
def test_labels_that_are_known_are_not_read_from_the_items(labels):
    data = Map(labels)
    split_of(DataLoader(data), 3)
    assert data.reads == 0


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (Stream(), "data of the form Stream cannot be split, because their length is unknown"),
        (((x, y) for x, y in [(X, Y)]), "data of the form generator cannot be split"),
        (3, "`data` is a int: give a DataLoader, a Dataset, a list of batches, or a pair"),
    ],
)
def test_data_of_unknown_length_are_refused(data, match):
    with pytest.raises(TypeError, match=match):
        pm.split_off(data, 3)


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(Map(), shuffle=True),
        DataLoader(Map(), batch_size=4, drop_last=True),
        DataLoader(Map(), batch_size=None),
    ],
)
def test_a_loader_in_another_order_is_refused(loader):
    with pytest.raises(
        ValueError, match=r"this DataLoader cannot be split: it shuffles, samples, or drops the last items"
    ):
        pm.split_off(loader, 3)


@pytest.mark.parametrize(
    ("validation", "match"),
    [
        (0, "`validation=0` must be at least 1 and less than the 23 items: some must be left to test on"),
        (-2, "`validation=-2` must be at least 1"),
        (24, "`validation=24` must be at least 1 and less than the 23 items"),
        (23, "less than the 23 items: leave it out to tune on all"),
    ],
)
def test_parts_that_cannot_be(validation, match):
    with pytest.raises(ValueError, match=match):
        pm.split_off((X, Y), validation)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seeds_that_cannot_be(seed):
    with pytest.raises(ValueError, match=rf"`seed={seed}` of the split must lie in 0\.\.4294967295"):
        pm.split_off((X, Y), 3, seed=seed)


def changed(tensor, row=11):
    tensor = tensor.clone()
    tensor[row] += 1
    return tensor


def test_the_same_data_are_known_again_and_others_are_not():
    split = split_of((X, Y), 6)
    assert split.fits((X.clone(), Y.clone()))
    assert split.fits((X.numpy(), Y.numpy()))
    for other in ((X, changed(Y)), (changed(X), Y), (X.flip(0), Y.flip(0)), (X[:-1], Y[:-1]), (X.double(), Y)):
        assert not split.fits(other)


def test_items_that_are_not_in_memory_are_known_by_their_labels():
    split = split_of(Map(), 6)
    assert split.fits(DataLoader(Map("targets")))
    assert not split.fits(TensorDataset(X, changed(Y)))


class Named(Map):
    def __init__(self, names):
        super().__init__("labels")
        self.names = names


def test_items_with_names_are_known_by_them_too():
    """In a folder with as many pictures of every class as another, the labels say nothing."""
    names = [f"{k}.png" for k in range(23)]
    split = split_of(Named(names), 6)
    assert split.fits(Named(list(names)))
    assert not split.fits(Named([*names[:-1], "new.png"]))


def test_the_name_of_the_data_is_kept_short_and_without_options():
    split = split_of((X, Y), 6, name="imagefolder:/data/val?size=224")
    assert split.data == "imagefolder:/data/val"
    assert split.is_called("imagefolder:/data/val?bad=skip")
    assert not split.is_called("imagefolder:/data/test")
    long = "npz:" + "a" * 5000
    assert len(split_of((X, Y), 6, name=long).data) == LONGEST_NAME
    assert split_of((X, Y), 6, name=long).is_called(long)
    assert not split_of((X, Y), 6).is_called("")


def test_no_global_generator_is_touched():
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    pm.split_off(DataLoader(Map()), 6, seed=3)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]


def test_rows_of_a_pair_may_be_on_another_device_than_their_numbers():
    inputs, labels = take((X.to("meta"), Y), np.array([1, 2]))
    assert inputs.device.type == "meta"
    assert torch.equal(labels, Y[1:3])


def settle(worker):
    """Called in every worker process."""


def test_a_loader_over_other_items_keeps_every_option_of_the_users():
    options = {
        "num_workers": 1,
        "collate_fn": list,
        "pin_memory": False,
        "timeout": 7,
        "worker_init_fn": settle,
        "generator": torch.Generator(),
        "prefetch_factor": 3,
        "persistent_workers": True,
        "batch_size": 4,
    }
    loader = DataLoader(Map(), multiprocessing_context="spawn", **options)
    tuning, _ = pm.split_off(loader, 6)
    for name, value in options.items():
        assert getattr(tuning, name) is value or getattr(tuning, name) == value, name
    assert tuning.multiprocessing_context.get_start_method() == "spawn"
    assert len(tuning.dataset) == 6


def test_a_rebuilt_loader_changes_only_what_is_asked():
    loader = DataLoader(range(10), batch_size=4, drop_last=True, sampler=[3, 1, 2, 0, 9])
    assert [batch.tolist() for batch in rebuild_loader(loader)] == [[3, 1, 2, 0]]
    assert [batch.tolist() for batch in rebuild_loader(loader, drop_last=False)] == [[3, 1, 2, 0], [9]]
    assert [batch.tolist() for batch in rebuild_loader(loader, dataset=range(5))] == [[0, 1, 2, 3]]
    assert [batch.tolist() for batch in rebuild_loader(loader, batch_sampler=[[5], [7]])] == [[5], [7]]
    by_batches = DataLoader(range(10), batch_sampler=[[1, 2], [5]])
    assert [batch.tolist() for batch in rebuild_loader(by_batches)] == [[1, 2], [5]]
