"""LoRA: noise on the adapter matrices of a PEFT model, in Python and from an adapter folder."""

from __future__ import annotations

import networks
import pytest
import torch
from typer.testing import CliRunner

import peppermill as pm
from peppermill.cli.app import app
from peppermill.parameters import select
from peppermill.sources import source_from

from . import tiny

pytestmark = pytest.mark.slow  # the libraries take seconds to import
peft = pytest.importorskip("peft", exc_type=ImportError)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """A folder with an adapter for two layers of a small random BERT, and with a head of its own for four classes."""
    import transformers

    base, folder = tmp_path_factory.mktemp("base"), tmp_path_factory.mktemp("adapter")
    tiny.bert(base)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            base, num_labels=4, ignore_mismatched_sizes=True
        )
        config = peft.LoraConfig(r=2, task_type="SEQ_CLS", target_modules=["query", "value"])
        tuned = peft.get_peft_model(model, config)
        with torch.no_grad():
            for name, value in tuned.named_parameters():
                if "lora_B" in name:  # zero before training
                    value.normal_(std=0.3)
    tuned.save_pretrained(folder)
    return folder, tuned.eval()


def texts(count=40):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(5, 10, (count, 8), generator=generator)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def test_noise_is_on_the_adapter_alone(adapter):
    _, tuned = adapter
    selected = select(tuned, "lora")
    assert len(selected) == 2 * 2 * 2, "A and B of query and value in two layers"
    assert {name.split(".")[-3] for name in selected} == {"lora_A", "lora_B"}
    before, inputs = networks.snapshot(tuned), texts()
    pep = pm.PepEnsemble.at_sigma(tuned, 0.3, parameters="lora", size=4)
    by_hand = []
    for member in pep.perturbation.members(0.3):
        outputs = torch.func.functional_call(tuned, dict(member), kwargs=inputs)
        by_hand.append(outputs.logits.detach().softmax(dim=1))
    torch.testing.assert_close(pep.predict_proba(**inputs), torch.stack(by_hand).mean(dim=0), rtol=1e-4, atol=1e-6)
    networks.assert_untouched(tuned, before)


def test_sigma_of_an_adapter_is_found_and_kept(adapter, tmp_path):
    _, tuned = adapter
    inputs = texts()
    labels = tiny.overconfident_labels(tuned(**inputs).logits)
    pep = pm.fit(tuned, (inputs, labels), parameters="lora", size=4, search=pm.Golden(iterations=2))
    pep.save(tmp_path / "pep.json")
    again = pm.load(tmp_path / "pep.json", tuned)
    assert again.recipe.rule == "lora"
    torch.testing.assert_close(again(**inputs), pep(**inputs))


def test_a_folder_with_an_adapter_is_a_model(adapter):
    folder, tuned = adapter
    found = source_from(f"hf:{folder}")
    assert not found.model.training
    assert found.prepare("a fine film")["input_ids"][1:4].tolist() == [5, 7, 8]
    inputs = texts()
    torch.testing.assert_close(found.model(**inputs).logits, tuned(**inputs).logits)
    assert len(select(found.model, "lora")) == 8


def test_a_network_without_adapters_says_what_it_has(mlp):
    with pytest.raises(ValueError, match=r'`parameters=\'lora\'` selects nothing .* "kernels" \(2 arrays\)'):
        select(mlp, "lora")


def test_a_damaged_adapter_is_one_line(adapter, tmp_path):
    (tmp_path / "adapter_config.json").write_text((adapter[0] / "adapter_config.json").read_text())
    with pytest.raises(
        OSError, match=r"hf:.* could not be loaded .*expected a folder that `save_pretrained` of a PEFT"
    ):
        source_from(f"hf:{tmp_path}")


def test_the_command_line_takes_an_adapter_and_prints_what_vllm_takes(adapter, tmp_path, monkeypatch):
    """T of the network alone divides its logits there, as `logit_sigma` of the pooler."""
    folder, tuned = adapter
    monkeypatch.chdir(tmp_path)
    inputs = texts(60)
    labels = tiny.overconfident_labels(tuned(**inputs).logits)
    (tmp_path / "my_data.py").write_text("import torch\n\n\ndef data():\n    return torch.load('data.pt')\n")
    torch.save((inputs, labels), tmp_path / "data.pt")
    monkeypatch.syspath_prepend(tmp_path)
    command = ["fit", f"hf:{folder}", "python:my_data:data", "--parameters", "lora", "--temperature", "--size", "2"]
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 0, found.output
    alone = pm.fit_temperature(tuned, (inputs, labels)).temperature
    assert f"--pooler-config '{{\"logit_sigma\": {alone:.4g}}}'" in found.output
    assert pm.load("pep.json", source_from(f"hf:{folder}").model).recipe.rule == "lora"
