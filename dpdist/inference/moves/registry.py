"""The built-in moves; by default a run uses all of them in this order."""

from __future__ import annotations

from dpdist.inference.moves.base import AnyMove
from dpdist.inference.moves.delete import Delete
from dpdist.inference.moves.merge import Merge
from dpdist.inference.moves.regroup import Regroup
from dpdist.inference.moves.split import Split

MOVES: tuple[AnyMove, ...] = (Split(), Regroup(), Merge(), Delete())
