"""Conformance suites: the laws that a part must keep, for dpdist's own parts and for users'.

Each check raises AssertionError, naming the law, if the part breaks it; :class:`InputError` if it cannot be stored.

>>> import numpy as np, dpdist
>>> from dpdist.testing import check_family
>>> check_family(dpdist.families.Gaussian(), np.random.default_rng(0).normal(size=(40, 2)))
"""

from dpdist.testing.allocations import check_allocation
from dpdist.testing.backends import check_backend
from dpdist.testing.families import check_family
from dpdist.testing.moves import check_move
from dpdist.testing.sources import check_source
from dpdist.testing.stored import check_stored

__all__ = ["check_allocation", "check_backend", "check_family", "check_move", "check_source", "check_stored"]
