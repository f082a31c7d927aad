"""Where the work is done."""

from dpdist.backends.base import Backend, Counts, Ref
from dpdist.backends.serial import SerialBackend

__all__ = ["Backend", "Counts", "Ref", "SerialBackend"]
