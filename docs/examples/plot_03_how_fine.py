"""
How fine: prior and concentration
=================================

What a cluster may look like is a matter of the prior, and the prior matters more than the concentration.
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
# The concentration is how readily a Dirichlet process opens clusters. Over four orders of magnitude it moves the number
# of clusters a little: each new cluster gains or loses some nats by it, where rows speak in thousands.

concentrations = [0.01, 1.0, 100.0]
by_concentration = [fit(concentration=each) for each in concentrations]
for each, (count, score) in zip(concentrations, by_concentration, strict=True):
    print(f"concentration {each:6}: K {count:3}, held out {score:8.3f} nats a row")

# %%
# The prior on covariances says how wide a cluster is before it has rows. By default it follows the spread of all data,
# ``prior="clusters"`` that of clusters of a sample: finer, and where columns are many often denser out of sample.

by_prior = {prior: fit(prior=prior) for prior in ("data", "clusters")}
for prior, (count, score) in by_prior.items():
    print(f"prior {prior!r:10}: K {count:3}, held out {score:8.3f} nats a row")

# %%
# It may be told outright: ``scale / (degrees_of_freedom - D - 1)`` is the covariance expected of a cluster.

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
