"""
A photograph by its colours and places
======================================

Pixels as rows of five columns: three colours and two places. Each cluster is a stretch of the picture; nobody
says how many there are.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_sample_image

import dpdist

picture = load_sample_image("flower.jpg")[::11, ::11].astype(float)
height, width, _ = picture.shape
places = np.stack(np.mgrid[:height, :width], axis=-1)
x = np.concatenate([picture, places], axis=-1).reshape(-1, 5)

# %%
# ``TransformPlan(scale=True)`` brings colours and places to one scale; it is fitted in a pass of its own and kept with
# the model, which is told, and tells, in raw columns.

model = dpdist.DPMixture(row_transform=dpdist.TransformPlan(scale=True), random_state=0, max_laps=10).fit(x)
print(f"{len(x)} pixels, {model.n_components_} clusters")

# %%
# Each pixel in the mean colour of its cluster, and the clusters themselves.

labels = model.predict(x)
painted = model.means_[labels][:, :3].reshape(height, width, 3)
edges = np.zeros((height, width), dtype=bool)
grid = labels.reshape(height, width)
edges[:, 1:] |= grid[:, 1:] != grid[:, :-1]
edges[1:] |= grid[1:] != grid[:-1]

figure, axes = plt.subplots(1, 3, figsize=(12, 3), layout="constrained")
axes[0].imshow(picture / 255)
axes[1].imshow(np.clip(painted / 255, 0, 1))
axes[2].imshow(np.where(edges[..., None], 0, picture / 255))
for place in axes:
    place.set_axis_off()
plt.show()
