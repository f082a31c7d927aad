"""
Killed, and the same to the last bit
====================================

A run with checkpoints may be killed at any moment; it continues from the last one and gives the same result.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import dpdist

rng = np.random.default_rng(0)
x = rng.normal(size=(10, 4))[rng.integers(10, size=4000)] * 6 + rng.normal(size=(4000, 4))
model = dpdist.DPMixture(random_state=0)
whole = model.fit(x)

# %%
# ``iter_fit`` is the loop of a fit: here it is left in the middle, as if the power had failed.

folder = Path(tempfile.mkdtemp())
for _, info in dpdist.DPMixture(random_state=0).iter_fit(x, checkpoint_path=folder / "run.zarr"):
    if info.lap == 5:
        break

# %%
# On the command line this is ``dpdist resume run.zarr``.

resumed = dpdist.resume(folder / "run.zarr", x)
print(f"in one go {whole.elbo_!r}, resumed {resumed.elbo_!r}")
assert whole.elbo_ == resumed.elbo_
assert np.array_equal(whole.predict_proba(x), resumed.predict_proba(x))

dpdist.plot.trace(resumed)
plt.show()
