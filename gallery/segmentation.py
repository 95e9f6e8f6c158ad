# %% [markdown]
# # A map of uncertainty
#
# For a segmentation network every pixel is an item, and `pep.uncertainty` gives a map for each picture. The network
# here is tiny and learns in a few seconds to find bright discs in noise; yours is used in the same way.

# %%
import torch
from matplotlib import pyplot
from torch import nn

import peppermill as pm


def pictures(count, seed):
    """Discs of random place and size, in noise: pictures [count, 1, 32, 32] and labels [count, 32, 32]."""
    generator = torch.Generator().manual_seed(seed)
    x, y, radius = (8 + 16 * torch.rand(3, count, 1, 1, generator=generator)).unbind()
    rows, columns = torch.arange(32)[:, None], torch.arange(32)[None, :]
    labels = ((rows - x) ** 2 + (columns - y) ** 2 < (radius / 2) ** 2).long()
    noise = torch.randn(count, 32, 32, generator=generator)
    return (labels + 0.8 * noise).unsqueeze(1), labels


torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 2, 1)
)
images, labels = pictures(12, seed=1)  # few, so that it becomes overconfident
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(200):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
model.eval()

# %% [markdown]
# Tune on other pictures. Intervals and tests resample pictures, not pixels, because the pixels of one picture depend
# on each other.

# %%
pep = pm.fit(model, pictures(40, seed=2), size=6, temperature=True)
change = pm.compare(model, pep, pictures(40, seed=3)).nll
print(
    f"sigma = {pep.sigma:.3f}, T = {pep.temperature:.2f}, NLL changes by {change.value:+.4f}, p = {change.p_value:.3f}"
)

# %% [markdown]
# The uncertainty is largest at the edge. Its second part, the disagreement of the members, needs the noise.

# %%
image, label = pictures(1, seed=5)
found = pep.uncertainty(image)
figure, axes = pyplot.subplots(1, 4, figsize=(10, 2.8))
shown = {
    "picture": image[0, 0],
    "probability of the disc": found.outputs[0, 1].exp(),
    "entropy": found.entropy[0],
    "disagreement of members": found.mutual_information[0],
}
for axis, (title, values) in zip(axes, shown.items(), strict=True):
    axis.imshow(values.detach(), cmap="gray" if title == "picture" else "viridis")
    axis.contour(label[0], levels=[0.5], colors="white", linewidths=0.8)
    axis.set_title(title, fontsize=9)
    axis.set_axis_off()
