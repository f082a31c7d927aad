"""Compiled kernels: arrays in, arrays out."""
