"""Exit statuses of a coordinator."""

from __future__ import annotations

#: Start me again; I was asked to end.
AGAIN, CANCELLED = 75, 143
