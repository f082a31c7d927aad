"""Fitting a model: local steps, global steps, schedules, moves, starts, predictions."""
