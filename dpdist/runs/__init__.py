"""A run of any method, from its specification to its end."""
