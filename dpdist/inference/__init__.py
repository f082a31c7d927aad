"""How a model is fitted: local steps, global steps, schedules, moves, starts, predictions."""
