"""Dirichlet-process mixtures of any size, with an exact bound, on Dask."""

__version__ = "0.1.0"
