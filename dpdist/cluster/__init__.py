"""Clusters on which runs are computed, and submission of runs that continue without a terminal."""
