"""
The family moves the number of clusters
=======================================

A cluster is what the family says it is. The fewer shapes one cluster may have, the more of them the same data need.
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
# The same rows under three families, with default priors: a full covariance in each cluster, a variance in each column,
# and one known variance for all.

found = {}
for family in ("gaussian", "diagonal_gaussian", "isotropic_gaussian"):
    found[family] = dpdist.DPMixture(family, random_state=0, max_laps=10).fit(train)
    model = found[family]
    print(f"{family:20} K {model.n_components_:3}   held out {model.score(test):8.3f} nats a row")

# %%
# Held-out density says which family describes the data; the number of clusters does not. Fewer clusters are not better,
# and none of the three numbers is the ten that people have names for (see "Components are not classes").

figure, axes = plt.subplots(1, 3, figsize=(10, 4), layout="constrained")
for place, (family, model) in zip(axes, found.items(), strict=True):
    dpdist.plot.sizes(model, place)
    place.set_title(f"{family}: {model.n_components_}")
plt.show()
