"""
How many clusters are there?
============================

Data drawn from seven Gaussian clusters of different shapes and sizes. The model is not given their number.
"""

import matplotlib.pyplot as plt
import numpy as np

import dpdist

rng = np.random.default_rng(3)
centres = rng.uniform(-10, 10, size=(7, 2))
shapes = rng.normal(scale=0.9, size=(7, 2, 2))
truth = rng.choice(7, size=6000, p=np.arange(7, 0, -1) / 28)
x = centres[truth] + np.einsum("nij,nj->ni", shapes[truth], rng.normal(size=(6000, 2)))

# %%
# One line fits the model; the estimator follows scikit-learn's conventions.

model = dpdist.DPMixture(random_state=0).fit(x)
print(f"{model.n_components_} clusters after {model.n_iter_} laps, {model.elbo_ / len(x):.4f} nats a row")

# %%
# The labels, and each cluster's covariance as an ellipse of two standard deviations.


def draw_ellipse(axes, mean, covariance, colour):
    values, vectors = np.linalg.eigh(covariance)
    angle = np.linspace(0, 2 * np.pi, 100)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    axes.plot(*(mean[:, None] + 2 * vectors @ (np.sqrt(values)[:, None] * circle)), color=colour, lw=2)


figure, axes = plt.subplots(figsize=(6, 5))
colours = plt.cm.tab10(np.arange(10))
axes.scatter(*x.T, c=colours[model.labels_ % 10], s=3, alpha=0.4)
for k in range(model.n_components_):
    draw_ellipse(axes, model.means_[k], model.covariances_[k], "0.15")
axes.set_aspect("equal")

# %%
# The evidence lower bound after each lap, and where clusters were split, merged or deleted. A change is kept only if
# the bound over all rows rises.

dpdist.plot.trace(model)
plt.show()
