"""Which tasks an application gets for the partitions that its topics have, which of its stores are dealt out anew among
them, and which cannot be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from weir.pipelines.repartitioning.errors import OwnKeysError, RepartitionError, RowsUnderWayError, StoresNotDealtError
from weir.pipelines.repartitioning.keys import StoreKeys, store_keys
from weir.pipelines.topology import SubTopology, Topology
from weir.pipelines.topology.changes import partitions_of, sub_topology_of
from weir.pipelines.topology.foreign_key import ResponseJoinNode, SubscriptionJoinNode
from weir.pipelines.topology.nodes import AggregateNode, Node, TableNode
from weir.pipelines.topology.processors import ProcessorNode
from weir.state.commit.record import CommitRecord
from weir.state.types import StoreKind


@dataclass(frozen=True, kw_only=True)
class Resized:
    """A sub-topology whose tasks are others."""

    sub_topology: SubTopology
    before: int
    """How many tasks it has."""
    now: int
    """How many it gets; as many, where only the tasks are others to which it answers, or topics that are narrower than
    others have got more partitions."""
    stores: tuple[StoreKeys, ...]
    """Those whose rows move or change."""
    partitions: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By topic that it reads: how many partitions it had, and has."""

    @property
    def is_split(self) -> bool:
        """Whether all keys of each new task come from one task."""
        return self.now % self.before == 0

    def divided(self, keys: StoreKeys) -> tuple[int, int]:
        """Among how many tasks the keys of a store were divided, and are: fewer than there are if they come from topics
        that are narrower than others."""
        topics = (topic for topic in self.sub_topology.topics_of(keys.spec.name) if topic in self.partitions)
        return next((self.partitions[topic] for topic in topics), (self.before, self.now))

    def parent(self, partition: int) -> int:
        """The task that a new one of a split has its keys from."""
        return partition % self.before


@dataclass(frozen=True, kw_only=True)
class RepartitionPlan:
    """How the tasks of a commit become those of the topics' partitions."""

    application: str
    topology: Topology
    record: CommitRecord
    source_counts: Mapping[str, int]
    """Partitions of each source topic."""
    resized: tuple[Resized, ...]

    @cached_property
    def counts(self) -> Mapping[int, int]:
        """Tasks by sub-topology."""
        return self.topology.partition_counts(self.source_counts)


def plan_of(
    application: str,
    topology: Topology,
    record: CommitRecord,
    source_counts: Mapping[str, int],
    *,
    keyed_by_record: Collection[str] = (),
) -> RepartitionPlan:
    """``keyed_by_record`` are stores of processors of which the program's author says that their keys are those of the
    records.

    Raises:
        CoPartitioningError: Topics that are joined have different numbers of partitions.
        RepartitionError: Some state cannot be dealt out, or the commit is of another program.
    """
    if record.fingerprint != topology.fingerprint or record.topology is None:
        raise RepartitionError(
            application,
            f"the program is not the one that made the newest commit (epoch {record.epoch}); put that one back, deal "
            "its state out, and change it then",
        )
    counts, before = topology.partition_counts(source_counts), Counter(map(sub_topology_of, record.tasks))
    known = partitions_of(record)
    grown = {topic for topic, count in source_counts.items() if 0 < known.get(topic, 0) != count}
    moved = {
        each.index
        for each in topology.sub_topologies
        if before[each.stored_name] != counts[each.index]
        or any(not grown.isdisjoint(each.topics_of(store.name)) for store in each.stores)
    }
    resized = []
    for each in topology.sub_topologies:
        keys = store_keys(topology, each)
        if each.index not in moved:
            keys = tuple(key for key in keys if key.senders is not None and key.senders.sub_topology in moved)
        if each.index in moved or keys:
            resized.append(
                Resized(
                    sub_topology=each,
                    before=before[each.stored_name],
                    now=counts[each.index],
                    stores=keys,
                    partitions={
                        source.topic: (known[source.topic], source_counts[source.topic])
                        for source in each.sources
                        if known.get(source.topic)
                    },
                )
            )
    found = RepartitionPlan(
        application=application, topology=topology, record=record, source_counts=source_counts, resized=tuple(resized)
    )
    _require_dealable(found, {topology.stored(store) for store in keyed_by_record})
    return found


def _require_dealable(plan: RepartitionPlan, keyed_by_record: Collection[str]) -> None:
    known = {key.spec.name for each in plan.resized for key in each.stores}
    for store in sorted(set(keyed_by_record) - known):
        raise RepartitionError(
            plan.application,
            f"no store {store!r} is dealt out; those that are: {', '.join(sorted(known)) or 'none'}",
        )
    if plan.resized and plan.record.pending_blobs:
        raise RowsUnderWayError(plan.application, len(plan.record.pending_blobs))
    reasons = [f"store {store!r} {reason}" for each in plan.resized for store, reason in _why_not(each, plan) if reason]
    if reasons:
        raise StoresNotDealtError(plan.application, "; ".join(reasons))
    own = tuple(
        key.spec.name
        for each in plan.resized
        for key in each.stores
        if key.is_own and key.spec.name not in keyed_by_record and len(set(each.divided(key))) > 1
    )
    if own:
        raise OwnKeysError(plan.application, own)


def _why_not(each: Resized, plan: RepartitionPlan) -> Iterator[tuple[str, str]]:
    """By store, why the rows of a sub-topology's stores cannot be dealt out."""
    tasks = [
        commit for name, commit in plan.record.tasks.items() if sub_topology_of(name) == each.sub_topology.stored_name
    ]
    unlogged = {store for task in tasks for store in task.unlogged}
    for spec in each.sub_topology.stores:
        if spec.name in unlogged or not spec.is_logged:
            yield (
                spec.name,
                "has no changelog, from which its rows would be dealt out: first run the program with logging=True for "
                "it and --until-caught-up --committed-partitions",
            )
    timed = tuple(filter(_is_timed, each.sub_topology.nodes))
    for key in each.stores:
        before, now = each.divided(key)
        if key.owner is None and before != now:
            yield key.spec.name, "is kept by keys that the program has changed since the records came to their task"
        elif key.node in timed and not each.is_split:
            yield (
                key.spec.name,
                f"depends on the time that its task has reached, and as {each.now} is no multiple of {each.before}, "
                "keys of tasks at different times would meet in one",
            )
        elif key.node in timed and before != now and (before, now) != (each.before, each.now):
            yield (
                key.spec.name,
                "depends on the time that its task has reached, and as its tasks also read topics with more "
                "partitions, keys of tasks at different times would meet in one",
            )
    merged = () if each.is_split else timed
    for node in merged:
        if not node.stores:
            yield node.name, f"schedules calls by the time of its task, and {each.now} is no multiple of {each.before}"


def _is_timed(node: Node) -> bool:
    """Whether what a node does depends on the stream time of its task, or on what the task has counted."""
    match node:
        case AggregateNode():
            return node.windows is not None
        case TableNode():
            return node.store.kind is not StoreKind.KEY_VALUE or node.store.retention_ms is not None
        case SubscriptionJoinNode() | ResponseJoinNode():
            return False
        case ProcessorNode():
            return True
    return bool(node.stores)
