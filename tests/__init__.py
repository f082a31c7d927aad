"""Tests.

Workers that they start in their own process are copies of a process that imported everything once; those that commands
start are new processes. Several processes run tests side by side, so that each has one thread for its products.
"""

import os

import dask

dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
os.environ.setdefault("OMP_NUM_THREADS", "1")
