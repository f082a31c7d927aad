"""Runs of all methods: specification, preparation, driver, checkpoints and outputs."""
