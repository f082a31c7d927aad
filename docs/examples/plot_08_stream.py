"""
One pass over a stream
======================

``SVA`` processes each row once, in the order of arrival, and opens a new cluster for a row that no cluster fits.
"""

import matplotlib.pyplot as plt
import numpy as np

import dpdist

rng = np.random.default_rng(1)
centres = rng.uniform(-10, 10, size=(12, 2))


def block(number):
    """Rows of which later ones come from clusters that were not there before."""
    known = 3 + 3 * number
    return centres[rng.integers(known, size=2000)] + 0.4 * rng.normal(size=(2000, 2))


# %%
# Blocks are passed one after another; between them the model can be used and saved.

family = dpdist.families.IsotropicGaussian(variance=0.16)
model = dpdist.SVA(family, concentration=1.0, random_state=0)
figure, axes = plt.subplots(2, 2, figsize=(7, 6.5), layout="constrained", sharex=True, sharey=True)
for number, place in enumerate(axes.flat):
    rows = block(number)
    model.partial_fit(rows)
    place.scatter(*rows.T, c=model.predict(rows) % 20, cmap="tab20", s=3)
    place.set_title(f"{2000 * (number + 1)} rows: {model.n_components_} clusters")
plt.show()
