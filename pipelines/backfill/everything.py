"""Swapping in a backfill of everything: its outputs and stores replace the live ones in one commit, while the
application is at rest (docs/backfill.md, 12 to 17).

No store is moved: the commit names a state that no local store holds, so each task restores from its changelog at the
next start. Beginning such a backfill belongs to ``begin``, swapping in days to ``swap``.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from weir.pipelines.application import Application
from weir.pipelines.backfill.differences import Review, accept, difference
from weir.pipelines.backfill.errors import UnknownBackfillError
from weir.pipelines.backfill.republish import republished, require_outboxes
from weir.pipelines.backfill.shadow import EVERYTHING, Shadow, remove_swapped
from weir.pipelines.backfill.swap import reason_of, with_files
from weir.pipelines.tasks.dead_letters import DEAD_LETTERS
from weir.pipelines.tasks.tables import application_tables
from weir.pipelines.topology import Topology
from weir.pipelines.topology.naming import names_over
from weir.state.changelog.forgetting import forget_partitions
from weir.state.changelog.replacing import replaced_rows
from weir.state.changelog.upserts import refresh_at_rest
from weir.state.commit.evolution import evolution
from weir.state.commit.protocol import Committer, newest_commit
from weir.state.commit.record import CommitRecord, CommittedTopology, TableSwap, TaskCommit
from weir.state.engine.instances import new_instance
from weir.state.errors import SwapRefusedError
from weir.state.storage.places import Place
from weir.state.types import CHANGELOG_FOLDER, FileEntry, StateId, TopicPartition

_CHANGELOGS = f"{CHANGELOG_FOLDER}/"


def commit_of(application: Application, shadow: Shadow) -> CommitRecord:
    """The newest commit of a complete backfill.

    Raises:
        UnknownBackfillError: No backfill has that id, or it is not complete.
        SwapRefusedError: A program with another topology made it.
    """
    made = newest_commit(shadow.warehouse, shadow.id)
    if shadow.completion is None or made is None:
        raise UnknownBackfillError(application.id, shadow.id, "it does not exist, was discarded, or is not complete")
    if made.fingerprint != application.topology.fingerprint:
        raise SwapRefusedError(
            application.id,
            shadow.id,
            "the program's topology is not the one that made it; run the backfill again, or go back to that program",
        )
    return made


def is_behind(application: Application, live: CommitRecord, made: CommitRecord) -> bool:
    """Whether a backfill whose newest commit is ``made`` has yet to read or process what the application has."""
    known = _offsets(application, made)
    return bool(made.pending_blobs) or any(
        known.get(place, 0) < offset for place, offset in _offsets(application, live).items()
    )


def swap_everything(
    warehouse: Place,
    application: Application,
    shadow: Shadow,
    on_step: Callable[[str], None] = lambda step: None,
    *,
    review: Review = accept,
    publish: bool = False,
) -> int:
    """Swap in a complete backfill of everything in a separate commit; returns the commit's epoch. With ``publish`` the
    commit also gives all its rows for sinks outside the warehouse to them.

    A backfill that is already swapped in is left as it is. No driver may be running; one that is will be fenced.

    Raises:
        UnknownBackfillError, SwapRefusedError: As for ``commit_of``, or its offsets are not the application's.
        FencedError: A driver was started meanwhile; nothing was changed.
        TableSchemaError: A table's columns cannot become those that the program writes; nothing was changed.
        Exception: What ``review`` raises; nothing was changed.
    """
    app_folder = warehouse / application.id
    topology = application.over(newest_commit(shadow.warehouse, shadow.id)).topology
    known, tables = newest_commit(warehouse, application.id), application_tables(topology)
    for note in known.swapped if known else ():
        if note.backfill == shadow.id:
            return note.epoch
    commit_of(application, shadow)
    committer, of_shadow = (
        Committer(place, name, of_place, fingerprint=topology.fingerprint, on_step=step)
        for place, name, of_place, step in (
            (warehouse, application.id, tables, on_step),
            (shadow.warehouse, shadow.id, application_tables(topology.keeping_times()), lambda step: None),
        )
    )
    try:
        claim = committer.claim()
        live = claim.newest
        if live is None or known is None or live.state_id != known.state_id:
            raise SwapRefusedError(
                application.id, shadow.id, "the application has just made another commit; swap it again"
            )
        remove_swapped(app_folder, live)
        made = of_shadow.claim().newest
        assert made is not None
        _require_same_place(application, shadow, live, made)
        if names_over(topology, live) != topology.names:
            raise SwapRefusedError(
                application.id,
                shadow.id,
                "the application has run another program since it began, and stores without a name of their own have "
                "other names now; run the backfill again",
            )
        for spec in tables:
            evolution(app_folder, spec)
        on_step("claimed")
        planned = list(_planned(topology, shadow, live.epoch))
        differences = tuple(difference(app_folder, shadow.folder, swap) for swap in planned)
        on_step("differences counted")
        review(differences)
        sinks = [sink.name for sink in topology.outside_sinks] if publish else []
        backfill = shadow.backfill
        require_outboxes(app_folder, backfill, sinks)
        published = republished(app_folder, backfill, sinks, after_epoch=live.epoch)
        on_step("outboxes written")
        # deletions have the epoch before it
        state = StateId(claim.generation, max(live.epoch + 2, published.epoch))
        swaps = tuple(with_files(shadow, swap) for swap in planned)
        on_step("swap files written")
        changes = tuple(_changelog_files(topology, app_folder, shadow, live, made, state.epoch))
        on_step("changelogs written")
        shadow.remove_stores()  # whoever finds it swapped in only looks for its folder
        committer.commit(
            CommitRecord(
                kind="commit",
                generation=state.generation,
                epoch=state.epoch,
                at_ms=time.time_ns() // 1_000_000,
                fingerprint=made.fingerprint,
                topic_ids=made.topic_ids,
                reason=reason_of(shadow.id),
                topology=_with_stores_aside(made.topology, live.topology),
                files=(*changes, *published.files),
                swaps=swaps,
                tasks=_tasks(live, made, state, changes),
            )
        )
        shadow.remove()
    finally:
        committer.close()
        of_shadow.close()
    refresh_at_rest(app_folder, tables, application.id)
    return state.epoch


def _require_same_place(application: Application, shadow: Shadow, live: CommitRecord, made: CommitRecord) -> None:
    for topic, topic_id in sorted(made.topic_ids.items()):
        if live.topic_ids.get(topic, topic_id) != topic_id:
            raise SwapRefusedError(
                application.id,
                shadow.id,
                f"topic {topic!r} was deleted and recreated, and the application and the backfill have not read the "
                "same one; discard it",
            )
    here, there = _offsets(application, live), _offsets(application, made)
    for (topic, partition), offset in sorted(here.items()):
        if there.get((topic, partition)) != offset:
            raise SwapRefusedError(
                application.id,
                shadow.id,
                f"the application is at offset {offset} of topic {topic!r}, partition {partition}, the backfill at "
                f"{there.get((topic, partition), 0)}; swap it again, or run the backfill again if the application was "
                "reset",
            )
    require_all_arrived(application, shadow, live)
    if made.pending_blobs:
        raise SwapRefusedError(
            application.id,
            shadow.id,
            "rows between sub-topologies of the backfill are still under way; swap it again",
        )


def require_all_arrived(application: Application, shadow: Shadow, live: CommitRecord) -> None:
    """Raise ``SwapRefusedError`` if rows are under way between the application's sub-topologies at its newest commit:
    where they come among others depends on records that it has not read, and the backfill may not read either."""
    if live.pending_blobs:
        raise SwapRefusedError(
            application.id,
            shadow.id,
            "rows between sub-topologies of the application are still under way; run its old program with `weir run "
            "OLD_MODULE:APP --until-caught-up`, then swap again",
        )


def _offsets(application: Application, record: CommitRecord) -> dict[TopicPartition, int]:
    """A commit's offsets in the topics that the program reads."""
    topics = set(application.topology.topics())
    return {
        (topic, partition): offset
        for task in record.tasks.values()
        for topic, offsets in task.positions.items()
        if topic in topics
        for partition, offset in offsets.items()
    }


