# %% [markdown]
# # Under corruption
#
# A calibrator is tuned on clean items. What happens when the inputs get worse? The embedded network, a temperature
# and PEP with a temperature, on test images with more and more noise.

# %%
import torch
from matplotlib import pyplot

import peppermill as pm

model = pm.demo.network()
validation, (images, labels) = ((images[:600], labels[:600]) for images, labels in pm.demo.data())
methods = {
    "network": model,
    "temperature scaling": pm.fit_temperature(model, validation),
    "PEP with temperature": pm.fit(model, validation, size=6, temperature=True),
}

# %%
severities = [0.0, 0.1, 0.2, 0.3, 0.4]
noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
found = {name: [] for name in methods}
for severity in severities:
    corrupted = ((images + severity * noise).clamp(0, 1), labels)
    for name, predictor in methods.items():
        found[name].append(pm.evaluate(predictor, corrupted))
for name, scores in found.items():
    print(f"{name:<22} NLL {' '.join(f'{score.nll.value:.3f}' for score in scores)}")

# %% [markdown]
# Calibration on clean items does not survive strong corruption: all three become overconfident, the network first.

# %%
figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.5))
for name, scores in found.items():
    axes[0].plot(severities, [score.nll.value for score in scores], marker="o", label=name)
    axes[1].plot(severities, [100 * score.ece.value for score in scores], marker="o")
axes[0].set(xlabel="standard deviation of the noise", ylabel="NLL")
axes[1].set(xlabel="standard deviation of the noise", ylabel="ECE, %")
axes[0].legend(frameon=False)
