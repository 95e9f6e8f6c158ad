from __future__ import annotations

import pytest
import torch
from torch import nn

from peppermill.parameters import names, rule_name, select


def small_cnn():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Conv1d(2, 2, 1), nn.GroupNorm(1, 2), nn.Linear(4, 3))


def matrix_norm():
    """A LayerNorm over two dimensions has a weight with two dimensions: a norm layer all the same."""
    return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm((4, 4)), nn.Linear(4, 2))


class ScaledLayer(nn.Module):
    """Parameters of one dimension that are no biases: the slope of a PReLU and a layer scale."""

    def __init__(self):
        super().__init__()
        self.dense, self.slope = nn.Linear(4, 4), nn.PReLU(4)
        self.gamma = nn.Parameter(torch.ones(4))


class RMSNorm2d(nn.Module):
    """A norm layer that torch does not know, recognized by its name."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 4, 1, 1))


def foreign_norm():
    return nn.Sequential(nn.Conv2d(1, 4, 3), RMSNorm2d())


class VisionTransformer(nn.Module):
    """The parameters of a small vision transformer under their usual names."""

    def __init__(self):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 8))
        self.pos_embed = nn.Parameter(torch.zeros(1, 5, 8))
        self.patches = nn.Conv2d(3, 8, 4, stride=4)
        self.attention = nn.MultiheadAttention(8, 2, add_bias_kv=True)
        self.relative_position_bias_table = nn.Parameter(torch.zeros(9, 2))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)


class Language(nn.Module):
    """Words in, a recurrent layer, classes out."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.bags = nn.EmbeddingBag(7, 4)
        self.recurrence = nn.LSTM(4, 3)
        self.head = nn.Linear(3, 2)


