# %% [markdown]
# # Inside scikit-learn and MAPIE
#
# `pm.PepClassifier` is a scikit-learn estimator around a trained network: its `fit` tunes noise and temperature on
# validation data and trains nothing. Everything that accepts a classifier accepts it, such as MAPIE, which turns its
# probabilities into prediction sets.

# %%
import numpy as np
from mapie.classification import SplitConformalClassifier
from matplotlib import pyplot
from sklearn.metrics import log_loss
from torch import nn

import peppermill as pm

model = nn.Sequential(nn.Unflatten(1, (1, 28, 28)), pm.demo.network()).eval()  # scikit-learn likes rows of numbers
validation, test = ((x.flatten(1).numpy()[:1000], y.numpy()[:1000]) for x, y in pm.demo.data())
classifier = pm.PepClassifier(model, size=4, classes=range(10)).fit(validation[0][:400], validation[1][:400])
print(f"sigma = {classifier.pep_.sigma:.3f}, T = {classifier.pep_.temperature:.2f}")
print(f"log-loss {log_loss(test[1], classifier.predict_proba(test[0])):.4f}, accuracy {classifier.score(*test):.3f}")

# %% [markdown]
# Prediction sets that contain the true class 95 % of the time. MAPIE needs items on which nothing was tuned: the
# rest of the validation data.

# %%
sets = SplitConformalClassifier(classifier, confidence_level=0.95, prefit=True)
sets.conformalize(validation[0][400:], validation[1][400:])
_, contained = sets.predict_set(test[0])
contained = contained[..., 0]
print(f"{100 * contained[np.arange(1000), test[1]].mean():.1f} % of the sets contain the true class")

# %%
sizes = np.bincount(contained.sum(axis=1), minlength=4)
figure, axis = pyplot.subplots(figsize=(5, 3))
axis.bar(range(len(sizes)), sizes)
axis.set(xlabel="classes in the set", ylabel="test items")
