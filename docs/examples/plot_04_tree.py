"""
Fewer clusters from the same fit: a tree
========================================

The model finds as many clusters as the density has. For fewer clusters, cut the tree of merges, at an exact cost in
nats, without another fit.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score

import dpdist

digits = load_digits()
x = PCA(12, random_state=0).fit_transform(digits.data)
model = dpdist.DPMixture(random_state=0, max_laps=20).fit(x)
tree = model.tree()
print(f"{model.n_components_} clusters")

# %%
# Every level is the merge that lowers the bound least; heights are in nats.

dpdist.plot.tree(model, n_clusters=10)

# %%
# A cut is a complete model: it predicts, scores and samples. Saving stores the model that it was cut from, with its
# tree. ``groups_`` maps labels that were predicted before to the coarser ones.

for fewer in (model, model.cut(10), model.cut(5)):
    agreement = adjusted_rand_score(digits.target, fewer.predict(x))
    told = f"ELBO {fewer.elbo_ / len(x):.3f} nats a row, adjusted Rand index {agreement:.3f}"
    print(f"{fewer.n_components_:3} clusters: {told}")
plt.show()
