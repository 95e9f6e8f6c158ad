# %% [markdown]
# # How much noise, and how many members?
#
# The log-likelihood of the ensemble first rises with sigma and then falls: this is Figure 1 of the paper. The second
# picture shows how many members are needed at the best sigma.

# %%
import peppermill as pm

model = pm.demo.network()
validation, test = ((images[:500], labels[:500]) for images, labels in pm.demo.data())
pep = pm.fit(model, validation, size=8)
print(pep.sigma, pep.search.gain)

# %%
sweep = pm.sweep_sigma(model, validation, sigmas=[0.005 * step for step in range(1, 11)], size=8)
pm.plots.sigma_curve(sweep, pep.sigma)

# %% [markdown]
# One pass of the eight members is enough to know what fewer of them would give.

# %%
curve = pm.size_curve(pep, test)
print(f"{curve.smallest(loss=0.01)} of {pep.size} members lose at most 0.01 NLL")
pm.plots.size_curve(curve)
