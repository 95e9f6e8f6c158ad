"""`hf:REPO_OR_FOLDER`, and transformers models in Python."""

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
import transformers
from torch.utils.data import DataLoader

import peppermill as pm
from peppermill.parameters import select
from peppermill.sources import source_from

from . import tiny
from .pictures import folder_of

pytestmark = pytest.mark.slow  # the library takes seconds to import

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = tmp_path_factory.mktemp("hub")
    for build in (tiny.vit, tiny.resnet, tiny.bert):
        (made / build.__name__).mkdir()
        build(made / build.__name__)
    return made


@pytest.fixture
def bert(folders):
    return source_from(f"hf:{folders}/bert")


@pytest.fixture
def texts(bert):
    """Sixty reviews as dict batches of 16, labels under "labels", as a data collator gives them."""
    generator = np.random.default_rng(0)
    items = [bert.prepare(" ".join(generator.choice(tiny.WORDS[5:], size=generator.integers(1, 9)))) for _ in range(60)]
    inputs = {key: torch.stack([item[key] for item in items]) for key in items[0]}
    labels = tiny.overconfident_labels(bert.model(**inputs).logits)
    return [
        {**{key: value[k : k + 16] for key, value in inputs.items()}, "labels": labels[k : k + 16]}
        for k in range(0, 60, 16)
    ]


def test_a_text_classifier_comes_with_its_tokenizer_and_the_names_of_its_classes(bert):
    assert isinstance(bert.model, transformers.BertForSequenceClassification)
    assert not bert.model.training
    assert bert.class_names == ("bad", "mixed", "good")
    found = bert.prepare("A fine unheard film")
    # [CLS] a fine [UNK] film [SEP], padded to the 12 positions that the network knows
    assert found["input_ids"].tolist() == [2, 5, 7, 1, 8, 3, 0, 0, 0, 0, 0, 0]
    assert found["attention_mask"].tolist() == [1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0]


def test_padding_does_not_change_what_a_text_classifier_says(bert, folders):
    short = source_from(f"hf:{folders}/bert?length=5").prepare("a fine film")
    assert len(short["input_ids"]) == 5
    a, b = ({key: value[None] for key, value in found.items()} for found in (short, bert.prepare("a fine film")))
    with torch.no_grad():
        torch.testing.assert_close(bert.model(**a).logits, bert.model(**b).logits, atol=1e-5, rtol=1e-5)


def test_an_image_classifier_comes_with_its_image_processor(folders):
    source = source_from(f"hf:{folders}/vit")
    pixels = source.prepare(tiny.picture())
    assert pixels.shape == (3, 16, 16)
    # (200/255 - 0.5) / 0.5 where the picture is red or blue, and -1 where it is not
    assert pixels[:, 8, 2].tolist() == pytest.approx([0.5686, -1, -1], abs=1e-3)
    assert pixels[:, 8, 13].tolist() == pytest.approx([-1, -1, 0.5686], abs=1e-3)
    assert source.model(pixels[None]).logits.shape == (1, 3)


def test_a_folder_without_a_processor_gives_the_network_alone(folders):
    source = source_from(f"hf:{folders}/resnet")
    assert source.prepare is None
    assert source.class_names == ("bad", "mixed", "good")


def test_a_text_classifier_without_its_tokenizer_is_not_given_one_that_knows_no_word(folders, tmp_path):
    """The library makes one up, for which every word is [UNK]; before version 5 it raises a TypeError."""
    for name in ("config.json", "model.safetensors"):
        shutil.copy(folders / "bert" / name, tmp_path)
    with suppress(TypeError):
        assert transformers.AutoTokenizer.from_pretrained(tmp_path)("a fine film")["input_ids"] == [2, 1, 1, 1, 3]
    assert source_from(f"hf:{tmp_path}").prepare is None


