"""
How fine: prior and concentration
=================================

The prior determines how wide a cluster is expected to be, and it matters more than the concentration.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

import dpdist

x = PCA(4, random_state=0).fit_transform(load_digits().data)
shuffled = np.random.default_rng(0).permutation(len(x))
train, test = x[shuffled[:1200]], x[shuffled[1200:]]


def fit(**settings):
    model = dpdist.DPMixture(random_state=0, max_laps=8, **settings).fit(train)
    return model.n_components_, model.score(test)


# %%
# The concentration determines how readily a Dirichlet process opens clusters. Over four orders of magnitude it changes
# the number of clusters little: it contributes a few nats per cluster, the rows contribute thousands.

concentrations = [0.01, 1.0, 100.0]
by_concentration = [fit(concentration=each) for each in concentrations]
for each, (count, score) in zip(concentrations, by_concentration, strict=True):
    print(f"concentration {each:6}: K {count:3}, held out {score:8.3f} nats a row")

# %%
# The prior on covariances is the expected width of a cluster. By default it is derived from the spread of all data;
# ``prior="clusters"`` derives it from clusters of a sample: narrower, and with many columns often better on held-out
# rows.

by_prior = {prior: fit(prior=prior) for prior in ("data", "clusters")}
for prior, (count, score) in by_prior.items():
    print(f"prior {prior!r:10}: K {count:3}, held out {score:8.3f} nats a row")

# %%
# It can also be given: ``scale / (degrees_of_freedom - D - 1)`` is the expected covariance of a cluster.

spread = x.var(axis=0)
shares = [0.02, 0.1, 0.5]
by_scale = [
    fit(family=dpdist.families.Gaussian(degrees_of_freedom=x.shape[1] + 2, scale=share * spread)) for share in shares
]

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained", sharey=True)
left.semilogx(concentrations, [count for count, _ in by_concentration], "o-")
left.set(xlabel="concentration", ylabel="clusters", ylim=(0, None))
right.semilogx(shares, [count for count, _ in by_scale], "o-")
right.set(xlabel="expected variance in a cluster, as a share of the data's")
plt.show()
