"""Why an application lags, found in what its driver measures, and what helps against that cause.

Nothing is asked or done here: ``weir.orchestration.sensors.lag`` does that.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal, Self, get_args

import dagster as dg

from weir.infra.control import ApplicationStatus, TaskStatusRow
from weir.infra.control.rows import FREEST_SLOT, RequestKind
from weir.pipelines.tasks.run_metrics import TASK, THREAD

Help = Literal["commits", "restore", "slots"]
"""Commits further apart; a restore of the task in the least busy slot; more slots."""
ALONE = 4
"""A task is alone behind if it lags so many times as far as any other."""
BUSY = 0.8
"""The share of the last minute that a slot works if it is busy."""


@dataclass(frozen=True, kw_only=True)
class OnLag(dg.Resolvable):
    """What the sensor ``weir_lag`` may do for an application that lags, and at which measures; each name ends with its
    unit."""

    actions: Sequence[Help] = get_args(Help)
    """What it may do; with none, it only warns."""
    pause_s: float = 60.0
    """After an action, so that the next one is chosen by what it brought."""
    repeat_s: float = 600.0
    """Before the same is done again for the same task."""
    commit_max_share: float = 0.25
    """Commits that take more of the time than this are the cost: they are then further apart, for ``repeat_s``."""
    commit_interval_max_s: float = 10.0
    """Commits are put no further apart than this."""
    slow_store_ratio: float = 3.0
    """A store is slow if its task could write so many times as many records per second with the store of the median
    task of its sub-topology."""

    def __post_init__(self) -> None:
        """Raises ``ValueError`` for an action that does not exist, or a measure that cannot be."""
        if unknown := set(self.actions) - set(get_args(Help)):
            raise ValueError(f"on lag, nothing is called {min(unknown)}; there is: {', '.join(get_args(Help))}")
        for name in ("repeat_s", "commit_max_share", "commit_interval_max_s", "slow_store_ratio"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name):g}; it must be above 0")
        if self.pause_s < 0:
            raise ValueError(f"pause_s is {self.pause_s:g}; it must not be negative")
        if self.commit_max_share > 1:
            raise ValueError(f"commit_max_share is {self.commit_max_share:g}; it is a share of the time, at most 1")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a driver measures of itself."""

    tasks: Collection[TaskStatusRow]
    commit_ms: float = 0.0
    """How long a commit took on average over the last minute."""
    commits_per_s: float = 0.0
    interval_s: float = 0.0
    """From commit to commit, while records arrive."""
    applied_per_s: Mapping[str, float] = field(default_factory=dict)
    """By task, records that a second of writing to its stores covers."""
    busy_ratio: Mapping[str, float] = field(default_factory=dict)
    """By task, the share of the time in which it keeps its slot busy."""
    slots: int = 0
    cores: int = 0
    """Of the driver's host, those that it may use."""
    free_cores: float = 0.0
    """Those among them on which nothing runs."""

    @classmethod
    def of(cls, status: ApplicationStatus, commit_interval_s: float) -> Self:
        """What ``status`` says; ``commit_interval_s`` is the program's."""
        of_run = {each["name"]: each["value"] for each in status.readings if each["group"] == THREAD}
        of_tasks: dict[str, dict[str, float]] = defaultdict(dict)
        for each in status.readings:
            if each["group"] == TASK:
                of_tasks[each["name"]][each["tags"]["task-id"]] = each["value"]
        metric = status.metric
        return cls(
            tasks=status.tasks,
            commit_ms=metric.commit_ms_avg if metric else 0.0,
            commits_per_s=metric.commits_per_s if metric else 0.0,
            interval_s=max(commit_interval_s, of_run.get("commit-interval-avg", 0.0) / 1000),
            applied_per_s=of_tasks["applied-records-per-s"],
            busy_ratio=of_tasks["busy-ratio"],
            slots=round(of_run.get("slots", 0)),
            cores=round(of_run.get("cores", 0)),
            free_cores=of_run.get("free-cores", 0.0),
        )

    @property
    def commit_share(self) -> float:
        """The share of the time that commits take."""
        return self.commit_ms * self.commits_per_s / 1000

    @property
    def are_slots_busy(self) -> bool:
        """Whether every slot is."""
        busy = defaultdict[int, float](float)
        for task in self.tasks:
            busy[task.slot] += self.busy_ratio.get(task.task, 0.0)
        return bool(self.slots) and all(busy[slot] >= BUSY for slot in range(self.slots))


