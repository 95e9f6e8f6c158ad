# %% [markdown]
# # Who is helped, and who is hurt?
#
# Noise on the weights helps few items a lot, and costs most items a little: confident mistakes become less confident,
# and so do correct predictions. This script finds both ends.

# %%
from matplotlib import pyplot

import peppermill as pm

model = pm.demo.network()
validation, test = ((images[:600], labels[:600]) for images, labels in pm.demo.data())
pep = pm.fit(model, validation, size=6)
effects = pm.helped_and_hurt(pep, test, count=3)
print(f"sigma = {pep.sigma:.4f}")
print(f"of {effects.items} items {effects.gained} gain and {effects.lost} lose probability of their true class")
print(f"{effects.corrected} mistakes are corrected, {effects.spoiled} correct predictions are spoiled")

# %% [markdown]
# The three items that gain most. Each histogram shows the probability of the true class under every member; the lines
# are the network and the ensemble.

# %%
pm.plots.members_histogram(effects.helped, pm.demo.CLASS_NAMES)

# %% [markdown]
# And the three that lose most.

# %%
pm.plots.members_histogram(effects.hurt, pm.demo.CLASS_NAMES)

# %% [markdown]
# The effect on every item, from the smallest to the largest: a long flat loss, and a steep gain at the end.

# %%
figure, axis = pyplot.subplots(figsize=(6, 3))
axis.plot(pep.item_effects(test).sort().values)
axis.axhline(0, color="grey", linewidth=0.8)
axis.set(xlabel="items, sorted by effect", ylabel="gain in log-likelihood")
