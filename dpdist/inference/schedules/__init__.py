"""How batch summaries are combined into the total."""

from dpdist.inference.schedules.base import Schedule
from dpdist.inference.schedules.memoized import Batch, Memoized
from dpdist.inference.schedules.stochastic import Stochastic

#: Schedules by name, as in configurations and checkpoints.
SCHEDULES: dict[str, type[Schedule]] = {schedule.name: schedule for schedule in (Memoized, Stochastic, Batch)}

__all__ = ["SCHEDULES", "Batch", "Memoized", "Schedule", "Stochastic"]
