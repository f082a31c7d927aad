"""Where the work is done."""

from dpdist.backends.base import Backend, Ref
from dpdist.backends.serial import SerialBackend

__all__ = ["Backend", "Ref", "SerialBackend"]
