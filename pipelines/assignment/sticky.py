"""The assignor that moves tasks at once: balance first, then as few moves as possible, wherever the stores are."""

from __future__ import annotations

from weir.pipelines.assignment.balance import balanced
from weir.pipelines.assignment.contract import ApplicationState, TaskAssignment
from weir.pipelines.assignment.moves import assignment_of
from weir.pipelines.assignment.standbys import place_standbys


class StickyAssignor:
    """Tasks stay where they are as far as balance allows. One that moves to an executor without its stores waits there
    until they are restored, so this is for applications with little state or none."""

    def assign(self, state: ApplicationState, /) -> TaskAssignment:
        active = balanced(state)
        return assignment_of(state, active, place_standbys(state, {task: at for task, (at, _) in active.items()}))
