"""Programs of `torch.export` in place of a network."""

import pytest
import torch
from networks import mlp
from torch import nn

import peppermill as pm
from peppermill.parameters import select


@pytest.fixture
def exported(cnn):
    batch = torch.export.Dim("batch", min=1, max=1000)
    return lambda model=cnn: torch.export.export(
        model, (torch.zeros(2, 1, 6, 6),), dynamic_shapes=({0: batch},)
    ).module()


@pytest.mark.filterwarnings("ignore:noise does not help:peppermill.PepWarning")
def test_fit_takes_an_exported_graph_as_it_is(exported, cnn):
    """The same sigma and the same likelihoods as of the network from which it was exported."""
    generator = torch.Generator().manual_seed(3)
    data = torch.randn(50, 1, 6, 6, generator=generator), torch.randint(3, (50,), generator=generator)
    settings = {"size": 4, "search": pm.Golden(iterations=2, upper=0.2)}
    a, b = (pm.fit(model, data, **settings).search for model in (exported(), cnn))
    assert [e.sigma for e in a.evaluations] == [e.sigma for e in b.evaluations]
    expected = [e.log_likelihood for e in b.evaluations]
    assert [e.log_likelihood for e in a.evaluations] == pytest.approx(expected, rel=1e-6)
    assert len(set(expected)) == len(expected)


def test_a_graph_exported_in_training_mode_is_refused(exported, cnn):
    data = torch.zeros(5, 1, 6, 6), torch.zeros(5, dtype=torch.long)
    with pytest.raises(ValueError, match=r"in training mode: call `model\.eval\(\)` before `torch\.export\.export`"):
        pm.fit(exported(cnn.train()), data)


def test_an_embedding_in_an_exported_graph_is_known_by_its_name():
    """Types are lost in the export."""
    model = nn.Module()
    model.word_embeddings, model.patch_embed = nn.Module(), nn.Module()
    model.patch_embed.projection = nn.Module()
    model.word_embeddings.weight = nn.Parameter(torch.zeros(7, 4))
    model.patch_embed.projection.weight = nn.Parameter(torch.zeros(4, 4))
    assert list(select(model, "kernels")) == ["patch_embed.projection.weight"]


@pytest.mark.filterwarnings("ignore::peppermill.PepWarning")
@pytest.mark.parametrize("run", [lambda m, d: pm.fit(m, d, size=2), pm.evaluate], ids=["fit", "evaluate"])
def test_a_graph_exported_for_one_size_of_batches_says_so_with_the_cure(run):
    """It takes 40 items in batches of 8; of 37, the last batch has 5."""
    inputs, labels = torch.randn(40, 6), torch.arange(40) % 3
    model = torch.export.export(mlp(), (torch.zeros(8, 6),)).module()
    run(model, list(zip(inputs.split(8), labels.split(8), strict=True)))
    match = r"does not take these inputs \(.*8.*\): .*`batch_size`.*`dynamic_shapes=\(\{0: torch\.export\.Dim"
    for data in ((inputs, labels), list(zip(inputs[:37].split(8), labels[:37].split(8), strict=True))):
        with pytest.raises(ValueError, match=match):
            run(model, data)
