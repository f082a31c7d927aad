"""Where the work is done."""

from dpdist.execution.base import Backend, Counts, Ref
from dpdist.execution.serial import SerialBackend

__all__ = ["Backend", "Counts", "Ref", "SerialBackend"]
