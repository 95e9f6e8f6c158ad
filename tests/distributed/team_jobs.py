"""What a team of processes is asked to do; results as plain numbers and texts, which travel between processes."""

from __future__ import annotations

import copy
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import networks
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import peppermill as pm
from peppermill import data as data_module
from peppermill.data import Batches
from peppermill.distributed.group import rank
from peppermill.plumbing import progress
from peppermill.report.run import plain

ITEMS = 83

overfitted = cache(networks.overfitted)


class Read(Dataset):
    """A data set that remembers which of its items were read."""

    def __init__(self, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        self.inputs, self.labels, self.read = inputs, labels, []

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        return self.inputs[index], self.labels[index]


class Stream(IterableDataset):
    def __init__(self, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        self.inputs, self.labels = inputs, labels

    def __iter__(self) -> Iterator[Any]:
        return iter(zip(self.inputs, self.labels, strict=True))


class Again:
    """Batches without length or index, the same in every pass."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def in_form(form: str, data: tuple[torch.Tensor, torch.Tensor], batch_size: int) -> Any:
    """The same items as people have them."""
    batches = list(zip(*(part.split(batch_size) for part in data), strict=True))
    forms = {
        "pair": lambda: data,
        "arrays": lambda: tuple(part.numpy() for part in data),
        "dataset": lambda: TensorDataset(*data),
        "map": lambda: Read(*data),
        "loader": lambda: DataLoader(Read(*data), batch_size=batch_size),
        "stream": lambda: DataLoader(Stream(*data), batch_size=batch_size),
        "list": lambda: batches,
        "unequal list": lambda: [(data[0][a:b], data[1][a:b]) for a, b in ((0, 1), (1, 60), (60, ITEMS))],
        "iterable": lambda: Again(batches),
    }
    return forms[form]()


@contextmanager
def memory_of(limit: int | None) -> Iterator[None]:
    """Hold at most this many bytes of inputs in memory."""
    before = data_module.MEMORY_BYTES
    data_module.MEMORY_BYTES = limit or before
    try:
        yield
    finally:
        data_module.MEMORY_BYTES = before


def saved(pep: pm.PepEnsemble) -> str:
    with tempfile.TemporaryDirectory() as folder:
        pep.save(Path(folder) / "pep.json")
        return (Path(folder) / "pep.json").read_text()


def everything(form: str, batch_size: int, kept_bytes: int | None = None, temperature: bool = False) -> dict[str, Any]:
    """Fit, predict, score and sweep."""
    model, (inputs, labels), (test_inputs, test_labels) = overfitted()
    validation = in_form(form, (inputs[:ITEMS], labels[:ITEMS]), batch_size)
    test = in_form(form, (test_inputs[:ITEMS], test_labels[:ITEMS]), batch_size)
    with memory_of(kept_bytes):
        pep = pm.fit(
            model,
            validation,
            size=4,
            search=pm.Golden(upper=0.3, iterations=3),
            temperature=temperature,
            batch_size=batch_size,
        )
        batches = Batches(test, model, batch_size=batch_size)
        members = pep.member_pass(batches)
        predictions = pm.predict(model, batches)
        swept = pm.sweep_sigma(model, validation, [0.1], size=2, batch_size=batch_size)
        return {
            "sigma": pep.sigma,
            "temperature": pep.temperature,
            "curve": [list(vars(e).values()) for e in pep.search.evaluations],
            "items": pep.search.items,
            "saved": saved(pep),
            "members": members.member_log_likelihoods.tolist(),
            "averaged": members.averaged.tolist(),
            "labels": members.labels.tolist(),
            "network": predictions.log_probs.tolist(),
            "effects": pep.item_effects(batches).tolist(),
            "scores": json.dumps(plain(pm.evaluate(pep, batches))),
            "sweep": json.dumps(plain(swept)),
            "warm": pm.fit_temperature(model, validation).temperature,
        }


def two_stage(items: int, batch_size: int, temperature: bool) -> dict[str, Any]:
    """The default search, on data large enough for a subsample."""
    model = networks.cnn()
    inputs, labels = networks.items(items, (1, 6, 6))
    with torch.no_grad():
        labels = torch.where(torch.arange(items) % 3 == 0, labels, model(inputs).argmax(dim=1))
        for value in model.parameters():
            value.mul_(3)
    pep = pm.fit(model, (inputs, labels), size=4, temperature=temperature, batch_size=batch_size)
    curve = [list(vars(e).values()) for e in pep.search.evaluations]
    return {"sigma": pep.sigma, "curve": curve, "passes": pep.search.passes, "saved": saved(pep)}


def reads(batch_size: int, kept_bytes: int | None = None) -> list[int]:
    """Which items are read for a fit."""
    model, (inputs, labels), _ = overfitted()
    data = Read(inputs[:40], labels[:40])
    with memory_of(kept_bytes):
        pm.fit(model, DataLoader(data, batch_size=batch_size), size=2)
    return data.read


def loader_options() -> list[Any]:
    """The options of the loader of a share."""
    loader = DataLoader(
        TensorDataset(*networks.items(40)), batch_size=8, num_workers=2, prefetch_factor=3, timeout=5, collate_fn=tuple
    )
    source = Batches(loader).share().source
    batches = len(list(source.batch_sampler))
    return [source.num_workers, source.prefetch_factor, source.timeout, source.collate_fn is tuple, batches]


def sigma_of(count: int, batch_size: int) -> list[Any]:
    """A fit on a few items, and their predictions."""
    model, (inputs, labels), _ = overfitted()
    pep = pm.fit(model, (inputs[:count], labels[:count]), size=2, search=pm.Golden(iterations=2), batch_size=batch_size)
    found = pm.predict(pep, Batches((inputs[:count], labels[:count]), model, batch_size=batch_size))
    return [pep.sigma, list(pep.search.points), found.log_probs.tolist(), found.labels.tolist()]


def pixels(ignored: str) -> list[Any]:
    """Outputs [B, K, 2, 2]: every pixel is an item, except the ignored ones."""
    model = networks.seeded(lambda: nn.Conv2d(1, 3, 3))
    inputs, _ = networks.items(12, (1, 4, 4))
    labels = torch.randint(3, (12, 2, 2), generator=torch.Generator().manual_seed(2))
    labels[{"first part": slice(0, 6), "last part": slice(8, 12), "all": slice(None)}[ignored]] = -100
    labels[7, 0, 0] = -100
    pep = pm.fit(model, (inputs, labels), size=2, search=pm.Golden(iterations=2), batch_size=4)
    return [pep.search.items, pep.sigma, list(pep.search.points), pep.predict_items((inputs, labels)).labels.tolist()]


def no_item_counts(what: str) -> None:
    model, inputs = networks.mlp(), networks.items()[0]
    labels = torch.full((20,), -100)
    {"fit": pm.fit, "predict": pm.predict, "sweep": pm.sweep_sigma}[what](model, (inputs, labels))


def views(count: int, batch_size: int) -> list[Any]:
    """Members that see flipped pictures; the views weigh unequally."""
    model, images = networks.cnn(), networks.items(count, (1, 6, 6))
    options: dict[str, Any] = {"size": 3, "views": "horizontal_flip", "batch_size": batch_size}
    pep = pm.fit(model, images, search=pm.Golden(upper=0.5, iterations=2), **options)
    found = pep.with_sigma(0.2).member_pass(Batches(images, model, batch_size=batch_size))
    return [pep.sigma, list(pep.search.points), found.member_log_likelihoods.tolist(), found.averaged.tolist()]


def layers_and_pool(seed: int, batch_size: int) -> list[Any]:
    """Noise by layer, and members from a pool."""
    model, validation, _ = overfitted(seed)
    options: dict[str, Any] = {"size": 4, "temperature": True, "batch_size": batch_size}
    search = pm.Golden(upper=0.5, iterations=3)
    pep = pm.fit(model, validation, search=search, scale="layer", pool=12, **options)
    noise = pep.recipe.noise
    scales = [factor for _, factors in noise.scales for factor in factors]
    return [pep.sigma, pep.temperature, scales, list(noise.draws), pep.search.pool_gain, pep.search.passes]


def likelihoods(name: str) -> list[Any]:
    """A regression, and questions with yes or no."""
    model = networks.mlp(classes=2)
    inputs, labels = networks.items(30)
    labels = {"gaussian": inputs[:, 0], "bernoulli": torch.stack([labels > 0, labels > 1], dim=1).long()}[name]
    data = Batches((inputs, labels), model, batch_size=4)
    pep = pm.fit(model, (inputs, labels), size=3, search=pm.Golden(iterations=2), likelihood=name, batch_size=4)
    found = pm.predict(pep, data, uncertainty=True)
    return [
        pep.sigma,
        list(pep.search.points),
        found.log_probs.tolist(),
        found.labels.tolist(),
        str(found.labels.dtype),
        {key: values.tolist() for key, values in found.uncertainty.values.items()},
    ]


def on_gpu() -> list[Any]:
    """Two processes on one GPU."""
    model, (inputs, labels), _ = overfitted()
    model = copy.deepcopy(model).double().cuda()
    pep = pm.fit(model, (inputs, labels), size=2, search=pm.Golden(iterations=2), temperature=True, batch_size=48)
    return [pep.sigma, list(pep.search.points), pm.predict(pep, (inputs, labels)).log_probs.tolist()]


def dropout() -> list[Any]:
    """Masks that depend on the shape of a batch."""
    model = networks.seeded(lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)))
    return pm.predict(pm.McDropout(model, 3), Batches(networks.items(50), model, batch_size=7)).log_probs.tolist()


def recorded() -> str:
    """A run with pictures of the items most helped and hurt."""
    model = networks.cnn()
    images = networks.items(50, (1, 6, 6))
    pep = pm.fit(model, images, size=2, search=pm.Golden(upper=0.5, iterations=2), batch_size=8)
    pep = pm.PepEnsemble(model, replace(pep.recipe, sigma=0.1))  # so that somebody is helped
    batches = Batches(images, model, batch_size=8)
    run = plain(pm.record_run({"network": model, "PEP": pep}, batches, title="a run"))
    assert any(effect["image"] for effect in run["effects"]["helped"])
    return json.dumps({key: value for key, value in run.items() if key != "provenance"})


def local() -> list[float]:
    """What is not shared, computed whole by every process."""
    model, data = networks.mlp(), networks.items(30)
    found = pm.local_analysis(model, DataLoader(TensorDataset(*data), batch_size=7), probes=3)
    averaged = pm.WeightAverage()
    averaged.add(networks.cnn())
    norm = averaged.network(DataLoader(TensorDataset(*networks.items(30, (1, 6, 6))), batch_size=7))[1]
    return [found.laplacian, found.fisher_trace, found.items, *norm.running_mean.tolist()]


def probed() -> str:
    models = {str(seed): networks.mlp(seed).state_dict() for seed in range(3)}
    data = networks.items(30)
    found = pm.probe_overfitting(
        networks.mlp(), models, train=data, validation=data, test=data, size=2, probes=3, batch_size=7
    )
    return json.dumps(plain(found))


def odd_one_out(what: str) -> Any:
    """One process differs: the last."""
    odd = rank() == dist.get_world_size() - 1
    model, data = networks.mlp(), networks.items(40)
    options: dict[str, Any] = {"size": 2, "search": pm.Golden(iterations=2), "batch_size": 8}
    if what == "weights":
        model = networks.mlp(seed=int(odd))
    elif what == "weights, without a search":
        return pm.PepEnsemble.at_sigma(networks.mlp(seed=int(odd)), 0.1, size=2).member_pass(data)
    elif what == "seed":
        options["noise"] = pm.Noise(seed=int(odd))
    elif what == "parameters":
        options["parameters"] = "last_layer" if odd else "kernels"
    elif what == "views":
        model, data = networks.cnn(), networks.items(40, (1, 6, 6))
        options["views"] = "vertical_flip" if odd else "horizontal_flip"
    elif what == "length":
        data = networks.items(38 if odd else 40)
    elif what == "labels":
        data[1][8 if dist.get_world_size() == 2 else 20] = 7  # in a batch of the last process
    elif what == "training":
        model.train(odd)
    elif what == "argument":
        options["size"] = 0 if odd else 2
    elif what == "function" and odd:
        return pm.evaluate(model, data)
    elif what == "alone" and odd:
        return None
    return pm.fit(model, data, **options).sigma


def refused(what: str) -> None:
    """Data and networks that cannot be shared."""
    model, data = networks.mlp(), TensorDataset(*networks.items(40))
    if what == "sampler":
        data = DataLoader(data, sampler=torch.utils.data.DistributedSampler(data))
    elif what == "shuffled":
        data = DataLoader(data, shuffle=True)
    elif what == "generator":
        data = (batch for batch in DataLoader(data))
    elif what == "nothing":
        data = networks.items(0)
    else:
        model = nn.parallel.DistributedDataParallel(model).eval()
    pm.fit(model, data)


def first_alone() -> list[Any] | None:
    """The first process fits by itself, while the others do something else."""
    if rank():
        return None
    with pm.alone():
        return sigma_of(40, 8)


def dies() -> None:
    """The last process is killed in the middle of a fit."""
    model, calls = networks.mlp(), []

    def die(*_: Any) -> None:
        calls.append(None)
        if rank() == dist.get_world_size() - 1 and len(calls) > 5:
            os.kill(os.getpid(), 9)

    model.register_forward_hook(die)
    pm.fit(model, networks.items(40), size=2, batch_size=8)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown() -> str:
    """What a fit writes on this process's terminal, where a line is shown at once."""
    network, validation, _ = overfitted()
    before, patience = sys.stderr, progress.DELAY_SECONDS
    sys.stderr, progress.DELAY_SECONDS = Terminal(), 0.0
    try:
        pm.fit(network, validation, size=2, batch_size=5)
        return sys.stderr.getvalue()
    finally:
        sys.stderr, progress.DELAY_SECONDS = before, patience
