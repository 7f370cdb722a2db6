"""The assignor that keeps tasks running while their stores are brought to where they are to run (KIP-441)."""

from __future__ import annotations

from collections import Counter, defaultdict

from weir.pipelines.assignment.balance import balanced
from weir.pipelines.assignment.contract import ApplicationState, TaskAssignment
from weir.pipelines.assignment.moves import assignment_of
from weir.pipelines.assignment.standbys import place_standbys
from weir.state.types import TaskId


class HighAvailabilityAssignor:
    """A stateful task moves at once only to an executor whose stores of it are within ``acceptable_recovery_lag``.

    Otherwise the executor with the newest stores runs it, and a warm-up replica is placed where it is to run for
    balance; the assignment asks for a follow-up, which moves the task once the replica has caught up. Of the replicas
    that are wanted, those with the smallest lag come first, at most ``max_warmup_replicas`` in the cluster; a standby
    in the right place needs none. A task whose stores nobody has moves at once: waiting would not help it.
    """

    def assign(self, state: ApplicationState, /) -> TaskAssignment:
        wanted = balanced(state)
        waiting = _waiting(state, {task: target for task, (target, _) in wanted.items()})
        active = wanted | {
            task: (holder, f"has the newest stores, {lag:,} rows behind, while {wanted[task][0]} catches up")
            for task, (holder, lag) in waiting.items()
        }
        standby = place_standbys(state, {task: at for task, (at, _) in active.items()})
        behind = sorted(
            (lag is None, lag or 0, task)
            for task in waiting
            for lag in [state.executors[wanted[task][0]].lag_of(task)]
            if wanted[task][0] not in standby.get(task, {})
        )
        warm_up = {
            task: {wanted[task][0]: f"is to run here once it is at most {state.acceptable_recovery_lag:,} rows behind"}
            for *_, task in behind[: state.max_warmup_replicas]
        }
        return assignment_of(state, active, standby, warm_up, follow_up=bool(waiting))


def _waiting(state: ApplicationState, wanted: dict[TaskId, str]) -> dict[TaskId, tuple[str, int]]:
    """The tasks that cannot run yet where they are wanted, and who runs them meanwhile, how many rows behind.

    Executors within the acceptable lag are equally good; of these the one that has been running the task is taken, or
    the one with the fewest tasks per slot.
    """
    holders: dict[TaskId, list[tuple[int, str]]] = defaultdict(list)
    for name, executor in sorted(state.executors.items()):
        for task in executor.active | executor.lags.keys():
            if (lag := executor.lag_of(task)) is not None:
                holders[task].append((lag, name))
    late: dict[TaskId, str] = {}
    for task, target in wanted.items():
        lag = state.executors[target].lag_of(task)
        if state.tasks[task].is_stateful and task in holders and (lag is None or lag > state.acceptable_recovery_lag):
            late[task] = target
    counts = Counter(target for task, target in wanted.items() if task not in late)
    found: dict[TaskId, tuple[str, int]] = {}
    for task, target in sorted(late.items()):
        least, _, _, holder, lag = min(
            (
                max(lag, state.acceptable_recovery_lag),
                name != state.homes.get(task),
                counts[name] / state.executors[name].slots,
                name,
                lag,
            )
            for lag, name in holders[task]
        )
        stays = state.homes.get(task) == target and least > state.acceptable_recovery_lag
        runs_at = target if stays else holder
        counts[runs_at] += 1
        if runs_at != target:
            found[task] = holder, lag
    return found
