"""Forecast of the cost of a run from unit costs of a machine.

:mod:`dpdist.runs.planning.calibration` measures unit costs in seconds; :mod:`dpdist.runs.planning.forecast` computes
the forecast from them.
"""
