"""The basis of all other packages: errors, checks, randomness, sums in a fixed order, places."""
