# %% [markdown]
# # LoRA on a small BERT
#
# `parameters="lora"` puts noise on the adapter matrices of a PEFT model and leaves its base as it is. The ensemble
# then costs the memory of a few adapters. Here the base is a tiny BERT with random weights, and the task is made up:
# does a sequence contain more small than large tokens?

# %%
import torch
from matplotlib import pyplot
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertForSequenceClassification

import peppermill as pm


def sequences(count, seed):
    """Batches as a data collator makes them; one label in eight is wrong, so that certainty is never right."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(40, (count, 12), generator=generator)
    labels = ((tokens < 20).float().mean(dim=1) > 0.5).long()
    flipped = torch.rand(count, generator=generator) < 0.125
    return {"input_ids": tokens, "labels": torch.where(flipped, 1 - labels, labels)}


torch.manual_seed(0)
config = BertConfig(vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
base = BertForSequenceClassification(config)
model = get_peft_model(base, LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"]))
training = sequences(200, seed=1)
optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=0.02)
for _ in range(60):
    optimizer.zero_grad()
    model(**training).loss.backward()
    optimizer.step()
model.eval()

# %% [markdown]
# Noise on the adapters, with a temperature. Three one-pass rivals: the network itself, and the network with its own
# temperature.

# %%
validation, test = [sequences(400, seed=2)], [sequences(600, seed=3)]
pep = pm.fit(model, validation, parameters="lora", size=6, temperature=True)
tempered = pm.fit_temperature(model, validation)
print(f"sigma = {pep.sigma:.3f}, T = {pep.temperature:.2f}; the network alone: T = {tempered.temperature:.2f}")

# %%
methods = {"network": model, "temperature": tempered, "noise on LoRA, T": pep}
scores = {name: pm.evaluate(predictor, test).nll for name, predictor in methods.items()}
figure, axis = pyplot.subplots(figsize=(5, 3))
for name, nll in scores.items():
    print(f"{name:18} NLL {nll.value:.4f} [{nll.lower:.4f}, {nll.upper:.4f}]")
    axis.errorbar(name, nll.value, [[nll.value - nll.lower], [nll.upper - nll.value]], marker="o", capsize=4)
axis.set_ylabel("NLL on test sequences")
