"""
The family changes the number of clusters
=========================================

The family defines the shape of a cluster. The simpler the shape, the more clusters the same data need.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

import dpdist

digits = load_digits()
x = PCA(4, random_state=0).fit_transform(digits.data)
shuffled = np.random.default_rng(0).permutation(len(x))
train, test = x[shuffled[:1200]], x[shuffled[1200:]]

# %%
# The same rows with three families and default priors: a full covariance per cluster, a variance per column, and one
# known variance for all clusters.

found = {}
for family in ("gaussian", "diagonal_gaussian", "isotropic_gaussian"):
    found[family] = dpdist.DPMixture(family, random_state=0, max_laps=10).fit(train)
    model = found[family]
    print(f"{family:20} K {model.n_components_:3}   held out {model.score(test):8.3f} nats a row")

# %%
# The held-out density shows which family describes the data best; the number of clusters does not. Fewer clusters are
# not better, and a number near ten, that of the classes, is a coincidence (see "Components are not classes").

figure, axes = plt.subplots(1, 3, figsize=(10, 4), layout="constrained")
for place, (family, model) in zip(axes, found.items(), strict=True):
    dpdist.plot.sizes(model, place)
    place.set_title(f"{family}: {model.n_components_}")
plt.show()
