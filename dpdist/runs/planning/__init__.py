"""What a run will cost, told before it is begun, from what one of each thing costs on a machine.

Numbers go in and numbers come out of :mod:`dpdist.runs.planning.forecast`; they are measured by
:mod:`dpdist.runs.planning.calibration`, in seconds.
"""
