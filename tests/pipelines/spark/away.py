"""Tasks that are taken out of the epochs as a restore does it, and put back, without a restore."""

from __future__ import annotations

from weir.pipelines.spark.task import Task
from weir.pipelines.spark.task_state import TaskState


def put_away(task: Task) -> None:
    """It restores from now on."""
    if task.state is not TaskState.RESTORING:
        task.to(TaskState.SUSPENDED, "a test")
        task.to(TaskState.RESTORING, "a test")


def put_back(task: Task) -> None:
    """It runs again."""
    if task.state is not TaskState.RUNNING:
        task.to(TaskState.RUNNING, "a test")
