# %% [markdown]
# # Abstain at 1 % risk
#
# `pm.abstain` finds the confidence above which the error rate stays below a promised risk, with a stated certainty.
# It needs items on which nothing was tuned.

# %%
from matplotlib import pyplot

import peppermill as pm

model = pm.demo.network()
(images, labels), test = pm.demo.data()
tuning, thresholds = (images[:1000], labels[:1000]), (images[1000:4000], labels[1000:4000])
tempered = pm.fit_temperature(model, tuning)
rule = pm.abstain(tempered, thresholds, risk=0.01, confidence=0.95)
print(f"keep items with a confidence above {rule.threshold:.3f}: {100 * rule.coverage:.0f} % of them")

# %% [markdown]
# On 5,000 other items the promise holds:

# %%
predicted, kept = rule(test[0])
error = (predicted[kept] != test[1][kept]).float().mean()
print(f"{100 * kept.float().mean():.1f} % kept, error rate {100 * error:.2f} %")

# %% [markdown]
# The error rate for every coverage. Without abstaining it is that of the network.

# %%
predictions = pm.predict(tempered, test)
coverage, risk = pm.metrics.risk_coverage_curve(predictions.log_probs, predictions.labels)
figure, axis = pyplot.subplots(figsize=(6, 3.5))
axis.plot(100 * coverage, 100 * risk)
axis.scatter(100 * kept.float().mean(), 100 * error, zorder=3, label="the rule")
axis.axhline(1, linestyle="--", color="grey", label="promised risk")
axis.set(xlabel="items kept, %", ylabel="error rate of those kept, %")
axis.legend(frameon=False)
