"""Warnings point at the user."""

import inspect
import warnings

import networks
import pytest
import torch

import peppermill as pm
from peppermill.plumbing.warnings import warn_user


def test_a_warning_is_on_the_line_of_the_user_however_deep_it_arises():
    """Through decorators of torch and of this package: a network in half precision is mentioned deep inside `fit`."""
    model, data = networks.mlp(dtype=torch.bfloat16), networks.items()
    with pytest.warns(pm.PepWarning) as found:
        pm.fit(model, data, size=2)
    here = inspect.currentframe().f_lineno - 1
    assert {(warning.filename, warning.lineno) for warning in found} == {(__file__, here)}


def test_it_is_a_pep_warning_that_can_be_silenced():
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("ignore", pm.PepWarning)
        warn_user("nothing to see")
    assert found == []
