"""A tree of clusters: from those that were found down to one, by merges; cuts of it."""