@dataclass(frozen=True, kw_only=True)
class Action:
    """A request to the driver."""

    help: Help
    kind: RequestKind
    arguments: Mapping[str, str]
    task: str = ""
    """The task that it is about; empty for the whole application."""

    def __str__(self) -> str:
        match self.help:
            case "commits":
                return f"commits {int(self.arguments['interval_ms']) / 1000:,.1f} s apart"
            case "restore":
                return f"a restore of task {self.task} in the least busy slot"
            case "slots":
                return f"{self.arguments['slots']} slots"


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why an application lags, and what helps."""

    sentence: str
    action: Action | None = None
    """None if nothing helps that the driver may do by itself, or if it does so already."""
    advice: str
    """What a person can do, with the job to launch."""


def cause_of(measured: Measured, on_lag: OnLag, name: str) -> Cause:
    """The measured cause of lag. ``name`` is the application's, which jobs have as a partition.

    A task that alone is behind comes first, since nothing else helps it; then commits, then slots.
    """
    under_repair = [task for task in measured.tasks if task.status in ("restoring", "corrupted")]
    if under_repair:
        return Cause(
            sentence=", ".join(f"task {task.task} is {task.status}" for task in under_repair),
            advice="the driver restores it by itself; weir_restore tries again at once",
        )
    if isolated := [task for task in measured.tasks if task.status == "isolated"]:
        return Cause(
            sentence=", ".join(f"task {task.task} is isolated ({task.reason})" for task in isolated),
            advice="it tries again by itself; the program or its input has to be corrected",
        )
    found = (
        _one_task(measured, on_lag, name)
        or _costly_commits(measured, on_lag, name)
        or _busy_slots(measured, name)
        or Cause(
            sentence="neither stores nor commits nor slots are the cost: records come faster than they are read",
            advice=f"if that lasts, launch weir_stop with the partition {name}, "
            "and start again with a greater max_epoch_records",
        )
    )
    is_allowed = found.action is not None and found.action.help in on_lag.actions
    return found if is_allowed else replace(found, action=None)


def _one_task(measured: Measured, on_lag: OnLag, name: str) -> Cause | None:
    worst = max(measured.tasks, key=lambda task: task.lag, default=None)
    if worst is None or worst.lag == 0:
        return None
    others = [task.lag for task in measured.tasks if task is not worst and task.positions]
    if not others or worst.lag < ALONE * max(others):
        return None
    alone, slowness = f"task {worst.task} alone is behind, by {worst.lag:,} records", _slowness(measured, worst)
    if slowness is None:
        return Cause(
            sentence=f"{alone}, and it is not known how quick its store is",
            advice=f"if that lasts, launch weir_restore with the partition {name}:{worst.task}",
        )
    if slowness < on_lag.slow_store_ratio:
        return Cause(
            sentence=f"{alone}, and its store is as quick as those of other tasks: its partition gets more records",
            advice=f"if that lasts, launch weir_stop with the partition {name}, "
            "spread the keys over more partitions, and start again",
        )
    return Cause(
        sentence=f"{alone}, because its store is slow: it writes {measured.applied_per_s[worst.task]:,.0f} records "
        f"per second, those of other tasks {slowness:,.1f} times as many",
        action=Action(
            help="restore",
            kind="restore",
            arguments={"task": worst.task, "source": "snapshot", "slot": FREEST_SLOT},
            task=worst.task,
        ),
        advice=f"launch weir_restore with the partition {name}:{worst.task}",
    )


def _slowness(measured: Measured, task: TaskStatusRow) -> float | None:
    """How many times as quickly the median of the tasks with such stores writes; None if that is not known: there are
    no such stores, or nothing was written to them within the last minute."""
    sub_topology, own = task.task.partition("_")[0], measured.applied_per_s.get(task.task, 0.0)
    others = [
        rate
        for other, rate in measured.applied_per_s.items()
        if other != task.task and other.partition("_")[0] == sub_topology
    ]
    return median(others) / own if others and own else None


def _costly_commits(measured: Measured, on_lag: OnLag, name: str) -> Cause | None:
    if measured.commit_share <= on_lag.commit_max_share:
        return None
    wanted_s = min(
        on_lag.commit_interval_max_s,
        max(2 * measured.interval_s, measured.commit_ms / 1000 / on_lag.commit_max_share),
    )
    return Cause(
        sentence=f"commits take {measured.commit_share:.0%} of the time, {measured.commit_ms:,.0f} ms each and "
        f"{measured.interval_s:,.1f} s apart",
        action=None
        if wanted_s <= measured.interval_s
        else Action(
            help="commits",
            kind="pace",
            arguments={"interval_ms": str(round(1000 * wanted_s)), "for_s": str(round(on_lag.repeat_s))},
        ),
        advice=f"launch weir_stop with the partition {name}, "
        "and start again with a longer commit_interval in the program",
    )


def _busy_slots(measured: Measured, name: str) -> Cause | None:
    if not measured.are_slots_busy:
        return None
    wanted = min(len(measured.tasks), measured.cores, measured.slots + int(measured.free_cores))
    return Cause(
        sentence=f"all {measured.slots} slots are busy, and {measured.free_cores:,.1f} cores are free",
        action=None
        if wanted <= measured.slots
        else Action(help="slots", kind="slots", arguments={"slots": str(wanted)}),
        advice=f"launch weir_stop with the partition {name}, "
        "and start again with more cores, slots (WEIR_SLOTS) and partitions",
    )