def test_texts_for_an_image_network_and_pictures_for_a_text_network_are_told_apart(folders, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    datasets.Dataset.from_dict({"text": ["a fine film"] * 6, "label": [0, 1, 2] * 2}).save_to_disk("reviews")
    folder_of(tmp_path / "val", {"bad": 2, "mixed": 2, "good": 2})
    bare = "torchvision:squeezenet1_1?pretrained=false&classes=3"
    for model, data, match in (
        (f"hf:{folders}/vit", "hf:reviews", "hf:reviews holds texts, and the model's preparation does not take item 0"),
        (bare, "hf:reviews", "hf:reviews holds texts, and the model's preparation does not take item 0"),
        (f"hf:{folders}/bert", "imagefolder:val", "holds pictures, and the model's preparation does not take bad/0."),
        (f"hf:{folders}/resnet", "hf:reviews", "hf:reviews holds texts, and this model brings no tokenizer"),
    ):
        found = tiny.run("fit", model, data)
        [message] = [line for line in found.stderr.splitlines() if line.startswith("error: ")]
        assert found.exit_code == 2
        assert match in message


@pytest.mark.parametrize(
    ("name", "rule", "count"),
    [
        # each of 2 layers: query, key, value, output, two of the perceptron; the pooler (BERT), the classifier
        ("bert", "kernels", 2 * 6 + 2),
        ("bert", "last_layer", 1),
        ("vit", "kernels", 2 * 6 + 2),  # the patches and the classifier
        ("vit", "conv", 1),
        # the stem, one block of three convolutions in each of two stages, a shortcut in that which halves the image
        ("resnet", "conv", 1 + 3 + 3 + 1),
        ("resnet", "kernels", 1 + 3 + 3 + 1 + 1),
    ],
)
def test_what_is_perturbed_is_counted(folders, name, rule, count):
    selected = select(source_from(f"hf:{folders}/{name}").model, rule)
    assert len(selected) == count
    assert not any("norm" in key or "embeddings.word" in key or "bias" in key for key in selected)


def test_fit_takes_a_transformers_model_with_dict_batches_as_they_are(bert, texts, tmp_path):
    pep = pm.fit(bert.model, texts, size=4)
    assert pep.sigma > 0
    assert pm.compare(bert.model, pep, texts).nll.value < 0
    pep.save(tmp_path / "pep.json")
    inputs = {key: value for key, value in texts[0].items() if key != "labels"}
    torch.testing.assert_close(pm.load(tmp_path / "pep.json", bert.model)(**inputs), pep(**inputs))


def test_a_loader_with_a_data_collator_gives_the_same(bert, texts):
    rows = [{key: value[k] for key, value in batch.items()} for batch in texts for k in range(len(batch["labels"]))]
    loader = DataLoader(rows, batch_size=7, collate_fn=transformers.default_data_collator)
    a, b = (pm.sweep_sigma(bert.model, data, sigmas=[0.01, 0.1], size=2).points for data in (texts, loader))
    assert [point.log_likelihood for point in a] == pytest.approx([point.log_likelihood for point in b], rel=1e-6)


def test_a_data_set_of_the_same_makers_gives_the_same(bert, texts):
    rows = [{key: value[k] for key, value in batch.items()} for batch in texts for k in range(len(batch["labels"]))]
    table = datasets.Dataset.from_list([{key: value.tolist() for key, value in row.items()} for row in rows])
    a, b = (pm.sweep_sigma(bert.model, data, sigmas=[0.1], size=2) for data in (texts, table.with_format("torch")))
    assert a.points[1].log_likelihood == pytest.approx(b.points[1].log_likelihood, rel=1e-6)


def test_the_command_line_fits_and_evaluates_a_folder(folders, texts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inputs = {f"x.{key}": torch.cat([batch[key] for batch in texts]).numpy() for key in texts[0] if key != "labels"}
    np.savez("reviews.npz", **inputs, y=torch.cat([batch["labels"] for batch in texts]).numpy())
    model, data = f"hf:{folders}/bert", "npz:reviews.npz"
    fitted = tiny.run("fit", model, data, "--size", "4")
    assert fitted.exit_code == 0, fitted.stderr
    scored = tiny.run("evaluate", model, data, "--pep", "pep.json")
    assert scored.exit_code == 0, scored.stderr
    expected = pm.fit(source_from(model).model, texts, size=4)
    assert f"sigma = {expected.sigma:.4g}, found with" in fitted.stdout
    assert f"{pm.evaluate(expected, texts).nll.value:.4f}" in scored.stdout


def test_the_librarys_own_bars_are_left_out_where_there_is_no_terminal(folders, texts, tmp_path):
    """In a process of its own: the library decides on its bars when it is imported."""
    np.savez(tmp_path / "reviews.npz", **{f"x.{key}": value.numpy() for key, value in texts[0].items()}, y=[0] * 16)
    command = [sys.executable, "-m", "peppermill", "predict", f"hf:{folders}/bert", "npz:reviews.npz"]
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.path.insert(0, {str(TESTS)!r})\nimport conftest\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{TESTS.parent}"}
    environment.pop("HF_HUB_DISABLE_PROGRESS_BARS", None)  # the command line sets it, and may have done so here
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


def test_without_pretrained_weights_the_architecture_is_made(folders):
    made = source_from(f"hf:{folders}/vit", pretrained=False)
    saved = source_from(f"hf:{folders}/vit")
    assert [v.shape for v in made.model.parameters()] == [v.shape for v in saved.model.parameters()]
    assert not torch.equal(
        next(iter(select(made.model, "conv").values())), next(iter(select(saved.model, "conv").values()))
    )


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("hf:nobody/nothing", r"hf:nobody/nothing could not be loaded \(.*\): name a folder that .* or a repository"),
        ("hf:{}/birt", r"hf:.*/birt could not be loaded \(.*\): did you mean hf:.*/bert\? Or name a folder that"),
        ("hf:no_folder", r"hf:no_folder could not be loaded"),
        ("hf:{}", r"could not be loaded \(Unrecognized model .*: expected the folder of a classifier"),
        (
            "hf:{}/bert?lenght=3",
            r"the option .lenght=3. is unknown or empty: after `\?` may stand pretrained=\.\.\., rev",
        ),
        ("hf:{}/bert?length=long", r"`length=long` must be a whole number, at least 1"),
        ("hf:{}/bert?pretrained=maybe", r"`pretrained=maybe` must be `pretrained=true` or"),
    ],
)
def test_what_cannot_be_had_gets_one_clear_line(folders, text, match):
    with pytest.raises((OSError, ValueError), match=match) as error:
        source_from(text.format(folders))
    assert "\n" not in str(error.value)


def test_another_kind_of_network_is_refused(tmp_path):
    config = transformers.BertConfig(
        vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4
    )
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"is a BertForMaskedLM: expected an image classifier .* or a text classifier"):
        source_from(f"hf:{tmp_path}")
