"""The last module that a process imports before others become its copies.

Its objects are exempt from garbage collection from then on: a collection in a copy would write to all of them, so that
the operating system had to copy their memory.
"""

import gc

gc.collect()
gc.freeze()
