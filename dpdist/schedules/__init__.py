"""How summaries become the total."""

from dpdist.schedules.base import Schedule
from dpdist.schedules.batch import Batch
from dpdist.schedules.memoized import Memoized
from dpdist.schedules.stochastic import Stochastic

#: Schedules by name, as configurations and checkpoints know them.
SCHEDULES: dict[str, type[Schedule]] = {schedule.name: schedule for schedule in (Memoized, Stochastic, Batch)}

__all__ = ["SCHEDULES", "Batch", "Memoized", "Schedule", "Stochastic"]
