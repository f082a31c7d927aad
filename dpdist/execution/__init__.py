"""Backends, which run functions in this process or on a Dask cluster."""

from dpdist.execution.base import Backend, Counts, Ref
from dpdist.execution.serial import SerialBackend

__all__ = ["Backend", "Counts", "Ref", "SerialBackend"]
