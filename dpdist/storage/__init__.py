"""Storage: generations of Zarr groups at a path or URL, and the encoding of their contents."""
