"""How many rows of work go into one task: enough that Dask's part is small, few enough that every worker has some.

Timing may decide, for it cannot change a bit: groups are aligned powers of two of consecutive rows, which are
subtrees of the tree that adds all rows.
"""

from __future__ import annotations

#: Seconds that a task should take at least; Dask spends a few milliseconds on each.
LONG_ENOUGH = 0.3
#: Below this a group is not made smaller for the sake of idle workers.
TOO_SHORT = 0.02
#: Groups a thread should have, so that none waits long for the last.
GROUPS_A_THREAD = 2


def group_size(rows: int, seconds: float | None, threads: int) -> int:
    """Rows of a group: a power of two.

    Parameters
    ----------
    rows : in all
    seconds : that a row took before; None where nothing is known
    threads : that work
    """
    if not seconds:
        return 1
    size = 1
    while size < rows and size * seconds < LONG_ENOUGH:
        size *= 2
    while size > 1 and -(-rows // size) < GROUPS_A_THREAD * threads and size // 2 * seconds >= TOO_SHORT:
        size //= 2
    return size
