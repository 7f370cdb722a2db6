"""What the driver knows of its tasks, as readings: lag, and what is uncommitted, of each task and in total; and of the
slots that they are in."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping

from weir.pipelines.spark.planner import total_lag
from weir.pipelines.spark.task import Task
from weir.pipelines.spark.uncommitted import rollback_us_of_slots, uncommitted_bytes
from weir.pipelines.tasks.run_metrics import TASK, THREAD, Reading
from weir.state.types import TopicPartition


def task_readings(tasks: Collection[Task], ends: Mapping[TopicPartition, int]) -> Iterator[Reading]:
    """The readings as of now; ``ends`` are those of the topic partitions."""
    for task in tasks:
        for name, value in _of([task], ends):
            yield Reading(group=TASK, name=name, tags={"task-id": str(task.id)}, value=value)
    for name, value in _of(tasks, ends):
        yield Reading(group=THREAD, name=name, value=value)


def _of(tasks: Collection[Task], ends: Mapping[TopicPartition, int]) -> Iterator[tuple[str, float]]:
    yield "records-lag", total_lag(tasks, ends)
    yield "uncommitted-bytes", uncommitted_bytes(tasks)
    yield "rollback-estimate-ms", max(rollback_us_of_slots(tasks).values(), default=0) / 1000


def slot_readings(slots: int) -> Iterator[Reading]:
    """How many slots and cores there are, and how many of these had nothing to run over the last minute."""
    cores = len(os.sched_getaffinity(0))
    yield Reading(group=THREAD, name="slots", value=slots)
    yield Reading(group=THREAD, name="cores", value=cores)
    yield Reading(group=THREAD, name="free-cores", value=max(0.0, cores - os.getloadavg()[0]))
