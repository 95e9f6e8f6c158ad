from __future__ import annotations

import copy

import networks
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from peppermill.data import Batches, call, output_tensor
from peppermill.engines import loop
from peppermill.engines.choose import engine_of
from peppermill.engines.kept import Kept
from peppermill.engines.loop import Loop, averaged, member_predictions, refuse_training_mode, run_members
from peppermill.engines.members import members_of
from peppermill.likelihood import Bernoulli, Categorical, Gaussian
from peppermill.noise import Noise
from peppermill.parameters import select
from peppermill.perturbation import Perturbation


def perturbation_of(model, parameters="kernels", size=4, **noise):
    return Perturbation(select(model, parameters), Noise(**noise), size)


def run(model, data, sigma, likelihood=None, tick=lambda items: None, batch_size=500, kept_bytes=2**30, **options):
    batches = Batches(data, model, batch_size=batch_size, kept_bytes=kept_bytes)
    return run_members(model, perturbation_of(model, **options), sigma, batches, likelihood or Categorical(), tick)


@torch.no_grad()
def copied_members(model, perturbation, sigma):
    """The slow and obvious way: a deep copy of the network for each member, with noise added to its weights."""
    for j in range(perturbation.size):
        member = copy.deepcopy(model)
        for name, value in member.named_parameters():
            if name in perturbation.center:
                value += sigma * perturbation.noise.draw(name, j, value).to(value.dtype)
        yield member


def network_and_data(kind, dtype):
    """Every kind of network, with 11 items in the form that it takes."""
    x, y = networks.items(11, dtype=dtype)
    seeded = networks.seeded
    return {
        "dense": lambda: (networks.mlp(dtype=dtype), x),
        "convolutional": lambda: (networks.cnn(dtype=dtype), networks.items(11, (1, 6, 6), dtype=dtype)[0]),
        "tuple inputs": lambda: (seeded(networks.TwoInputs, dtype=dtype), (x, x.square())),
        "dict inputs": lambda: (seeded(networks.TwoInputs, dtype=dtype), {"right": x.square(), "left": x}),
        "tied weights": lambda: (seeded(networks.Tied, dtype=dtype), x),
        "object with logits": lambda: (seeded(lambda: networks.Wrapped("object"), dtype=dtype), x),
        "dict with logits": lambda: (seeded(lambda: networks.Wrapped("dict"), dtype=dtype), x),
        "tuple with logits": lambda: (seeded(lambda: networks.Wrapped("tuple"), dtype=dtype), x),
    }[kind](), y


