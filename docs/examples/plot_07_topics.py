"""
Topics of documents
===================

In a hierarchical Dirichlet process all documents share topics, each document has its own proportions, and the number
of topics is learned. Here topics are bars on a grid of 6 × 6 words, so that they can be shown as pictures.
"""

# sphinx_gallery_thumbnail_number = 2
import matplotlib.pyplot as plt
import numpy as np
from scipy import sparse

import dpdist

rng = np.random.default_rng(0)
side, documents, tokens = 6, 400, 120
bars = np.zeros((2 * side, side, side))
for place in range(side):
    bars[place, place, :] = bars[side + place, :, place] = 1
bars = bars.reshape(2 * side, -1) / side
proportions = rng.dirichlet(np.full(2 * side, 0.15), size=documents)
counts = np.stack([rng.multinomial(tokens, each @ bars) for each in proportions])

# %%
# Some of the documents, shown as pictures of their words.

figure, axes = plt.subplots(1, 8, figsize=(10, 1.4))
for place, document in zip(axes, counts, strict=False):
    place.imshow(document.reshape(side, side), cmap="gray_r")
    place.set_axis_off()

# %%
# Counts may be sparse; a corpus on disk is given by its path.

model = dpdist.HDPTopicModel(initial_topics=50, random_state=0).fit(sparse.csr_array(counts))
print(f"{model.n_topics_} topics after {model.n_iter_} laps")

figure, axes = plt.subplots(2, 6, figsize=(6, 2.2))
for place in axes.flat:
    place.set_axis_off()
for place, topic in zip(axes.flat, model.components_, strict=False):
    place.imshow(topic.reshape(side, side), cmap="gray_r")

# %%
# The topics of a new document: expected shares of its tokens.

shares = model.transform(sparse.csr_array(counts[:1]))[0]
for topic in np.argsort(-shares)[:3]:
    print(f"topic {topic:2}: {shares[topic]:.2f}")
plt.show()
