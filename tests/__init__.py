"""Tests.

Workers that they start in their own process are copies of a process that imported everything once; those that commands
start are new processes. Dask looks at this when it is imported.
"""

import dask

dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
