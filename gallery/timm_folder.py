# %% [markdown]
# # Calibrate a timm network on a folder of pictures
#
# Two commands calibrate a network on a folder and test it on the pictures that were not used: `peppermill calibrate
# timm:resnet50 imagefolder:/data/val ...` and `peppermill evaluate`. This script does the same in Python, with a
# small network of timm that first learns clothes from a thousand pictures.

# %%
from pathlib import Path

import timm
import torch
from PIL import Image

import peppermill as pm
from peppermill.sources import data_from

(images, labels), (others, other_labels) = pm.demo.data()
for number, (picture, label) in enumerate(zip(others[:400], other_labels.tolist(), strict=False)):
    folder = Path("val", f"{label}")
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray((picture[0] * 255).byte().numpy()).save(folder / f"{number}.png")

# %%
torch.manual_seed(0)
model = timm.create_model("test_resnet", pretrained=False, num_classes=10, in_chans=1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
for step in range(120):
    chosen = torch.arange(20 * step, 20 * step + 20) % 1000
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
    optimizer.step()
model.eval()

# %% [markdown]
# The folder has a sub-folder for each class. Half of the pictures tune, the other half tests; `split_off` never mixes
# them.

# %%
data = data_from("imagefolder:val?size=28&mean=0&std=1")
tuning, testing = pm.split_off(data, 200, seed=0)
pep = pm.calibrate(model, tuning, passes=1)
print(pep.race)

# %%
before, after = (pm.predict(predictor, testing) for predictor in (model, pep))
print(f"NLL {-before.log_likelihoods.mean():.3f} -> {-after.log_likelihoods.mean():.3f} on the other 200 pictures")
methods = [("network", before), (pep.method, after)]
pm.plots.reliability_diagrams({name: pm.metrics.reliability(p.log_probs, p.labels, 10) for name, p in methods})
