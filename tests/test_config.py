"""Settings that say what they cannot mean."""

from __future__ import annotations

import re

import pytest

from dpdist.config import ScheduleConfig, TopicScheduleConfig
from dpdist.errors import InputError
from dpdist.schedules import SCHEDULES


@pytest.mark.parametrize("kind", [ScheduleConfig, TopicScheduleConfig])
@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_a_schedule_is_what_it_is_told_and_refuses_what_it_would_not_heed(kind, name: str) -> None:
    others = {"waves": 3, "lookahead": 1, "delay": 3.5, "forgetting": 0.75}
    assert kind(name=name).build().name == name
    for setting, value in others.items():
        told = kind(name=name, **{setting: value})
        if setting in SCHEDULES[name].__dataclass_fields__:
            assert getattr(told.build(), setting) == value
        else:
            expected = f"the schedule {name} has no {setting}; leave it out, or choose the schedule "
            with pytest.raises(InputError, match=re.escape(expected)):
                told.build()


def test_settings_that_no_one_schedule_has_are_named() -> None:
    told = ScheduleConfig(name="batch", keep_start=False, delay=3.0)
    with pytest.raises(InputError, match="no keep_start and no delay; leave it out, or choose another schedule"):
        told.build()
