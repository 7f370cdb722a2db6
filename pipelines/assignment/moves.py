"""Makes an assignment of what an assignor has decided, and finds what is new in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from weir.pipelines.assignment.contract import (
    ApplicationState,
    ExecutorAssignment,
    Move,
    Role,
    TaskAssignment,
    task_order,
)
from weir.state.types import TaskId

Reasons = Mapping[TaskId, Mapping[str, str]]
"""By task, the executors that get it, each with the reason."""


def assignment_of(
    state: ApplicationState,
    active: Mapping[TaskId, tuple[str, str]],
    standby: Reasons,
    warm_up: Reasons | None = None,
    *,
    follow_up: bool = False,
) -> TaskAssignment:
    """The assignment where each task of ``active`` runs on an executor for a reason, and so on.

    Reasons are told of what is new only. A warm-up is new where the executor has nothing of the task's stores.
    """
    homes, warming = state.homes, warm_up or {}
    gets: dict[str, dict[Role, set[TaskId]]] = {name: defaultdict(set) for name in sorted(state.executors)}
    moves: list[Move] = []

    def give(task: TaskId, role: Role, target: str, reason: str, *, is_new: bool, source: str | None = None) -> None:
        gets[target][role].add(task)
        if is_new:
            moves.append(Move(task=task, role=role, source=source, target=target, reason=reason))

    for task in sorted(state.tasks, key=task_order):
        target, reason = active[task]
        home = homes.get(task)
        give(task, Role.ACTIVE, target, reason, is_new=home != target, source=home)
        for target, reason in sorted(standby.get(task, {}).items()):
            is_new = task not in state.executors[target].standby
            give(task, Role.STANDBY, target, reason, is_new=is_new)
        for target, reason in sorted(warming.get(task, {}).items()):
            is_new = state.executors[target].lag_of(task) is None
            give(task, Role.WARM_UP, target, reason, is_new=is_new)
    return TaskAssignment(
        executors={
            name: ExecutorAssignment(
                active=frozenset(roles[Role.ACTIVE]),
                standby=frozenset(roles[Role.STANDBY]),
                warm_up=frozenset(roles[Role.WARM_UP]),
            )
            for name, roles in gets.items()
        },
        follow_up=follow_up,
        moves=tuple(moves),
    )