def _planned(topology: Topology, shadow: Shadow, cut_epoch: int) -> Iterator[TableSwap]:
    """The swaps of all tables that people read, without their files."""
    for spec in (*topology.table_specs(), DEAD_LETTERS):
        yield TableSwap(
            backfill=shadow.id,
            table=spec.name,
            column=None,
            start_ms=EVERYTHING.start_ms,
            end_ms=EVERYTHING.end_ms,
            cut_epoch=cut_epoch,
            files=(),
        )


def _changelog_files(
    topology: Topology, app_folder: Place, shadow: Shadow, live: CommitRecord, made: CommitRecord, epoch: int
) -> Iterator[FileEntry]:
    """Rows that make the changelogs hold what the shadow's hold; those of stores that stay aside are left alone."""
    partitions = Counter[str]()
    for task in made.tasks:
        for spec in topology.sub_topology(topology.task_of(task).sub_topology).stores:
            partitions[spec.name] += 1
            yield from replaced_rows(
                app_folder, shadow.folder, spec, task, through=live.epoch, source_through=made.epoch, epoch=epoch
            )
    aside = live.topology.aside.keys() if live.topology else set[str]()
    written = {table.removeprefix(_CHANGELOGS) for table in live.table_versions if table.startswith(_CHANGELOGS)}
    kept = {store: partitions[store] for store in written if store in partitions or store not in aside}
    yield from forget_partitions(app_folder, kept, epoch - 1)


def _with_stores_aside(made: CommittedTopology | None, live: CommittedTopology | None) -> CommittedTopology | None:
    """The new program's, with what the application keeps aside of earlier ones."""
    if made is None or live is None:
        return made
    present = {store for stores in made.stores.values() for store in stores}
    return replace(
        made,
        aside={name: kept for name, kept in live.aside.items() if name not in present},
        topics_aside={topic: at for topic, at in live.topics_aside.items() if topic not in (made.topics or ())},
        removed=tuple(name for name in live.removed if name not in present),
    )


def _tasks(live: CommitRecord, made: CommitRecord, state: StateId, files: Iterable[FileEntry]) -> dict[str, TaskCommit]:
    """The shadow's tasks, at a state that no local store holds."""
    rows = Counter[str]()
    for file in files:
        rows[str(file.partition_values["task"])] += file.rows
    epochs = {  # the offsets are the live ones
        (topic, partition): epoch
        for task in live.tasks.values()
        for topic, of_topic in task.leader_epochs.items()
        for partition, epoch in of_topic.items()
    }
    return {
        name: replace(
            task,
            state=state,
            snapshot=None,
            rows_since_snapshot=rows[name],
            instance=live.tasks[name].instance if name in live.tasks else new_instance(),
            leader_epochs={
                topic: {partition: epochs[topic, partition] for partition in offsets if (topic, partition) in epochs}
                for topic, offsets in task.positions.items()
            },
        )
        for name, task in made.tasks.items()
    }
