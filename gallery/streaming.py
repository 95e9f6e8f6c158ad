# %% [markdown]
# # Stream a folder of pictures to Parquet
#
# `pm.write_predictions` predicts data of any size in constant memory and writes a folder of parts. An interrupted job
# goes on where it stopped. On the command line: `peppermill predict MODEL imagefolder:new --pep pep.json --out
# predictions/`.

# %%
from pathlib import Path

import numpy as np
import pyarrow.parquet
from matplotlib import pyplot
from PIL import Image

import peppermill as pm
from peppermill.sources import data_from

validation, (images, _) = pm.demo.data()
Path("new").mkdir()
for number, picture in enumerate(images[:300]):
    Image.fromarray((picture[0] * 255).byte().numpy()).save(f"new/{number:04}.png")

# %% [markdown]
# The pictures have no labels. Each part holds the columns that you name, and the names of the files.

# %%
pep = pm.PepEnsemble.at_sigma(pm.demo.network(), 0.01, size=4)
inputs = data_from("imagefolder:new?size=28&mean=0&std=1", needs_labels=False)
columns = "predicted,confidence,mutual_information"
done = pm.write_predictions(pep, inputs, "predictions", columns=columns, batch_size=50, part_items=100)
print(done)
print(*sorted(path.name for path in Path("predictions/parts").iterdir()), sep="\n")

# %% [markdown]
# The same call again computes nothing: every part is there.

# %%
print(pm.write_predictions(pep, inputs, "predictions", columns=columns, batch_size=50, part_items=100).written)

# %%
table = pyarrow.parquet.read_table("predictions/parts").to_pydict()
figure, axis = pyplot.subplots(figsize=(5, 3.5))
axis.scatter(table["confidence"], np.maximum(table["mutual_information"], 0), s=8)
axis.set(xlabel="confidence", ylabel="disagreement of the members, nats")
