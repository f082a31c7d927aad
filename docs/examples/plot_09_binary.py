"""
Binary columns
==============

Digits as 64 pixels that are on or off, with ``Bernoulli``: a cluster is a probability for each pixel.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import dpdist

x = (load_digits().data[:600] > 7).astype(float)
model = dpdist.DPMixture("bernoulli", random_state=0, max_laps=12).fit(x)
print(f"{model.n_components_} clusters, {model.elbo_ / len(x):.3f} nats a row")

# %%
# The probability of each pixel in the largest clusters.

chances = model.components_["probability"].values
figure, axes = plt.subplots(3, 10, figsize=(10, 3.2))
for place in axes.flat:
    place.set_axis_off()
for place, chance, weight in zip(axes.flat, chances, model.weights_, strict=False):
    place.imshow(chance.reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
    place.set_title(f"{weight:.3f}", fontsize=8)

# %%
# A row's responsibilities show how certain its label is.

sure = model.predict_proba(x).max(axis=1)
print(f"{np.mean(sure > 0.99):.0%} of rows belong to their cluster with more than 0.99")
plt.show()
