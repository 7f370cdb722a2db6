"""What an assignor is told about a cluster and what it answers: which executor runs which task, which keep standbys.

The meaning is Kafka Streams' (KIP-924): an assignor is a function of the state of the application, with no memory of
its own. Executors stand where Kafka Streams has processes, slots where it has threads. Which slot of its executor runs
a task is not decided here. An assignor is written by anybody; ``weir.pipelines.assignment.checks`` judges its answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from operator import attrgetter
from typing import Protocol

from weir.state.types import TaskId

task_order = attrgetter("sub_topology", "partition")
"""The order of tasks as a key to sort by, which is several times as fast as comparing them."""


@dataclass(frozen=True, kw_only=True)
class ExecutorState:
    """An executor that is there, and what it did until now."""

    id: str
    slots: int
    """How many tasks it processes at the same time; one at least."""
    rack: str | None = None
    active: frozenset[TaskId] = frozenset()
    """The tasks that it ran."""
    standby: frozenset[TaskId] = frozenset()
    """The tasks whose stores it kept up to date as a standby; not those that were warmed up."""
    lags: Mapping[TaskId, int] = field(default_factory=dict)
    """Of each task whose stores it has on its disk, by how many rows these are behind the changelogs. A task that it
    ran and that is not in here is not behind."""

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ValueError(f"executor {self.id!r} has {self.slots} slots, but needs one at least")

    def lag_of(self, task: TaskId) -> int | None:
        """By how many rows its stores of ``task`` are behind; None if it has none."""
        return self.lags.get(task, 0 if task in self.active else None)


@dataclass(frozen=True, kw_only=True)
class TaskInfo:
    """A task of the application."""

    id: TaskId
    is_stateful: bool
    cost: float | None = None
    """Measured: seconds of a slot's time that it takes in a second; as a run begins, those of all runs before, so only
    how tasks relate to each other means something. None as long as it has not been measured; it then counts as the mean
    of the measured tasks of its sub-topology, or of all."""
    state_bytes: int = 0

    def __post_init__(self) -> None:
        if self.cost is not None and not 0 <= self.cost < float("inf"):
            raise ValueError(f"task {self.id} costs {self.cost}, which is not a number of seconds")


@dataclass(frozen=True, kw_only=True)
class ApplicationState:
    """All that an assignor decides by."""

    executors: Mapping[str, ExecutorState]
    """By id; one at least."""
    tasks: Mapping[TaskId, TaskInfo]
    """By id."""
    standby_replicas: int = 0
    """How many standbys each stateful task gets, as far as there are other executors than that of the task."""
    acceptable_recovery_lag: int = 10_000
    """By how many rows a store may be behind for its executor to take over the task at once."""
    max_warmup_replicas: int = 2
    """How many warm-up replicas the cluster keeps at a time; one at least."""
    spreads_over_racks: bool = False
    """Whether the standbys of a task go to other racks than the task and each other, as far as there are some."""

    def __post_init__(self) -> None:
        if not self.executors:
            raise ValueError("there is no executor to assign tasks to")
        if misplaced := [key for key, executor in self.executors.items() if key != executor.id]:
            raise ValueError(f"executor {misplaced[0]!r} has another id")
        if unknown := [key for key, task in self.tasks.items() if key != task.id]:
            raise ValueError(f"task {unknown[0]} has another id")
        if self.standby_replicas < 0 or self.acceptable_recovery_lag < 0 or self.max_warmup_replicas < 1:
            raise ValueError(
                "standby_replicas and acceptable_recovery_lag are zero or more and max_warmup_replicas is one or more, "
                f"not {self.standby_replicas}, {self.acceptable_recovery_lag} and {self.max_warmup_replicas}"
            )

    @cached_property
    def homes(self) -> dict[TaskId, str]:
        """Who has been running each task, in the order of the tasks.

        Several claim one only while one of them does not know yet that it lost it; then the one with the newest stores
        counts.
        """
        found: dict[TaskId, tuple[int, str]] = {}
        for name, executor in self.executors.items():
            for task in executor.active & self.tasks.keys():
                claim = executor.lags.get(task, 0), name
                found[task] = min(found.get(task, claim), claim)
        return {task: found[task][1] for task in sorted(found, key=task_order)}


class Role(StrEnum):
    """What a task is on an executor."""

    ACTIVE = "active"
    STANDBY = "standby"
    WARM_UP = "warm-up"
    """A store that is brought up to date for the executor to take over the task."""


@dataclass(frozen=True, kw_only=True)
class ExecutorAssignment:
    """What one executor is to do; each a set, since the order of tasks says nothing."""

    active: frozenset[TaskId] = frozenset()
    standby: frozenset[TaskId] = frozenset()
    warm_up: frozenset[TaskId] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Move:
    """An executor gets a task that it did not have in this role."""

    task: TaskId
    role: Role
    source: str | None
    """The executor that ran the task; None for standbys and warm-ups, and if no executor did."""
    target: str
    reason: str

    def __str__(self) -> str:
        where = f"{self.source} -> {self.target}" if self.source is not None else f"-> {self.target}"
        return f"{self.task} {self.role} {where}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class TaskAssignment:
    """The answer of an assignor."""

    executors: Mapping[str, ExecutorAssignment]
    """By id, all of them."""
    follow_up: bool = False
    """Whether to ask again once warm-ups have got on (Kafka Streams: a probing rebalance)."""
    moves: tuple[Move, ...] = ()
    """What is new, by task, role and target. Roles that end have no entry."""


class TaskAssignor(Protocol):
    """Decides which executor does what. Equal states get equal answers, whatever the order of their mappings."""

    def assign(self, state: ApplicationState, /) -> TaskAssignment: ...
