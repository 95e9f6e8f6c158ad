# %% [markdown]
# # Is it worth ten passes?
#
# `pm.calibrate` lets every method race on the validation items and keeps the cheapest one that is as good as the
# best. Here the embedded network, a small CNN for Fashion-MNIST, races on 400 validation items, with at most four
# forward passes for a prediction.

# %%
from matplotlib import pyplot

import peppermill as pm

model = pm.demo.network()
validation, test = ((images[:400], labels[:400]) for images, labels in pm.demo.data())
pep = pm.calibrate(model, validation, passes=4)
print(pep.race)

# %% [markdown]
# Each point is a candidate: its NLL on items that it was not fitted on, against the price of a prediction. A point
# further right must be clearly lower to win.

# %%
figure, axis = pyplot.subplots(figsize=(6, 3.5))
for candidate in pep.race.candidates:
    chosen = candidate.verdict == "chosen"
    axis.scatter(candidate.passes, candidate.nll, marker="*" if chosen else "o", s=160 if chosen else 40)
    axis.annotate(f"  {candidate.name}", (candidate.passes, candidate.nll), fontsize=7, va="center")
axis.set(xlabel="forward passes of a prediction", ylabel="NLL on held-out validation items", xlim=(0.5, 7))

# %% [markdown]
# The race knows only the validation items. Test its choice on other items: a paired difference below zero is a gain.

# %%
change = pm.compare(model, pep, test).nll
print(f"{pep.method}, {pep.passes} pass: NLL changes by {change.value:+.4f} [{change.lower:+.4f}, {change.upper:+.4f}]")