KINDS = [
    "dense",
    "convolutional",
    "tuple inputs",
    "dict inputs",
    "tied weights",
    "object with logits",
    "dict with logits",
    "tuple with logits",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parameters", ["kernels", "all"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_pass_of_all_members_equals_a_loop_over_copies(kind, parameters, dtype):
    (model, inputs), labels = network_and_data(kind, dtype)
    found = run(model, (inputs, labels), 0.3, parameters=parameters, batch_size=4, seed=5)
    members = copied_members(model, perturbation_of(model, parameters, seed=5), 0.3)
    probabilities = torch.stack([output_tensor(call(m, inputs)).detach().double().softmax(dim=1) for m in members])
    # one rounding of weights and activations in each type, a few layers deep
    tolerance = {"rtol": 1e-4, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-14}
    torch.testing.assert_close(found.averaged.exp(), probabilities.mean(dim=0), **tolerance)
    of_label = probabilities[:, torch.arange(11), labels]
    torch.testing.assert_close(found.member_log_likelihoods.exp(), of_label, **tolerance)
    assert torch.equal(found.labels, labels)


@pytest.mark.parametrize("kind", KINDS)
def test_the_predictions_of_one_batch_are_those_of_the_pass(kind):
    (model, inputs), labels = network_and_data(kind, torch.float64)
    args, kwargs = (
        ((), inputs) if isinstance(inputs, dict) else (inputs if isinstance(inputs, tuple) else (inputs,), {})
    )
    members = members_of(model, perturbation_of(model), 0.3)
    found = member_predictions(members, Categorical(), args, kwargs, Loop())
    assert found.shape == (4, 11, 3)
    averaged = run(model, (inputs, labels), 0.3).averaged
    torch.testing.assert_close(found.logsumexp(dim=0) - torch.tensor(4.0).log(), averaged, rtol=1e-7, atol=1e-7)


def test_tied_weights_get_one_noise(tied):
    """Both layers move together: with the noise of `encoder.weight`, and with no other."""
    params = next(iter(perturbation_of(tied).members(0.5)))
    assert list(params) == ["encoder.weight", "head.weight"]
    inputs, _ = networks.items(5)
    encoder, head = params["encoder.weight"], params["head.weight"]
    hidden = nn.functional.linear(inputs, encoder, tied.encoder.bias).tanh()
    hidden = nn.functional.linear(hidden, encoder, tied.decoder.bias).tanh()
    expected = nn.functional.linear(hidden, head, tied.head.bias).log_softmax(dim=1)
    members = members_of(tied, perturbation_of(tied, size=1), 0.5)
    found = member_predictions(members, Categorical(), (inputs,), {}, Loop())
    torch.testing.assert_close(found[0], expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sigma_zero_is_the_network_bit_for_bit(kind, dtype):
    (model, inputs), labels = network_and_data(kind, dtype)
    with torch.no_grad():
        plain = output_tensor(call(model, inputs)).log_softmax(dim=1)
    found = run(model, (inputs, labels), 0.0)
    assert torch.equal(found.averaged, plain.double())
    assert torch.equal(found.member_log_likelihoods, plain.double()[torch.arange(11), labels].expand(4, -1))


@given(
    batch_size=st.integers(1, 25),
    kept_bytes=st.sampled_from([1, 300, 2**30]),
    sigma=st.sampled_from([0.0, 0.1, 1.0]),
    noise=st.sampled_from(["gaussian", "uniform"]),
    antithetic=st.booleans(),
)
def test_batches_and_chunks_do_not_change_the_result(batch_size, kept_bytes, sigma, noise, antithetic):
    """Float64: a few hundred roundings of 1e-16."""
    model, data = networks.cnn(dtype=torch.float64), networks.items(23, (1, 6, 6), dtype=torch.float64)
    options = {"law": noise, "antithetic": antithetic, "size": 3}
    whole = run(model, data, sigma, **options)
    parts = run(model, data, sigma, batch_size=batch_size, kept_bytes=kept_bytes, **options)
    torch.testing.assert_close(parts.averaged, whole.averaged, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(parts.member_log_likelihoods, whole.member_log_likelihoods, rtol=1e-12, atol=1e-13)
    assert torch.equal(parts.labels, whole.labels)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("likelihood", [Categorical(ignored_label=2), Bernoulli(ignored_label=2), Gaussian()])
@given(items=st.integers(1, 30), numbers=st.sampled_from([1, 50, 2**20]), batch_size=st.integers(1, 8))
def test_outputs_that_are_read_together_are_read_as_one_by_one(engine, likelihood, items, numbers, batch_size):
    model = networks.mlp(dtype=torch.float64, classes=1 if isinstance(likelihood, Bernoulli) else 2)
    batches = Batches(networks.items(23, dtype=torch.float64), model, batch_size=batch_size)
    given = (model, perturbation_of(model), 0.3, batches, likelihood, lambda items: None, engine_of(engine))
    found = []
    for limits in ((items, numbers), (1, 1)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "TALLIED_ITEMS", limits[0])
            patch.setattr(loop, "TALLIED_NUMBERS", limits[1])
            found.append(vars(run_members(*given)))
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-13)


def test_batches_that_are_read_together_are_the_network_itself_to_the_last_bit():
    model, (inputs, labels) = networks.mlp(), networks.items(230)
    expected = torch.cat([model(part).log_softmax(dim=1) for part in inputs.split(3)]).detach().double()
    assert torch.equal(run(model, (inputs, labels), 0.0, batch_size=3).averaged, expected)


def test_batches_whose_labels_have_other_shapes_are_read_one_by_one():
    """As a loader gives them that squeezes the last one."""
    model, (inputs, labels) = networks.mlp(dtype=torch.float64, classes=1), networks.items(11, dtype=torch.float64)
    parts = list(zip(inputs.split(4), (labels % 2).split(4), strict=True))
    squeezed = [(x, y.unsqueeze(1)) for x, y in parts[:2]] + parts[2:]
    found = [vars(run(model, batches, 0.1, Bernoulli())) for batches in (squeezed, parts)]
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-13)


@given(order=st.permutations(range(5)))
def test_the_order_of_members_does_not_change_the_result(order):
    model, (inputs, labels) = networks.mlp(dtype=torch.float64), networks.items(dtype=torch.float64)
    perturbation = perturbation_of(model, size=5)
    found = run(model, (inputs, labels), 0.4, size=5)
    total = None
    for j in order:
        outputs = torch.func.functional_call(model, perturbation.member(0.4, j), (inputs,)).detach()
        total = Categorical().accumulate(total, Categorical().predict(outputs))
    torch.testing.assert_close(Categorical().average(total, 5), found.averaged, rtol=1e-12, atol=1e-13)


def test_a_larger_ensemble_begins_with_the_smaller_one(mlp, data):
    small, large = (run(mlp, data, 0.4, size=size) for size in (3, 7))
    assert torch.equal(large.member_log_likelihoods[:3], small.member_log_likelihoods)


def test_a_segmentation_network_has_one_item_for_each_pixel_that_counts():
    model = networks.seeded(lambda: nn.Conv2d(2, 3, 3, padding=1), dtype=torch.float64)
    inputs, _ = networks.items(5, (2, 4, 4), dtype=torch.float64)
    labels = networks.items(80)[1].view(5, 4, 4).clone()
    labels[1, :, 2] = 255
    found = run(model, (inputs, labels), 0.2, Categorical(ignored_label=255), batch_size=2, kept_bytes=1)
    assert found.member_log_likelihoods.shape == (4, 76)
    assert found.averaged.shape == (76, 3)
    members = copied_members(model, perturbation_of(model), 0.2)
    probabilities = torch.stack([m(inputs).detach().softmax(dim=1) for m in members]).mean(dim=0)
    expected = probabilities.movedim(1, -1)[labels != 255]
    torch.testing.assert_close(found.averaged.exp(), expected, rtol=1e-10, atol=1e-14)


def test_a_multi_label_network_has_one_item_for_each_question(mlp):
    inputs, _ = networks.items(6)
    labels = networks.items(18)[1].view(6, 3) % 2
    found = run(mlp, (inputs, labels), 0.2, Bernoulli())
    members = copied_members(mlp, perturbation_of(mlp), 0.2)
    yes = torch.stack([m(inputs).detach().double().sigmoid() for m in members]).mean(dim=0)
    torch.testing.assert_close(found.averaged[:, 1].exp(), yes.flatten(), rtol=1e-5, atol=1e-7)


def test_a_regression_gives_the_mean_and_variance_of_the_mixture():
    model = networks.mlp(classes=2, dtype=torch.float64)
    inputs, _ = networks.items(6, dtype=torch.float64)
    found = run(model, (inputs, inputs[:, 0]), 0.2, Gaussian())
    outputs = torch.stack([m(inputs).detach() for m in copied_members(model, perturbation_of(model), 0.2)])
    mean, variance = (
        outputs[..., 0].mean(dim=0),
        outputs[..., 1].exp().mean(dim=0) + outputs[..., 0].var(0, correction=0),
    )
    torch.testing.assert_close(found.averaged, torch.stack([mean, variance.log()], dim=1), rtol=1e-10, atol=1e-12)


def test_members_that_break_down_leave_a_matrix_that_says_so(mlp, data):
    """exp(1e30) overflows: no exception, no warning, and the search reads it as minus infinity."""
    found = run(mlp, data, 1e38)
    assert not bool(found.member_log_likelihoods.isfinite().all())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_network_with_outputs_that_are_no_numbers_is_refused(mlp, data, bad):
    with torch.no_grad():
        mlp[2].bias[1] = bad
    with pytest.raises(
        ValueError, match="the network itself, without any noise, gives outputs that are NaN or infinite"
    ):
        run(mlp, data, 0.0)


@pytest.mark.parametrize("sigma", [0.0, 0.1])
@pytest.mark.parametrize(
    ("labels", "error", "text"),
    [
        (torch.full((20,), 3), ValueError, "labels run from 3 to 3, but the network has 3 classes"),
        (torch.zeros(20), TypeError, "labels have type torch.float32, but class numbers are integers"),
        (torch.zeros(20, 3).long(), ValueError, r"labels of shape \[20, 3\] do not fit outputs of shape \[20, 3\]"),
        (torch.full((20,), -100), ValueError, "`data` has no item that counts: every label is the ignored one"),
    ],
)
def test_labels_are_checked_at_every_sigma(mlp, data, sigma, labels, error, text):
    with pytest.raises(error, match=text):
        run(mlp, (data[0], labels), sigma)


def test_each_item_is_counted_once_for_each_member(mlp, data):
    seen = []
    run(mlp, data, 0.1, tick=seen.append, batch_size=8)
    assert seen == [8, 8, 4] * 4
    seen.clear()
    run(mlp, data, 0.0, tick=seen.append, batch_size=8)
    assert seen == [8, 8, 4]


def test_no_gradient_is_kept(mlp, data):
    found = run(mlp, data, 0.1)
    assert not found.averaged.requires_grad
    assert not found.member_log_likelihoods.requires_grad


def test_training_mode_is_refused_and_the_part_is_named(cnn, images):
    cnn[1].train()
    for action in (lambda: run(cnn, images, 0.1), lambda: refuse_training_mode(cnn)):
        with pytest.raises(
            ValueError, match=r"its part `1` \(BatchNorm2d\) is in training mode: call `model.eval\(\)`"
        ):
            action()
    cnn.train()
    with pytest.raises(ValueError, match="cannot be used while it is in training mode"):
        refuse_training_mode(cnn)


def test_something_that_is_no_network_has_no_training_mode():
    refuse_training_mode(lambda x: x)


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()])
@pytest.mark.parametrize("calls", [0, 1, 5])
def test_an_exception_in_the_middle_leaves_the_network_untouched(data, error, calls):
    model = networks.Interrupted(networks.mlp(), calls, error).eval()
    before = networks.snapshot(model)
    with pytest.raises(type(error)):
        run(model, data, 0.7, batch_size=8)
    networks.assert_untouched(model, before)


