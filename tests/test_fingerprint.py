"""What identifies a network's weights, and how a difference is named."""

import copy
import hashlib
import struct

import pytest
import torch
from torch import nn

from peppermill.fingerprint import difference, fingerprint


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
    assert found == "its parameters have other values: it was trained further, or from another seed"


@pytest.mark.parametrize("name", ["1.running_mean", "1.running_var", "1.num_batches_tracked"])
def test_other_batch_norm_statistics_are_told_from_other_parameters(network, name):
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
