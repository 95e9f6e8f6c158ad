"""The settings of `fit`, and the keywords of version one."""

from __future__ import annotations

import inspect
import warnings

import networks
import pytest
import torch
import version_one
from torch import nn

import peppermill as pm


def test_fit_has_at_most_fourteen_arguments():
    """Settings that belong together are one object."""
    kinds = [value.kind for value in inspect.signature(pm.fit).parameters.values()]
    assert len([kind for kind in kinds if kind is not inspect.Parameter.VAR_KEYWORD]) <= 14


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("two_stage", pm.TwoStage()),
        ("quick", pm.TwoStage()),
        ("golden", pm.Golden()),
        ("golden", pm.Golden(iterations=7, lower=None, upper=None)),
    ],
)
def test_a_search_is_a_name_or_an_object(overfitted, name, settings):
    model, validation, _ = overfitted
    named, given = (pm.fit(model, validation, size=2, search=search) for search in (name, settings))
    assert named.recipe == given.recipe


def test_noise_is_a_name_or_an_object(overfitted):
    model, validation, _ = overfitted
    named, given = (pm.fit(model, validation, size=2, noise=noise) for noise in ("uniform", pm.Noise("uniform")))
    assert named.recipe == given.recipe
    assert pm.fit(model, validation, size=2, noise=pm.Noise(seed=5)).seed == 5


def test_an_engine_may_name_a_precision(overfitted):
    model, validation, _ = overfitted
    assert pm.fit(model, validation, size=2, engine="loop:bfloat16").engine.precision == "bfloat16"
    assert pm.fit(model, validation, size=2, engine="loop", precision="bfloat16").engine.precision == "bfloat16"
    with pytest.raises(ValueError, match="`precision='int3'` is unknown"):
        pm.fit(model, validation, size=2, engine="loop:int3")


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ({"seed": 3}, {"noise": pm.Noise(seed=3)}, "noise=pm.Noise(law='gaussian', antithetic=True, seed=3)"),
        (
            {"antithetic": False, "noise": "uniform"},
            {"noise": pm.Noise("uniform", antithetic=False)},
            "noise=pm.Noise(law='uniform', antithetic=False, seed=0)",
        ),
        ({"upper": 0.5}, {"search": pm.TwoStage(upper=0.5)}, "search=pm.TwoStage(lower=None, upper=0.5)"),
        (
            {"iterations": 3, "upper": 0.5},
            {"search": pm.Golden(3, upper=0.5)},
            "search=pm.Golden(iterations=3, lower=None, upper=0.5)",
        ),
        (
            {"search": "golden", "lower": 0.1},
            {"search": pm.Golden(lower=0.1)},
            "search=pm.Golden(iterations=7, lower=0.1",
        ),
    ],
)
def test_the_keywords_of_version_one_work_and_name_their_successors(overfitted, old, new, text):
    model, validation, _ = overfitted
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = pm.fit(model, validation, size=2, **old)
        expected = pm.fit(model, validation, size=2, **new)
    [about] = [warning for warning in said if warning.category is FutureWarning]
    assert text in str(about.message)
    assert about.filename == __file__
    assert found.recipe == expected.recipe


@pytest.mark.parametrize("name", version_one.ENSEMBLES)
def test_fit_finds_what_version_one_found(name):
    """Or more, or a thousandth less: the joint search stops by another rule, and looks at other values of sigma."""
    network, data, options = version_one.ENSEMBLES[name]
    before = pm.load(version_one.FIXTURES / f"{name}.pep.json", network())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        found = pm.fit(network(), data(), **options)
    if name in ("joint", "two-stage", "two-stage-joint"):
        assert found.search.gain >= 0.999 * before.search.gain
    else:
        assert (found.sigma, found.temperature) == pytest.approx((before.sigma, before.temperature), rel=1e-5)
        assert found.search.gain == pytest.approx(before.search.gain, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"search": "silver"}, ValueError, "`search='silver'` is unknown: choose one of two_stage, golden"),
        ({"noise": "cauchy"}, ValueError, "`noise='cauchy'` is unknown: choose one of gaussian, uniform"),
        ({"sede": 3}, TypeError, r"fit\(\) got an unexpected keyword argument 'sede'"),
        ({"temperature": True, "likelihood": "gaussian"}, ValueError, "`temperature=True` is for classifiers"),
    ],
)
def test_settings_that_do_not_exist_are_refused(mlp, data, options, error, text):
    with pytest.raises(error, match=text):
        pm.fit(mlp, data, **options)


def test_the_network_is_untouched(overfitted):
    model, validation, _ = overfitted
    before = networks.snapshot(model)
    pm.fit(model, validation, size=2, temperature=True)
    networks.assert_untouched(model, before)


SEEN = []  # the sizes of the batches of `Counted`


class Counted(nn.Module):
    """A layer that counts the items it has seen, in every copy."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        SEEN.append(len(x))
        return 5 * self.layer(x)


@pytest.mark.filterwarnings("ignore::peppermill.PepWarning")
@pytest.mark.parametrize(("softness", "helps"), [(1.0, False), (3.0, True)])
def test_the_passes_of_a_calibrator_are_those_that_it_took(softness, helps):
    """If noise does not help, the calibrator is fitted on one pass, not on one of each member."""
    model = networks.seeded(Counted).eval()
    x = torch.randn(800, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.distributions.Categorical(logits=model(x).detach() / softness)
    torch.manual_seed(0)
    SEEN.clear()
    pep = pm.fit(model, (x, labels.sample()), calibrator="vector", engine="loop")
    assert (pep.sigma > 0) == helps
    assert pep.search.passes == pytest.approx(sum(SEEN) / 800, abs=1.0)
