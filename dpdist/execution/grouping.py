"""Number of rows in one task: enough to keep Dask's overhead small, but few enough for all workers to have tasks.

Measured times may decide, because they cannot change a bit of the result: groups are aligned powers of two of
consecutive rows, and thus subtrees of the tree that adds all rows.
"""

from __future__ import annotations

#: Least seconds of a task; Dask spends a few milliseconds on each.
LONG_ENOUGH = 0.3
#: Least seconds of a task after groups are made smaller for idle workers.
TOO_SHORT = 0.02
#: Desired number of groups per thread, so that none waits long for the last.
GROUPS_A_THREAD = 2


def group_size(rows: int, seconds: float | None, threads: int) -> int:
    """Rows of a group: a power of two.

    Parameters
    ----------
    rows : number of rows in all
    seconds : measured seconds per row; None if unknown
    threads : number of worker threads
    """
    if not seconds:
        return 1
    size = 1
    while size < rows and size * seconds < LONG_ENOUGH:
        size *= 2
    while size > 1 and -(-rows // size) < GROUPS_A_THREAD * threads and size // 2 * seconds >= TOO_SHORT:
        size //= 2
    return size
