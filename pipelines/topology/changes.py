"""What becomes of committed state under a changed program: stores kept, rebuilt, orphaned; outputs; partition counts.

A sub-topology keeps its state if its stored name, a fingerprint of all that it stores and sends, and its number of
partitions are the committed ones. What a start does about all others is decided in
``weir.pipelines.spark.coordinator``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from weir.pipelines.topology.topology import Topology
from weir.state.commit.record import CommitRecord, CommittedTopology


@dataclass(frozen=True, kw_only=True)
class SettingChange:
    """A changed setting of a store that is kept; "" where it was not set, or no longer is."""

    store: str
    setting: str
    before: str
    now: str


@dataclass(frozen=True, kw_only=True)
class TopologyChange:
    """How a program differs from a commit; stores and outputs by name."""

    kept: tuple[str, ...]
    rebuilt: tuple[str, ...]
    """Stores that begin empty: their sub-topology now stores or reads something else, or its partitions changed."""
    orphaned: tuple[str, ...]
    """Stores that the program no longer has; for a commit that names no stores, the stored names of sub-topologies."""
    added: tuple[str, ...]
    settings: tuple[SettingChange, ...]
    """Settings of stores that are kept. They apply to what is read from now on; existing rows stay as they are."""
    outputs_added: tuple[str, ...]
    outputs_removed: tuple[str, ...]
    topics_added: tuple[str, ...]
    topics_removed: tuple[str, ...]
    """Topics that the commit has positions in but the program does not read."""
    partitions: Mapping[str, tuple[int, int]]
    """The committed and the present number of tasks, by stored name, of sub-topologies where they differ."""
    going_on: frozenset[str]
    """Stored names of the sub-topologies that keep their state."""
    ended_tasks: tuple[str, ...]
    """Committed tasks whose state no task of the program continues."""
    pending_blobs: int
    """Files of rows on their way to sub-topologies that do not keep their state."""
    is_other_topology: bool

    @property
    def loses_state(self) -> bool:
        return bool(self.rebuilt or self.orphaned)

    @property
    def is_blocked(self) -> bool:
        """Whether rows on their way between sub-topologies would be lost, which no flag allows (PROTOCOL 26)."""
        return self.pending_blobs > 0

    def loss(self) -> str:
        """What is lost, worded as the end of a sentence."""
        parts = []
        if self.rebuilt:
            parts.append(f"{_listed(self.rebuilt)} would begin empty, without what was read so far")
        if self.orphaned:
            parts.append(f"{_listed(self.orphaned)} would be given up")
        return " and ".join(parts)


def compare(committed: CommitRecord, topology: Topology, counts: Mapping[int, int]) -> TopologyChange:
    """Compare a program, with its number of tasks by sub-topology, with a commit."""
    now = {sub_topology.stored_name: sub_topology for sub_topology in topology.sub_topologies}
    before = _task_counts(committed.tasks)
    stores_now = {name: tuple(store.name for store in sub_topology.stores) for name, sub_topology in now.items()}
    named = (
        committed.topology.stores if committed.topology else {name: stores_now.get(name, (name,)) for name in before}
    )
    changed = {
        name: (before[name], counts[now[name].index])
        for name in before.keys() & now.keys()
        if before[name] != counts[now[name].index]
    }
    going_on = before.keys() & now.keys() - changed.keys()
    kept = tuple(store for name in sorted(going_on) for store in stores_now[name])
    lost = [store for name in sorted(before.keys() - going_on) for store in named.get(name, ())]
    all_now = [store for stores in stores_now.values() for store in stores]
    outputs_now = topology.committed_form.outputs
    outputs_before = committed.topology.outputs if committed.topology else outputs_now
    topics_before = sorted({topic for task in committed.tasks.values() for topic in task.positions})
    return TopologyChange(
        kept=kept,
        rebuilt=tuple(store for store in lost if store in all_now),
        orphaned=tuple(store for store in lost if store not in all_now),
        added=tuple(store for store in all_now if store not in (*kept, *lost)),
        settings=_settings_changed(committed.topology, topology.committed_form, kept),
        outputs_added=_without(outputs_now, outputs_before),
        outputs_removed=_without(outputs_before, outputs_now),
        topics_added=_without(topology.topics(), topics_before),
        topics_removed=_without(topics_before, topology.topics()),
        partitions=changed,
        going_on=frozenset(going_on),
        ended_tasks=tuple(task for task in committed.tasks if sub_topology_of(task) not in going_on),
        pending_blobs=sum(sub_topology_of(blob.target) not in going_on for blob in committed.pending_blobs),
        is_other_topology=committed.fingerprint != topology.fingerprint,
    )


def _settings_changed(
    before: CommittedTopology | None, now: CommittedTopology, kept: Iterable[str]
) -> tuple[SettingChange, ...]:
    if before is None or before.settings is None or now.settings is None:
        return ()
    both = [(store, before.settings.get(store, {}), now.settings.get(store, {})) for store in kept]
    return tuple(
        SettingChange(store=store, setting=name, before=old.get(name, ""), now=new.get(name, ""))
        for store, old, new in both
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    )


def sub_topology_of(task: str) -> str:
    """The stored name of a stored task's sub-topology."""
    return task.rpartition("_")[0]


def partition_of_task(task: str) -> int:
    """The partition of a stored task."""
    return int(task.rpartition("_")[2])


def _task_counts(tasks: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for task in tasks:
        counts[sub_topology_of(task)] = counts.get(sub_topology_of(task), 0) + 1
    return counts


def _without(names: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    gone = set(others)
    return tuple(name for name in names if name not in gone)


def _listed(stores: tuple[str, ...]) -> str:
    return f"the store{'s' if len(stores) > 1 else ''} {', '.join(map(repr, stores))}"
