"""Dealing the rows of stores out among other tasks, in one commit while the application is at rest (PROTOCOL 43).

No local store is moved: the commit names a state that none holds, so each task restores from its changelogs at the next
start. What is dealt out is decided in ``plan``.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import polars as pl

from weir.pipelines.operators.suppress import HELD_BYTES, held_bytes
from weir.pipelines.repartitioning.errors import MisplacedKeyError, RepartitionError
from weir.pipelines.repartitioning.keys import StoreKeys
from weir.pipelines.repartitioning.plan import RepartitionPlan, Resized
from weir.pipelines.tasks.order import LAST_KEY
from weir.pipelines.tasks.tables import application_tables
from weir.pipelines.topology import Topology
from weir.pipelines.topology.clocks import OF_TOPICS
from weir.state.changelog.dealing import Dealt
from weir.state.changelog.forgetting import forget_partitions
from weir.state.changelog.replacing import standing_rows
from weir.state.changelog.upserts import refresh_at_rest
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord, TaskCommit
from weir.state.engine.instances import new_instance
from weir.state.storage.places import Place
from weir.state.types import FileEntry, StateId, TaskId

REASON = "repartitioned"
"""The reason of the commit."""


@dataclass
class Tally:
    """What tasks get, by their names."""

    rows: Counter[str] = field(default_factory=Counter)
    held: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """By clock: how many bytes buffers of suppressions hold."""
    moved: Counter[str] = field(default_factory=Counter)
    """By store: how many rows are in another task than before."""

    def add(self, topology: Topology, sub_topology: int, dealt: Dealt) -> None:
        clock = HELD_BYTES + dealt.spec.name
        parts = dealt.rows.with_columns(dealt.targets.alias("_target")).partition_by(
            "_target", as_dict=True, include_key=False
        )
        for (target,), part in parts.items():
            name = topology.task_name(TaskId(sub_topology, target))
            self.rows[name] += part.height
            if clock in self.held:
                held = part.with_columns(pl.col("_ts").dt.timestamp("ms"))
                self.held[clock][name] += held_bytes(dealt.spec, held)
        self.moved[dealt.spec.name] += int(dealt.moves.sum())


def deal(plan: RepartitionPlan, app_folder: Place) -> Iterator[tuple[Resized, Dealt]]:
    """The rows of all stores that are dealt out, one store of one task at a time.

    The changelogs must have all of the commit, which they do once a driver has claimed the application.

    Raises:
        MisplacedKeyError: A key is not where the partitioner puts it.
    """
    for each in plan.resized:
        for keys in each.stores:
            for partition in range(each.before):
                task = plan.topology.task_name(TaskId(each.sub_topology.index, partition))
                rows = standing_rows(app_folder, keys.spec, task, plan.record.epoch).drop("_epoch")
                yield each, _dealt(plan, each, keys, partition, rows)


def repartition(
    warehouse: Place,
    plan: RepartitionPlan,
    on_step: Callable[[str], None] = lambda step: None,
    on_dealt: Callable[[Dealt], None] = lambda dealt: None,
) -> int:
    """Deal the rows out in a commit, whose epoch is returned. No driver may be running; one that is will be fenced.

    ``on_step`` is called where a crash leaves something behind: ``claimed``, ``changelogs written``, and the
    committer's steps; ``on_dealt`` with the rows of one store of one task once they are written.

    Raises:
        RepartitionError: The application has made another commit since the plan, or a key is misplaced; nothing was
            changed.
        FencedError: A driver was started meanwhile; nothing was changed.
    """
    app_folder, topology = warehouse / plan.application, plan.topology
    tables = application_tables(topology)
    committer = Committer(warehouse, plan.application, tables, fingerprint=topology.fingerprint, on_step=on_step)
    try:
        claim = committer.claim()
        live = claim.newest
        if live is None or live.state_id != plan.record.state_id:
            raise RepartitionError(plan.application, "it has just made another commit; try again")
        on_step("claimed")
        # deletions have the epoch before it
        state, tally = StateId(claim.generation, live.epoch + 2), _tally_of(live)
        files: list[FileEntry] = forget_partitions(
            app_folder, {keys.spec.name: each.before for each in plan.resized for keys in each.stores}, state.epoch - 1
        )
        for each, dealt in deal(plan, app_folder):
            files += dealt.write(app_folder, state.epoch)
            tally.add(topology, each.sub_topology.index, dealt)
            on_dealt(dealt)
        on_step("changelogs written")
        committer.commit(
            replace(
                live,
                generation=state.generation,
                epoch=state.epoch,
                at_ms=time.time_ns() // 1_000_000,
                reason=REASON,
                files=tuple(files),
                swaps=(),
                swapped=(),
                removed_tables={},
                tasks=_tasks(plan, live, state, tally),
            )
        )
    finally:
        committer.close()
    refresh_at_rest(app_folder, tables, plan.application)
    return state.epoch


def _dealt(plan: RepartitionPlan, each: Resized, keys: StoreKeys, partition: int, rows: pl.DataFrame) -> Dealt:
    stay = pl.repeat(partition, rows.height, dtype=pl.Int32, eager=True)
    targets, (before, now) = stay, each.divided(keys)
    if before != now and keys.owner is not None:
        of_rows = keys.keys(rows)
        placed = keys.owner.partition_of(of_rows, before).fill_null(partition)
        for place in (placed != partition).arg_true()[:1]:
            key = str(of_rows.row(place))
            raise MisplacedKeyError(plan.application, keys.spec.name, key, partition, before)
        targets = keys.owner.partition_of(of_rows, now).fill_null(partition % now)
    told = keys.with_senders(rows, plan.source_counts, plan.counts)
    is_changed = pl.repeat(False, rows.height, dtype=pl.Boolean, eager=True)
    if keys.senders is not None:
        for name in keys.spec.value:
            is_changed |= told[name].ne_missing(rows[name])
    return Dealt(
        spec=keys.spec,
        sub_topology=each.sub_topology.stored_name,
        partition=partition,
        rows=told,
        targets=targets,
        is_changed=is_changed,
    )


def _tally_of(live: CommitRecord) -> Tally:
    tally = Tally()
    for task in live.tasks.values():
        for clock in task.clocks:
            if clock.startswith(HELD_BYTES):
                tally.held[clock].clear()
    return tally


def _tasks(plan: RepartitionPlan, live: CommitRecord, state: StateId, tally: Tally) -> dict[str, TaskCommit]:
    """All tasks: those of resized sub-topologies at a state that no local store holds, if they have stores."""
    resized = {each.sub_topology.stored_name: each for each in plan.resized}
    tasks: dict[str, TaskCommit] = {}
    for sub_topology in plan.topology.sub_topologies:
        each = resized.get(sub_topology.stored_name)
        for partition in range(plan.counts[sub_topology.index]):
            name = plan.topology.task_name(TaskId(sub_topology.index, partition))
            if each is None:
                tasks[name] = live.tasks[name]
            else:
                tasks[name] = _task(plan, live, each, partition, state, tally)
    return tasks


def _task(
    plan: RepartitionPlan, live: CommitRecord, each: Resized, partition: int, state: StateId, tally: Tally
) -> TaskCommit:
    def name_of(number: int) -> str:
        return plan.topology.task_name(TaskId(each.sub_topology.index, number))

    name, before = name_of(partition), [live.tasks[name_of(number)] for number in range(each.before)]
    parents = [before[each.parent(partition)]] if each.is_split else before
    made = live.tasks.get(name) or TaskCommit(state=None, instance=new_instance(), positions={})
    new = {topic: {partition: 0} for topic, (known, now) in each.partitions.items() if known <= partition < now}
    made = replace(made, positions={**made.positions, **new})
    gone = before[each.now :][partition :: each.now]
    totals = _added([made, *gone])
    if not each.sub_topology.stores:
        return replace(made, totals=totals)
    due = [task.next_punctuation_ms for task in parents if task.next_punctuation_ms is not None]
    own = {clock: ms for clock, ms in made.clocks.items() if clock.startswith(OF_TOPICS)}
    held = {clock: held[name] for clock, held in tally.held.items() if clock in _clocks(parents)}
    return replace(
        made,
        state=state,
        snapshot=None,
        rows_since_snapshot=tally.rows[name],
        clocks={**_clocks(parents), **held, **own},
        totals=totals,
        next_punctuation_ms=min(due, default=None),
    )


def _added(tasks: Iterable[TaskCommit]) -> Mapping[str, int]:
    totals: dict[str, int] = {}
    for task in tasks:
        for name, number in task.totals.items():
            totals[name] = totals.get(name, 0) + number
    return totals


def _clocks(tasks: Iterable[TaskCommit]) -> Mapping[str, int]:
    """The clocks of tasks whose keys meet in one, but for those of topics: the greatest of each."""
    found: dict[str, int] = {}
    last = max(
        (tuple(task.clocks[name] for name in LAST_KEY) for task in tasks if LAST_KEY[0] in task.clocks), default=()
    )
    for task in tasks:
        for clock, time_ms in task.clocks.items():
            if not clock.startswith(OF_TOPICS):
                found[clock] = max(time_ms, found.get(clock, time_ms))
    return {**found, **dict(zip(LAST_KEY, last, strict=False))}
