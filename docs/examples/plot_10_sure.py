"""
How certain is a cluster?
=========================

The model is refitted to halves of the rows: clusters that are supported by the data come back. Two clusters here are
separate from all other rows; a ring has no clusters, and the borders between its Gaussians are arbitrary.
"""

import matplotlib.pyplot as plt
import numpy as np

import dpdist

rng = np.random.default_rng(2)
angle = rng.uniform(0, 2 * np.pi, size=200)
ring = 8 * np.stack([np.cos(angle), np.sin(angle)], axis=1) + 0.5 * rng.normal(size=(200, 2))
blobs = rng.choice([-2.5, 2.5], size=(100, 1)) * [1.0, 0.4] + 0.6 * rng.normal(size=(100, 2))
x = np.concatenate([ring, blobs])
model = dpdist.DPMixture(random_state=0).fit(x)
print(f"{model.n_components_} clusters")

# %%
# Jaccard coefficients of each cluster with its counterpart in three refits: 0.85 or more is stable, less than 0.6 is
# hardly a cluster.

found = model.stability(refits=3, max_laps=10)
print(f"clusters in the refits: {found.n_components.min()} to {found.n_components.max()}")

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
left.scatter(*x.T, c=found.mean[model.labels_], cmap="viridis", vmin=0, vmax=1, s=4)
left.set_aspect("equal")
image = right.imshow(found.jaccard, cmap="viridis", vmin=0, vmax=1, aspect="auto")
right.set(xlabel="cluster", ylabel="refit")
figure.colorbar(image, ax=right, label="Jaccard coefficient")
plt.show()
