"""
Rows that belong to no cluster
==============================

There are two ways: a threshold that the model derives from its own samples, and a background component that is part
of the fit.
"""

import matplotlib.pyplot as plt
import numpy as np

import dpdist

rng = np.random.default_rng(0)
centres = rng.uniform(-8, 8, size=(8, 2))
rows = centres[rng.integers(8, size=4000)] + 0.5 * rng.normal(size=(4000, 2))
stray = rng.uniform(-12, 12, size=(60, 2))
x, is_stray = np.concatenate([rows, stray]), np.arange(4060) >= 4000

# %%
# ``predict(x, outliers=True)`` does not need their number. The fit describes the scattered rows by a thin component
# around the clusters, which ``scattered_`` marks; outliers lie where the other components have almost no density.

plain = dpdist.DPMixture(random_state=0).fit(x)
by_threshold = plain.predict(x, outliers=True) == -1
print(plain.n_components_, "components, of scattered rows:", plain.scattered_.sum())

# %%
# ``background`` is the expected share of rows that belong to no cluster. A component as broad as all data holds them;
# it is never split, merged or deleted, and is part of the bound like any other.

with_background = dpdist.DPMixture(background=0.01, random_state=0).fit(x)
by_background = with_background.predict(x, outliers=True) == -1

figure, axes = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained", sharey=True)
told = {"threshold": (plain, by_threshold), "background": (with_background, by_background)}
for place, (name, (model, found)) in zip(axes, told.items(), strict=True):
    recall, precision = found[is_stray].mean(), is_stray[found].mean()
    place.scatter(*x[~found].T, c=model.predict(x[~found]) % 10, cmap="tab10", s=3, alpha=0.5)
    place.scatter(*x[found].T, c="black", marker="x", s=18)
    clusters = (~model.scattered_).sum()
    place.set_title(f"{name}: {clusters} clusters, recall {recall:.2f}, precision {precision:.2f}")
plt.show()