class TiedLanguage(nn.Module):
    """The output layer shares the matrix of the embedding, so that the matrix multiplies activations after all."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7)
        self.head.weight = self.words.weight


@pytest.mark.parametrize(
    ("build", "rule", "expected"),
    [
        (small_cnn, "kernels", ["0.weight", "2.weight", "4.weight"]),
        (small_cnn, "conv", ["0.weight", "2.weight"]),
        (small_cnn, "last_layer", ["4.weight"]),
        (
            small_cnn,
            "all",
            [f"{k}.{kind}" for k in range(5) for kind in ("weight", "bias")],
        ),
        (matrix_norm, "kernels", ["0.weight", "2.weight"]),
        (ScaledLayer, "kernels", ["dense.weight"]),
        (foreign_norm, "kernels", ["0.weight"]),
        (foreign_norm, "conv", ["0.weight"]),
        (
            VisionTransformer,
            "kernels",
            ["patches.weight", "attention.in_proj_weight", "attention.out_proj.weight", "head.weight"],
        ),
        (VisionTransformer, "conv", ["patches.weight"]),
        (Language, "kernels", ["recurrence.weight_ih_l0", "recurrence.weight_hh_l0", "head.weight"]),
        (Language, "last_layer", ["head.weight"]),
        (TiedLanguage, "kernels", ["words.weight"]),
        (TiedLanguage, "last_layer", ["words.weight"]),
        (lambda: nn.ConvTranspose2d(2, 2, 3), "conv", ["weight"]),
        (lambda: nn.Bilinear(2, 2, 2), "kernels", ["weight"]),
    ],
)
def test_a_rule_selects_what_it_says(build, rule, expected):
    assert list(select(build(), rule)) == expected


def test_buffers_are_never_selected():
    model = small_cnn()
    selected = select(model, "all")
    assert {name for name, _ in model.named_buffers()} == {
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    }
    assert not any("running" in name or "tracked" in name for name in selected)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (r"^0\.", ["0.weight", "0.bias"]),
        (r"bias", ["0.bias", "1.bias", "2.bias", "3.bias", "4.bias"]),  # asked for by name
        (r"(1|3)\.weight", ["1.weight", "3.weight"]),  # norm layers too
        (r"4\.weight$|0\.bias", ["0.bias", "4.weight"]),  # in the network's order
    ],
)
def test_a_regular_expression_selects_the_names_that_it_finds(expression, expected):
    assert list(select(small_cnn(), expression)) == expected


@pytest.mark.parametrize("expression", [r"words", r"head\.weight"])
def test_a_regular_expression_finds_a_tied_parameter_by_any_of_its_names(expression):
    assert list(select(TiedLanguage(), expression)) == ["words.weight"]


def test_a_function_selects_by_name_and_value():
    model = small_cnn()
    selected = select(model, lambda name, value: name.endswith("weight") and value.ndim == 4)
    assert list(selected) == ["0.weight"]
    paper = select(model, lambda name, value: value.ndim > 1 and len(value) > 2)
    assert list(paper) == ["4.weight"]


def test_tied_parameters_are_one(tied):
    assert list(select(tied, "kernels")) == ["encoder.weight", "head.weight"]
    assert list(select(tied, "all")) == ["encoder.weight", "encoder.bias", "decoder.bias", "head.weight", "head.bias"]


def test_what_is_selected_is_the_networks_own_memory_without_gradient(mlp):
    selected = select(mlp, "kernels")
    assert selected["0.weight"].data_ptr() == mlp[0].weight.data_ptr()
    assert not any(value.requires_grad for value in selected.values())
    assert mlp[0].weight.requires_grad


def test_frozen_parameters_are_selected_like_others(mlp):
    mlp[0].weight.requires_grad_(False)
    assert list(select(mlp, "kernels")) == ["0.weight", "2.weight"]


def test_integer_parameters_are_no_candidates():
    model = nn.Linear(2, 2)
    model.codes = nn.Parameter(torch.zeros(2, 2, dtype=torch.int64), requires_grad=False)
    assert list(select(model, "all")) == ["weight", "bias"]
    assert names(model) == ["weight", "bias"]


def test_selecting_nothing_says_what_would_work(mlp):
    with pytest.raises(ValueError) as error:
        select(mlp, "conv")
    text = str(error.value)
    assert "`parameters='conv'` selects nothing in this Sequential, so there is nothing to perturb" in text
    assert '"kernels" (2 arrays), "last_layer" (1 arrays), "all" (4 arrays)' in text
    assert "names such as 0.weight, 0.bias, 2.weight" in text
    assert '"conv"' not in text


def test_selecting_nothing_by_expression_or_function_is_an_error_too(mlp):
    with pytest.raises(ValueError, match="`parameters='attention'` selects nothing"):
        select(mlp, "attention")
    with pytest.raises(
        ValueError, match=r"`parameters='function .*nothing_at_all'` selects nothing in this Sequential"
    ):
        select(mlp, nothing_at_all)


def nothing_at_all(name, value):
    return False


def test_a_network_without_parameters_is_told_so():
    with pytest.raises(ValueError, match="in this ReLU: it has no floating-point parameter at all"):
        select(nn.ReLU(), "kernels")


def test_a_broken_regular_expression_is_an_error_that_names_the_rules(mlp):
    with pytest.raises(
        ValueError,
        match=r"`parameters='\(weight'` is neither one of conv, kernels, last_layer, lora, all nor a regular",
    ):
        select(mlp, "(weight")


@pytest.mark.parametrize("parameters", [None, 3, ["0.weight"]])
def test_a_selection_of_another_type_is_refused(mlp, parameters):
    with pytest.raises(TypeError, match=rf"must be a string or a function, not {type(parameters).__name__}"):
        select(mlp, parameters)


def test_a_selection_is_written_down_by_its_name():
    assert rule_name("kernels") == "kernels"
    assert rule_name(r"head\.weight") == r"head\.weight"
    assert rule_name(nothing_at_all) == "function nothing_at_all"
