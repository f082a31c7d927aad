"""Memoized inference of a mixture: its local step, and the moves of a lap."""
