from __future__ import annotations

import hashlib
import math
import random
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from peppermill.noise import LAWS, Noise, philox

COUNT = 40_000
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def signed(word):
    """A 64-bit counter as torch holds it."""
    return struct.unpack("<q", struct.pack("<Q", word))[0]


def plain_philox(counter, key):
    """Philox4x32-10 of Salmon et al. (2011), Section 3.3, in plain integers."""
    a, b, c, d = counter
    low, high = key
    for _ in range(10):
        first, second = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = second >> 32 ^ b ^ low, second & 0xFFFFFFFF, first >> 32 ^ d ^ high, first & 0xFFFFFFFF
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return a, b, c, d


def plain_stream(seed, name, stream, count):
    """Uniform numbers between 0 and 1 as the module's docstring defines them, one at a time."""
    key = struct.unpack("<2I", hashlib.sha256(f"peppermill noise 1\n{seed}\n{name}".encode()).digest()[:8])
    words = [word for k in range(-(-count // 4)) for word in plain_philox((k, 0, stream, 0), key)]
    return [(word + 0.5) / 2**32 for word in words]


def draw(noise=None, name="layer.weight", member=0, shape=(COUNT,)):
    return (noise or Noise()).draw(name, member, torch.empty(shape))


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_gives_the_published_answers(counter, key, words):
    """The known answers that Random123 publishes for philox4x32-10."""
    low, high, stream_low, stream_high = (int(word, 16) for word in counter.split())
    first, second = (int(word, 16) for word in key.split())
    counters = torch.tensor([signed(high << 32 | low)])
    found = philox(counters, stream_high << 32 | stream_low, (first, second))
    assert [f"{int(word):08x}" for word in found] == words.split()


@given(
    counters=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=5),
    stream=st.integers(0, 2**40),
    key=st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
)
def test_philox_on_tensors_equals_philox_on_integers(counters, stream, key):
    found = torch.stack(philox(torch.tensor(counters), stream, key), dim=1).tolist()
    for counter, words in zip(counters, found, strict=True):
        plain = plain_philox((counter & 0xFFFFFFFF, counter >> 32, stream & 0xFFFFFFFF, stream >> 32), key)
        assert tuple(words) == plain


@pytest.mark.parametrize("count", [1, 3, 4, 5, 1000])
def test_gaussian_noise_is_box_muller_of_the_stream(count):
    numbers = plain_stream(7, "a.weight", 3, count)
    expected = []
    for u, v in zip(numbers[::2], numbers[1::2], strict=True):
        radius, angle = math.sqrt(-2 * math.log(u)), 2 * math.pi * v
        expected += [radius * math.cos(angle), radius * math.sin(angle)]
    found = draw(Noise("gaussian", antithetic=False, seed=7), "a.weight", 3, (count,))
    np.testing.assert_allclose(found.double().numpy(), expected[:count], rtol=2**-23, atol=1e-15)


def test_uniform_noise_is_the_stream_stretched_to_unit_variance():
    expected = [math.sqrt(3) * (2 * u - 1) for u in plain_stream(7, "a.weight", 3, 101)][:101]
    found = draw(Noise("uniform", antithetic=False, seed=7), "a.weight", 3, (101,))
    np.testing.assert_allclose(found.double().numpy(), expected, rtol=2**-23)


PINNED = {
    ("gaussian", 0, "layer.weight", 0): "0x1.5dd6d6p-2 0x1.2b49ccp+0 -0x1.6feb92p+0 0x1.3232aep-1",
    ("gaussian", 0, "layer.weight", 3): "-0x1.0ecceep-1 0x1.a8eb94p-1 0x1.eb484cp-2 -0x1.683a96p+0",
    ("gaussian", 17, "features.0.weight", 0): "-0x1.009f00p-1 0x1.534626p+0 -0x1.76b5f2p-1 0x1.66df72p-1",
    ("uniform", 0, "layer.weight", 0): "-0x1.509152p-4 -0x1.05d47ap+0 -0x1.66c1fcp-1 -0x1.bd3dc2p-3",
}


@pytest.mark.parametrize(("law", "seed", "name", "member"), PINNED)
def test_the_stream_is_the_one_that_saved_ensembles_were_made_with(law, seed, name, member):
    """A saved ensemble is a seed: were these numbers to change, every `pep.json` would mean another ensemble."""
    found = draw(Noise(law, antithetic=False, seed=seed), name, member, (4,))
    assert found.tolist() == [float.fromhex(number) for number in PINNED[law, seed, name, member].split()]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("antithetic", [False, True])
@pytest.mark.parametrize("member", [0, 1, 6])
def test_noise_has_mean_zero_and_variance_one(law, antithetic, member):
    """Within five standard errors: of the mean 1/sqrt(n), of the variance sqrt((kurtosis - 1)/n)."""
    sample = draw(Noise(law, antithetic, seed=3), member=member).double()
    kurtosis = {"gaussian": 3.0, "uniform": 1.8}[law]
    assert abs(float(sample.mean())) < 5 / math.sqrt(COUNT)
    assert abs(float(sample.square().mean()) - 1) < 5 * math.sqrt((kurtosis - 1) / COUNT)


@pytest.mark.parametrize(
    ("law", "distribution"),
    [("gaussian", stats.norm()), ("uniform", stats.uniform(-math.sqrt(3), 2 * math.sqrt(3)))],
)
@pytest.mark.parametrize("member", [0, 1])
def test_noise_follows_its_law(law, distribution, member):
    """Kolmogorov and Smirnov at a level of one in a thousand; the seed is fixed, so that the outcome is too."""
    sample = draw(Noise(law, seed=5), member=member).numpy()
    assert stats.kstest(sample, distribution.cdf).pvalue > 1e-3


def test_the_tails_of_the_gaussian_are_there():
    """Beyond 3 lie 0.27 % of a normal sample, within five standard errors of that count."""
    share = 2 * stats.norm.sf(3)
    found = int((draw(Noise(seed=1)).abs() > 3).sum())
    assert abs(found - COUNT * share) < 5 * math.sqrt(COUNT * share)


PAIRS = {
    "members": (draw(member=0), draw(member=2)),
    "members without pairs": (
        draw(Noise(antithetic=False), member=0),
        draw(Noise(antithetic=False), member=1),
    ),
    "seeds": (draw(Noise(seed=0)), draw(Noise(seed=1))),
    "names": (draw(name="a.weight"), draw(name="b.weight")),
    "a number and the next": (draw()[:-1], draw()[1:]),
    "a number and the next but one": (draw()[:-2], draw()[2:]),
    "a number and the same of the next four": (draw()[:-4], draw()[4:]),
    "seed and member": (draw(Noise(seed=0), member=2), draw(Noise(seed=1), member=0)),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_noise_is_independent_between(pair):
    """Correlations of the values and of their squares within five standard errors, 1/sqrt(n), of zero."""
    first, second = (sample.double().numpy() for sample in PAIRS[pair])
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(COUNT)
    assert abs(np.corrcoef(first**2, second**2)[0, 1]) < 5 / math.sqrt(COUNT)


@given(
    law=st.sampled_from(sorted(LAWS)),
    seed=st.integers(-(2**70), 2**70),
    pair=st.integers(0, 2**31),
    name=st.text(max_size=20),
)
def test_antithetic_pairs_sum_to_exactly_zero(law, seed, pair, name):
    noise = Noise(law, antithetic=True, seed=seed)
    first, second = (draw(noise, name, member, (3, 7)) for member in (2 * pair, 2 * pair + 1))
    assert torch.equal(first + second, torch.zeros(3, 7))
    assert bool(first.any())


def test_the_first_of_a_pair_is_the_member_without_pairs():
    paired, single = Noise(antithetic=True), Noise(antithetic=False)
    for pair in range(3):
        assert torch.equal(draw(paired, member=2 * pair), draw(single, member=pair))


def test_a_large_parameter_is_drawn_in_several_chunks_without_a_seam():
    """Around the ends of the chunks of 2^15 counters, four numbers each."""
    noise, chunk = Noise("uniform", antithetic=False, seed=7), 4 * 2**15
    found = draw(noise, "a.weight", 3, (2 * chunk + 9,))
    key = struct.unpack("<2I", hashlib.sha256(b"peppermill noise 1\n7\na.weight").digest()[:8])
    for counter in (0, 2**15 - 1, 2**15, 2**16 - 1, 2**16, 2**16 + 1):
        expected = [math.sqrt(3) * (2 * (word + 0.5) / 2**32 - 1) for word in plain_philox((counter, 0, 3, 0), key)]
        np.testing.assert_allclose(found[4 * counter : 4 * counter + 4].double().numpy(), expected, rtol=2**-23)
    assert len(found) == 2 * chunk + 9


def test_arrays_that_are_drawn_together_have_the_noise_that_each_has_alone():
    """Sizes that do not fill whole counters, one beyond a chunk, an empty one, a single number, another device."""
    shapes = {"a": (3,), "b": (4, 5), "large": (2**17 + 5,), "c": (1, 7), "empty": (0,), "scalar": (), "d": (2**16,)}
    like = {name: torch.empty(shape) for name, shape in shapes.items()} | {"meta": torch.empty(6, device="meta")}
    noise = Noise(seed=5, scales=(("b", (2.0,)), ("c", (0.5,))))
    for member in (2, 3):
        together = dict(noise.direction(member, like))
        assert list(together) == list(like)
        for name, value in like.items():
            alone = noise.draw(name, member, value)
            assert together[name].device == value.device
            assert together[name].shape == value.shape
            assert value.is_meta or torch.equal(together[name], alone)


def test_a_number_depends_on_its_position_and_not_on_the_shape():
    assert torch.equal(draw(shape=(4, 6)).flatten(), draw(shape=(100,))[:24])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_noise_is_float32_whatever_the_weights_are(dtype):
    found = Noise().draw("w", 0, torch.empty(5, dtype=dtype))
    assert found.dtype == torch.float32
    assert torch.equal(found, draw(name="w", shape=(5,)))


def test_a_parameter_without_numbers_gets_none():
    assert draw(shape=(0, 3)).shape == (0, 3)


def test_no_global_generator_is_touched():
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    draw(Noise("uniform"), member=5)
    draw(Noise("gaussian"), member=4)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert random.getstate() == before[2]


def test_the_global_generators_do_not_matter():
    first = draw()
    torch.manual_seed(99)
    assert torch.equal(draw(), first)


@pytest.mark.parametrize("factors", [(0.5,), (0.0, 1.0, 2.0)])
def test_an_array_can_have_noise_of_its_own_size(factors):
    plain, scaled = (draw(Noise(scales=scales), shape=(3, 4, 2)) for scales in ((), (("layer.weight", factors),)))
    for k in range(3):
        assert torch.equal(scaled[k], factors[k % len(factors)] * plain[k])
    other = Noise(scales=(("another.weight", factors),))
    assert torch.equal(draw(other, shape=(3, 4, 2)), plain)


def test_members_can_be_chosen_from_a_pool_of_draws():
    chosen = Noise(draws=(5, 2, 2))
    for member, number in enumerate(chosen.draws):
        assert torch.equal(draw(chosen, member=member), draw(member=number))


def test_refuses_a_law_that_it_does_not_know():
    with pytest.raises(ValueError, match="`noise='cauchy'` is unknown: choose one of gaussian, uniform"):
        Noise("cauchy")


@pytest.mark.parametrize("seed", [0.5, "0", None, np.int64(3)])
def test_refuses_a_seed_that_is_not_a_whole_number(seed):
    with pytest.raises(TypeError, match=r"`seed=.*` must be a whole number, an `int`"):
        Noise(seed=seed)


def test_refuses_pairs_that_are_neither_yes_nor_no():
    with pytest.raises(TypeError, match="`antithetic='no'` must be True or False"):
        Noise(antithetic="no")


@CUDA
@pytest.mark.parametrize("law", LAWS)
def test_a_gpu_draws_the_same_numbers(law):
    here = draw(Noise(law), member=3)
    there = Noise(law).draw("layer.weight", 3, torch.empty(COUNT, device="cuda"))
    assert there.device.type == "cuda"
    assert torch.equal(there.cpu(), here)
