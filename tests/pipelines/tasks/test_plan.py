"""Plans: the hash names everything that a plan holds."""

from __future__ import annotations

import pytest
from msgspec.structs import fields, replace

from weir.pipelines.tasks.dead_letters import Letter
from weir.pipelines.tasks.order import Mark
from weir.pipelines.tasks.plan import OffsetRange, TaskPlan
from weir.state.types import BlobRef, StateId, TaskId

RANGE = OffsetRange(topic="t", partition=0, start=0, end=5)
BLOB = BlobRef(source="a_0", target="b_0", edge="e", state=StateId(1, 1), path="p", rows=1, size_bytes=1)
LETTER = Letter(id="t-0-1-1", topic="t", partition=0, offset=1, timestamp_ms=0, key=b"", value=b"", row=None)
PLAN = TaskPlan(task=TaskId(0, 0), instance="first", state=StateId(2, 8), expected=None, committed=None, now_ms=0)
OTHER = {
    "task": TaskId(0, 1),
    "instance": "second",
    "state": StateId(2, 9),
    "expected": StateId(2, 7),
    "committed": StateId(2, 5),
    "now_ms": 1,
    "ranges": (RANGE,),
    "global_ranges": (RANGE,),
    "until_time_ms": 1_000,
    "is_strict": True,
    "marks": (Mark(1, 0, 0, 0),),
    "blobs": (BLOB,),
    "max_bytes": 1,
    "lets_idle": True,
    "end_time_ms": 2_000,
    "sought": ("clicks",),
    "to_log": ("visits",),
    "passes_wall_clock": False,
    "stops": True,
    "letters": (LETTER,),
    "max_uncommitted_bytes": 3,
    "max_rollback_us": 4,
    "budget_ms": 800,
    "batch_rows": 12,
    "tried": 2,
    "asks": True,
}


def test_equal_plans_have_equal_hashes():
    assert PLAN.plan_hash == replace(PLAN, ranges=()).plan_hash


@pytest.mark.parametrize("name", [field.name for field in fields(TaskPlan)])
def test_a_plan_that_differs_in_any_field_has_another_hash(name):
    """PROTOCOL 4 and 7: a task that answered two different plans with one receipt would skip or repeat input."""
    assert replace(PLAN, **{name: OTHER[name]}).plan_hash != PLAN.plan_hash