class Given:
    """An engine whose members give these outputs, [m, batch, K]."""

    name, precision, report = "given", None, "given"

    def __init__(self, outputs):
        self.outputs, self.kept = outputs, Kept()

    def groups(self, members, args, kwargs, keep=False):
        yield lambda args, kwargs: self.outputs


@pytest.mark.parametrize("classes", [2, 15, 16, 40])
@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (0, 2, 1), (2, 0, 1)])
def test_a_prediction_does_not_depend_on_how_outputs_lie_in_memory(order, batch, classes, mlp):
    """In 0, 1, 2 they lie as members, items, classes; by the formula, in float64."""
    outputs = torch.randn(10, batch, classes, generator=torch.Generator().manual_seed(0))
    back = [order.index(k) for k in range(3)]
    laid = outputs.permute(order).contiguous().permute(back)
    members = members_of(mlp, perturbation_of(mlp, size=10), 0.1)
    found = member_predictions(members, Categorical(), (), {}, Given(laid))
    expected = outputs.double() - outputs.double().exp().sum(dim=2, keepdim=True).log()
    assert found.shape == outputs.shape
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)
    mean = averaged(Categorical(), found)
    torch.testing.assert_close(mean.double(), expected.exp().mean(dim=0).log(), rtol=0, atol=1e-5)
    assert mean.is_contiguous()
