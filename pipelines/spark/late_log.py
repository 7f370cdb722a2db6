"""A line of the log for each late record that was dropped, at DEBUG; a few for each epoch of a task."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from weir.pipelines.operators.epoch import LateRecord

LATE_LOG = "weir.late"
log = logging.getLogger(LATE_LOG)


def log_late(task: str, records: Sequence[LateRecord], dropped: int) -> None:
    """Log ``records``, the first of those that a task has ``dropped`` in an epoch."""
    if not log.isEnabledFor(logging.DEBUG):
        return
    for each in records:
        place = f"{each.topic}-{each.partition} offset {each.offset}" if each.topic else "a row of another task"
        start_ms, end_ms = each.window_ms
        log.debug(
            "task %s, %s: %s is late and dropped: timestamp %s, stream time %s, window [%s, %s)",
            task,
            each.node,
            place,
            each.time_ms,
            each.stream_time_ms,
            start_ms,
            end_ms,
        )
    if records and dropped > len(records):
        log.debug("task %s: %s more late records were dropped in this epoch", task, dropped - len(records))
