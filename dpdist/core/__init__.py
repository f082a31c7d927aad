"""What every other room stands on: errors, checks, randomness, sums in a fixed order, places."""
