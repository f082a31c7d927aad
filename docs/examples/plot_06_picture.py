"""
A photograph, clustered by colour and position
==============================================

Each pixel is a row of five columns: three colours and two coordinates. A cluster is a region of the picture; the number
of clusters is learned.
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
# ``TransformPlan(scale=True)`` scales colours and positions alike; it is fitted in one pass and stored with the model.
# Input and results refer to the raw columns.

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
