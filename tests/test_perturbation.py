from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from peppermill.noise import Noise
from peppermill.perturbation import Perturbation


def center(dtype=torch.float32):
    return {
        "a.weight": torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4).to(dtype),
        "b.weight": torch.linspace(0.1, 0.3, 5, dtype=torch.float64).to(dtype),
    }


def test_a_member_is_the_center_plus_sigma_times_the_direction():
    """Eq. 3, 5, in float64, where the product of two float32 numbers is exact."""
    perturbation = Perturbation(center(torch.float64), Noise(seed=4), 6)
    for j in range(6):
        for name, value in perturbation.member(0.37, j).items():
            epsilon = Noise(seed=4).draw(name, j, value).double()
            assert torch.equal(value, perturbation.center[name] + 0.37 * epsilon)
            assert torch.equal(perturbation.direction(j)[name].double(), epsilon)


@given(sigma=st.floats(1e-6, 1e3), member=st.integers(0, 9))
def test_directions_do_not_depend_on_sigma(sigma, member):
    """Common random numbers: twice the sigma goes twice as far the same way."""
    perturbation = Perturbation(center(torch.float64), Noise(), 10)
    once, twice = (perturbation.member(factor * sigma, member) for factor in (1, 2))
    for name, value in perturbation.center.items():
        tolerance = 4 * torch.finfo(torch.float64).eps * (1 + 10 * sigma)
        assert float((twice[name] - value - 2 * (once[name] - value)).abs().max()) <= tolerance


def test_parameters_have_directions_of_their_own():
    direction = Perturbation({"a": torch.zeros(9), "b": torch.zeros(9)}, Noise(), 1).direction(0)
    assert not torch.equal(direction["a"], direction["b"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_noise_is_added_in_float32_at_least_and_then_rounded(dtype):
    perturbation = Perturbation(center(dtype), Noise(), 2)
    wide = torch.promote_types(dtype, torch.float32)
    for name, value in perturbation.member(0.01, 1).items():
        assert value.dtype == dtype
        epsilon = perturbation.direction(1)[name].to(wide)
        assert torch.equal(value, (perturbation.center[name].to(wide) + 0.01 * epsilon).to(dtype))


def test_low_precision_noise_differs_from_noise_that_was_rounded_first():
    """Why float32 matters: sigma * epsilon in bfloat16 is another number before it is added."""
    perturbation = Perturbation({"a": torch.full((1000,), 0.1, dtype=torch.bfloat16)}, Noise(), 1)
    rounded_first = perturbation.center["a"] + (perturbation.direction(0)["a"].bfloat16() * 0.001)
    assert not torch.equal(perturbation.member(0.001, 0)["a"], rounded_first)


def test_at_sigma_zero_there_is_one_member_and_it_is_the_center_itself():
    perturbation = Perturbation(center(), Noise(), 7)
    (only,) = perturbation.members(0.0)
    assert all(only[name] is value for name, value in perturbation.center.items())
    assert only is not perturbation.center


@pytest.mark.parametrize("size", [1, 2, 5])
def test_there_are_as_many_members_as_was_asked_for(size):
    found = list(Perturbation(center(), Noise(), size).members(0.1))
    assert len(found) == size
    assert len({float(params["b.weight"][0]) for params in found}) == size


def test_the_center_is_never_written():
    perturbation = Perturbation(center(), Noise(), 3)
    list(perturbation.members(1.0))
    assert all(torch.equal(perturbation.center[name], value) for name, value in center().items())


def test_the_members_of_antithetic_pairs_average_to_the_center():
    perturbation = Perturbation(center(torch.float64), Noise(antithetic=True), 6)
    for name, value in perturbation.center.items():
        mean = torch.stack([params[name] for params in perturbation.members(0.5)]).mean(dim=0)
        assert torch.allclose(mean, value, rtol=0, atol=1e-15)


def test_the_scale_is_the_root_mean_square_of_all_selected_weights():
    """By hand: sqrt((4 * 3^2 + 1 * 2^2) / 5) = sqrt 8."""
    params = {"a": torch.tensor([[3.0, -3.0], [3.0, 3.0]]), "b": torch.tensor([-2.0])}
    assert Perturbation(params, Noise(), 1).scale() == pytest.approx(math.sqrt(8))


def test_the_scale_of_weights_that_are_all_zero_is_one():
    """A head that was initialised with zeros must have a first sigma to try all the same."""
    assert Perturbation({"a": torch.zeros(3)}, Noise(), 1).scale() == 1


def test_the_scale_of_half_precision_weights_does_not_overflow():
    """60,000^2 is beyond float16."""
    assert Perturbation({"a": torch.full((4,), 60000.0).half()}, Noise(), 1).scale() == pytest.approx(60000, rel=1e-3)


@pytest.mark.parametrize("size", [0, -3, 2.0, "10", None, 10**12])
def test_refuses_a_size_that_is_no_number_of_members(size):
    with pytest.raises(ValueError, match=rf"`size={size!r}` must be a whole number of members, 1 to 1,000,000"):
        Perturbation(center(), Noise(), size)


def test_refuses_more_members_than_were_chosen_from_a_pool():
    with pytest.raises(ValueError, match="`size=3` is more than the 2 members that were chosen"):
        Perturbation(center(), Noise(draws=(4, 7)), 3)
