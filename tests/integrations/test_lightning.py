"""`PepCallback` in real trainers: what it finds, what it writes, and that the module is as before."""

import copy
import csv
import os
import subprocess
import sys
from pathlib import Path

import lightning.pytorch
import networks
import pytest
import pytorch_lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from training import Module, loader, module_class, together, trainer

import peppermill as pm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:noise does not help|the best temperature is:peppermill.PepWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
]


@pytest.fixture(autouse=True)
def repeatable():
    """Dropout draws from the global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture
def module():
    """Its weights are drawn from a seed, and the training is not shuffled."""
    return Module()


@pytest.mark.parametrize("temperature", [False, True])
@pytest.mark.parametrize("package", [lightning.pytorch, pytorch_lightning], ids=lambda package: package.__name__)
def test_after_the_training_the_ensemble_is_that_of_calibrate_or_fit_on_the_validation_data(
    package, temperature, tmp_path
):
    found, callback = module_class(package)(), pm.PepCallback(size=4, noise=pm.Noise(seed=2), temperature=temperature)
    trainer(callback, tmp_path, package).fit(found, loader(), loader(seed=2))
    found.eval()
    validation = together(loader(seed=2))
    noise = pm.Noise(seed=2)
    expected = (
        pm.calibrate(found, validation, 4, noise=noise)
        if temperature
        else pm.fit(found, validation, size=4, noise=noise)
    )
    assert callback.pep.recipe.selected == ("net.0.weight", "net.4.weight")
    assert callback.pep.sigma == pytest.approx(expected.sigma)
    assert callback.pep.temperature == pytest.approx(expected.temperature)
    assert expected.temperature > 1 if temperature else expected.sigma > 0
    inputs = together(loader(seed=3))[0]
    torch.testing.assert_close(callback.pep(inputs), expected(inputs))


def test_the_ensemble_is_saved_beside_the_checkpoint_and_fits_its_weights(module, tmp_path):
    callback = pm.PepCallback(size=2, network="net")
    found = trainer(callback, tmp_path, callbacks=[callback, ModelCheckpoint(tmp_path / "kept")])
    found.fit(module, loader(), loader(seed=2))
    [checkpoint] = (tmp_path / "kept").glob("*.ckpt")
    weights = torch.load(checkpoint, weights_only=True)["state_dict"]
    network = Module().net
    network.load_state_dict({name.removeprefix("net."): value for name, value in weights.items()})
    assert pm.load(checkpoint.with_name("pep.json"), network).recipe.sigma == callback.pep.sigma


def test_a_validation_of_the_best_checkpoint_brings_its_ensemble(module, tmp_path):
    callback, best = pm.PepCallback(size=2), ModelCheckpoint(tmp_path / "kept", monitor="val_loss")
    found = trainer(callback, tmp_path, callbacks=[callback, best])
    found.fit(module, loader(), loader(seed=2))
    last = callback.pep.recipe
    with pytest.raises(ValueError, match="was fitted on another network"):
        pm.load(tmp_path / "kept" / "pep.json", Module.load_from_checkpoint(best.best_model_path))
    found.validate(module, loader(seed=2), ckpt_path="best", verbose=False)
    assert callback.pep.recipe.fingerprint != last.fingerprint
    again = Module.load_from_checkpoint(best.best_model_path).eval()
    assert pm.load(tmp_path / "kept" / "pep.json", again).sigma == callback.pep.sigma


def test_without_checkpoints_it_is_saved_in_the_root_folder_or_where_it_is_told(module, tmp_path):
    trainer(pm.PepCallback(size=2), tmp_path, enable_checkpointing=False, max_epochs=1).fit(module, loader(), loader())
    assert (tmp_path / "pep.json").is_file()
    callback = pm.PepCallback(size=2, path=tmp_path / "deep" / "down.json")
    trainer(callback, tmp_path, enable_checkpointing=False, max_epochs=1).fit(module, loader(), loader())
    assert pm.load(tmp_path / "deep" / "down.json", module).sigma == callback.pep.sigma


def test_sigma_temperature_and_scores_before_and_after_are_logged(module, tmp_path):
    callback = pm.PepCallback(size=4)
    found = trainer(callback, tmp_path, logger=CSVLogger(tmp_path, name="", version=""), log_every_n_steps=1)
    found.fit(module, loader(), loader(seed=2))
    with open(tmp_path / "metrics.csv") as file:
        [logged] = [row for row in csv.DictReader(file) if row["pep/sigma"]]
    module.eval()
    inputs, labels = together(loader(seed=2))
    before, after = module(inputs).softmax(dim=1).detach(), callback.pep.predict_proba(inputs).detach()
    expected = {
        "pep/sigma": callback.pep.sigma,
        "pep/temperature": callback.pep.temperature,
        "pep/nll_before": float(nn.functional.nll_loss(before.log(), labels)),
        "pep/nll": float(nn.functional.nll_loss(after.log(), labels)),
        "pep/ece_before": pm.metrics.expected_calibration_error(before.log(), labels),
        "pep/ece": pm.metrics.expected_calibration_error(after.log(), labels),
    }
    assert callback.metrics == pytest.approx(expected, rel=1e-5)
    assert {name: float(logged[name]) for name in expected} == pytest.approx(expected, rel=1e-5)
    assert expected["pep/nll"] < expected["pep/nll_before"]


@pytest.mark.filterwarnings("ignore:Found 1 module.s. in eval mode at the start of training")
def test_the_module_and_the_training_are_what_they_would_be_without_it(tmp_path):
    """Weights, batch statistics, modes and the global generator, also with dropout and a shuffled training loader."""
    states = []
    for callbacks in ([], [pm.PepCallback(size=2)]):
        lightning.pytorch.seed_everything(0, verbose=False)
        module = Module()
        module.net[1].eval()  # a user may keep one part in another mode
        trainer(None, tmp_path, callbacks=callbacks, max_epochs=2).fit(module, loader(shuffle=True), loader(seed=2))
        states.append((networks.snapshot(module), torch.get_rng_state()))
    (without, state), (with_it, again) = states
    assert with_it["modes"] == without["modes"]
    assert with_it["requires_grad"] == without["requires_grad"]
    assert all(torch.equal(with_it["state"][name], value) for name, value in without["state"].items())
    assert torch.equal(state, again)


def test_several_loaders_are_read_one_after_another_or_one_of_them_alone(module, tmp_path):
    loaders = [loader(seed=2), loader(41, seed=3)]
    expected = [together(one) for one in (loaders[0], loaders[1], [*loaders[0], *loaders[1]])]
    for number, data in zip((0, 1, None), expected, strict=True):
        callback = pm.PepCallback(size=2, dataloader=number, temperature=False)
        found = copy.deepcopy(module)
        trainer(callback, tmp_path, max_epochs=1).fit(found, loader(), loaders)
        assert callback.pep.search.items == len(data[1])
        assert callback.pep.sigma == pytest.approx(pm.fit(found.eval(), data, size=2).sigma)


def test_loaders_by_name_and_a_limit_of_batches(module, tmp_path):
    callback = pm.PepCallback(size=2, dataloader=1)
    named = {"near": loader(seed=2), "far": loader(40, seed=3, batch_size=8)}
    trainer(callback, tmp_path, max_epochs=1, limit_val_batches=3).fit(module, loader(), named)
    assert callback.pep.search.items == 24


def test_batches_of_another_form_are_read_by_a_function(module, tmp_path):
    class Named(torch.utils.data.Dataset):
        def __len__(self):
            return 30

        def __getitem__(self, index):
            return {"image": loader().dataset[index][0], "target": loader().dataset[index][1]}

    class Dicts(Module):
        def training_step(self, batch):
            return super().training_step((batch["image"], batch["target"]))

        def validation_step(self, batch, batch_idx):
            return super().validation_step((batch["image"], batch["target"]), batch_idx)

    callback = pm.PepCallback(size=2, batch=lambda batch: (batch["image"], batch["target"]))
    data = DataLoader(Named(), batch_size=10)
    trainer(callback, tmp_path, max_epochs=1).fit(Dicts(), data, data)
    assert callback.pep.search.items == 30


def test_a_trial_run_goes_through_it_and_leaves_no_file(module, tmp_path):
    callback = pm.PepCallback(size=2)
    trainer(callback, tmp_path, fast_dev_run=True).fit(module, loader(), loader(seed=2))
    assert callback.pep.search.items == 16
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_tuned_while_the_training_goes_on(module, tmp_path):
    """Neither in the sanity check nor after the validation of an epoch."""
    seen = []

    class Spy(lightning.pytorch.Callback):
        def on_validation_end(self, trainer, pl_module):
            seen.append(callback.pep)

    callback = pm.PepCallback(size=2)
    trainer(callback, tmp_path, callbacks=[callback, Spy()], max_epochs=2).fit(module, loader(), loader(seed=2))
    assert seen == [None, None, None]
    assert callback.pep is not None


@pytest.mark.parametrize("options", [{}, {"temperature": False, "search": pm.TwoStage(upper=0.3)}])
def test_a_regression_has_no_calibration_error(tmp_path, options):
    class Regression(Module):
        def training_step(self, batch):
            return nn.functional.gaussian_nll_loss(self(batch[0])[:, 0], batch[1], self(batch[0])[:, 1].exp())

        def validation_step(self, batch, batch_idx):
            pass

        def forward(self, x):
            return self.net(x)[:, :2]

    inputs, _ = networks.items(60)
    data = DataLoader(TensorDataset(inputs, inputs.sum(dim=1)), batch_size=16)
    callback = pm.PepCallback(size=2, likelihood="gaussian", **options)
    trainer(callback, tmp_path).fit(Regression(), data, data)
    assert set(callback.metrics) == {"pep/sigma", "pep/temperature", "pep/nll_before", "pep/nll"}


@pytest.mark.parametrize(
    ("options", "training", "match"),
    [
        ({"parameters": "conv"}, {}, "`parameters='conv'` selects nothing in this Module"),
        ({"size": 0}, {}, "`size=0` must be a whole number of members"),
        ({"size": 1, "views": lambda x: x}, {}, "need 2 members or more, one of them for the inputs as they are"),
        ({"network": "backbone"}, {}, "`network='backbone'` is not a part of this Module: it has net"),
        ({"dataloader": 1}, {}, "`dataloader=1` must be one of the 1 loaders, from 0"),
        ({"path": "."}, {}, "cannot be written: give the path of a file"),
        ({"likelihood": "poisson"}, {}, "`likelihood='poisson'` is unknown"),
        ({"likelihood": "gaussian"}, {}, "a Gaussian likelihood needs a mean and a log-variance"),
        ({}, {"limit_val_batches": 0}, "PepCallback finds sigma on validation data, and this trainer has none"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_step_of_the_training(module, tmp_path, options, training, match):
    before = networks.snapshot(module)
    with pytest.raises(ValueError, match=match):
        trainer(pm.PepCallback(**options), tmp_path, **training).fit(module, loader(), loader(seed=2))
    networks.assert_untouched(module, before)


def test_validation_data_that_are_shuffled_are_refused_before_the_training(module, tmp_path):
    before = networks.snapshot(module)
    with (
        pytest.warns(UserWarning, match="has shuffling enabled"),
        pytest.raises(ValueError, match="`val_dataloaders` changes between two passes: it is shuffled"),
    ):
        trainer(pm.PepCallback(), tmp_path).fit(module, loader(), loader(seed=2, shuffle=True))
    networks.assert_untouched(module, before)


def test_an_option_that_does_not_exist_is_refused_at_once():
    with pytest.raises(
        TypeError, match=r"`sise` is not an option of PepCallback or `pm.fit`: choose among parameters, size"
    ):
        pm.PepCallback(sise=3)


def test_checkpoints_in_a_bucket_ask_for_a_local_path(module, tmp_path):
    checkpoint = ModelCheckpoint("memory://bucket/kept")
    callback = pm.PepCallback()
    with pytest.raises(ValueError, match=r"cannot be saved beside the checkpoints in memory://.*: give a local `path`"):
        trainer(callback, tmp_path, callbacks=[callback, checkpoint]).fit(module, loader(), loader(seed=2))


def test_two_processes_find_what_one_finds_and_one_of_them_writes(module, tmp_path):
    """Lightning deals the 60 validation items out to the two; sigma and T are found on all of them, in both."""
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (here.parent, here.parents[1])))}
    command = [sys.executable, here / "two_processes.py", tmp_path]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert run.returncode == 0, run.stderr
    first, second = ((tmp_path / f"found-{rank}").read_text().split() for rank in (0, 1))
    assert first == second
    module.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    expected = pm.fit(module.eval(), together(loader(seed=2)), size=2)
    assert int(first[0]) == 60
    assert float(first[1]) == pytest.approx(expected.sigma, rel=1e-6)
    assert expected.sigma > 0
    assert pm.load(tmp_path / "pep.json", module).sigma == float(first[1])


def test_a_lightning_that_does_not_import_is_said_to_be_there(tmp_path, monkeypatch):
    """The other package is absent, which is not what has to be mended."""
    monkeypatch.delitem(sys.modules, "peppermill.integrations.lightning", raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == "pytorch_lightning"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    (tmp_path / "pytorch_lightning.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match=r"installed but does not import \(RuntimeError: operator torchvision::nms"):
        pm.PepCallback  # noqa: B018


def test_without_lightning_it_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "peppermill.integrations.lightning", raising=False)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.setitem(sys.modules, "pytorch_lightning", None)
    with pytest.raises(ImportError, match=r'PepCallback needs Lightning: `pip install "peppermill\[lightning\]"`'):
        pm.PepCallback  # noqa: B018
