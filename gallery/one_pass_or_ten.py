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
# Each row is a candidate with its price. The point is its difference from the choice in NLL, on items that it was not
# fitted on; the bar is one standard error. More passes win only if they are better by more than that.

# %%
rivals = [candidate for candidate in pep.race.candidates if candidate.name != "network"][::-1]
figure, axis = pyplot.subplots(figsize=(6, 3.5))
for row, candidate in enumerate(rivals):
    color = "tab:orange" if candidate.verdict == "chosen" else "tab:blue"
    axis.errorbar(candidate.difference, row, xerr=candidate.error, marker="o", capsize=3, color=color)
axis.axvline(0, color="grey", linewidth=0.8)
axis.set_yticks(range(len(rivals)), [f"{candidate.name} ({candidate.passes})" for candidate in rivals], fontsize=8)
axis.set_xlabel("difference in NLL from the choice (orange)")

# %% [markdown]
# The race knows only the validation items. Test its choice on other items: a paired difference below zero is a gain.

# %%
change = pm.compare(model, pep, test).nll
print(f"{pep.method}, {pep.passes} pass: NLL changes by {change.value:+.4f} [{change.lower:+.4f}, {change.upper:+.4f}]")
