"""Whether a run of an ingest was killed, or has ended in a way of its own."""

from __future__ import annotations

import dagster as dg
from dagster._core.executor.child_process_executor import ChildProcessCrashException  # has no public name

KILLED = (ChildProcessCrashException.__name__, dg.DagsterExecutionInterruptedError.__name__)
"""The errors of a step that was killed, or whose run worker was; a run that somebody terminated is canceled instead."""


def was_cut_short(instance: dg.DagsterInstance, run_id: str, step: str) -> bool:
    """Whether the step's process was killed, alone or with the run worker, and so could not say how it ended."""
    ends = [
        entry.get_dagster_event()
        for entry in instance.all_logs(
            run_id, of_type={dg.DagsterEventType.STEP_SUCCESS, dg.DagsterEventType.STEP_FAILURE}
        )
    ]
    for event in ends:
        if event.step_key == step:
            error = event.step_failure_data.error if event.is_step_failure else None
            return error is not None and error.cls_name in KILLED
    return True
