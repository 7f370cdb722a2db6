"""Mutants: the code under test with one rule of docs/protocol.md broken, each of which some seed must find.

They show that the worlds would notice. A mutant is found if a seed breaks an invariant, ends otherwise than the model
says, or does not end. Seeds that find one without the mutant do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import polars as pl
from sqlalchemy import select

from weir.pipelines.backfill import swap
from weir.pipelines.publishing.batches import BatchConnection
from weir.pipelines.publishing.connection import Published
from weir.pipelines.publishing.mark_file import MarkFile
from weir.pipelines.publishing.publisher import Publisher
from weir.pipelines.publishing.sql import SqlConnection
from weir.pipelines.spark import topic_watch
from weir.pipelines.spark.coordinator import Coordinator
from weir.pipelines.spark.frontiers import Frontiers
from weir.pipelines.spark.restores import Restores
from weir.pipelines.spark.task import Task
from weir.pipelines.spark.topic_watch import TopicWatch
from weir.pipelines.tasks.epoch import EpochRunner
from weir.state.changelog import merging, restore
from weir.state.commit import tables
from weir.state.commit.delta_log import DeltaLog
from weir.state.commit.outbox import Mark, Outbox
from weir.state.commit.protocol import Committer, _by_table
from weir.state.commit.record import CommitRecord, TaskCommit
from weir.state.engine import environment, task_store
from weir.state.engine.task_store import TaskStore
from weir.state.storage import local
from weir.state.storage.syncs import Syncs

Change = Callable[[Any], Any]
"""Makes a broken function of a right one."""


@dataclass(frozen=True)
class Mutant:
    """Which rule is broken, and how."""

    rule: int | str
    """As a text one of docs/backfill.md."""
    what: str
    owner: Any
    member: str
    change: Change


def _epochs_from_one(start: Any) -> Any:
    def starting(coordinator: Coordinator, *arguments: Any, **options: Any) -> None:
        start(coordinator, *arguments, **options)
        coordinator.epoch = 0

    return starting


def _old_generation(append_row: Any) -> Any:
    def appending(committer: Committer, record: CommitRecord, *arguments: Any) -> None:
        if record.kind == "claim" and record.generation > 1:
            committer._generation -= 1
            record = record.__class__(**{**vars(record), "generation": committer._generation})
        append_row(committer, record, *arguments)

    return appending


def _unfenced(append: Any) -> Any:
    def appending(log: DeltaLog, *arguments: Any, **options: Any) -> bool:
        log.refresh()
        return bool(append(log, *arguments, **options))

    return appending


def _without_compare(apply: Any) -> Any:
    def applying(store: TaskStore, session: Any, **options: Any) -> Any:
        session.state = store.current
        return apply(store, session, **{**options, "expected": store.current})

    return applying


def _any_receipt(stored: Any) -> Any:
    return lambda store, plan_hash: store._databases.meta().receipt or None


def _to_the_end(read_topic: Any) -> Any:
    def reading(runner: EpochRunner, plan: Any, wanted: Any, source: Any, read: Any, clocks: Any) -> None:
        read_topic(runner, plan, wanted, source, read, clocks)
        read.positions[wanted.topic][wanted.partition] = wanted.end

    return reading


def _only_busy_tasks(to_commit: Any) -> Any:
    def committing(task: Task) -> TaskCommit:
        is_idle = task.current == task.committed
        return TaskCommit(state=None, instance=task.instance) if is_idle else to_commit(task)

    return committing


def _tables_first(append_row: Any) -> Any:
    def appending(committer: Committer, record: CommitRecord, *arguments: Any) -> None:
        for table, (files, swaps) in _by_table(record).items():
            if table in committer._tables:
                committer._tables[table].append(record.state_id.version, files, swaps)
        append_row(committer, record, *arguments)

    return appending


def _without_times(to_commit: Any) -> Any:
    return lambda task: replace(to_commit(task), clocks={})


def _without_blobs(commit: Any) -> Any:
    return lambda committer, record, *arguments: commit(committer, replace(record, pending_blobs=()), *arguments)


def _what_is_uncommitted_lost(begin: Any) -> Any:
    def beginning(restores: Restores, *arguments: Any, **options: Any) -> None:
        with patch.object(restores, "_commit", _nothing):
            begin(restores, *arguments, **options)

    return beginning


def _an_epoch_short(changelog: Any) -> Any:
    return SimpleNamespace(
        of=lambda *arguments, through, **options: changelog.of(*arguments, through=through - 1, **options)
    )


def _an_epoch_later(written: Any) -> Any:
    def writing(merge: Any, rows: pl.DataFrame) -> Any:
        return written(merge, rows.with_columns(pl.col("_epoch").max() + 1) if merge.spec.keys else rows)

    return writing


def _under_the_last(renewal: Any) -> Any:
    return lambda driver, task: replace(renewal(driver, task), state=driver.committed_id)


def _of_this_boot(read_identity: Any) -> Any:
    return lambda *arguments: replace(read_identity(*arguments), boot_id=environment.boot_id())


def _no_marks(marks: Any) -> Any:
    return lambda *arguments, **options: ()


def _none_lost(lost_positions: Any) -> Any:
    return lambda *arguments: []


def _without_leaders(cut_short: Any) -> Any:
    def cutting(positions: Any, *arguments: Any) -> Any:
        return cut_short({at: replace(end, leader_epoch=None) for at, end in positions.items()}, *arguments)

    return cutting


def _without_images(keep: Any) -> Any:
    return lambda *arguments: None


def _without_images_of_timers(apply: Any) -> Any:
    def applying(store: TaskStore, *arguments: Any, **options: Any) -> Any:
        stores = store._databases.meta().stores
        timers = {stores[name] for name in stores if name.endswith("-timers") or name == task_store.EXPIRIES}
        keep = task_store.keep_images

        def keeping(txn: Any, undo: Any, number: int, *images: Any) -> None:
            if number not in timers:
                keep(txn, undo, number, *images)

        with patch.object(task_store, "keep_images", keeping):
            return apply(store, *arguments, **options)

    return applying


def _two_epochs_later(planned: Any) -> Any:
    def planning(*arguments: Any) -> Any:
        found = planned(*arguments)
        return replace(found, cut_epoch=found.cut_epoch + 2)

    return planning


def _nothing_taken_out(taken_out: Any) -> Any:
    return lambda folder, name, table, files, swaps: (files.clear(), [])


def _by_own_memory(begin: Any) -> Any:
    def beginning(publisher: Publisher, connection: Any) -> Mark:
        before, found = publisher._mark, begin(publisher, connection)
        return found if before == Mark() else before

    return beginning


def _before_it_is_published(remove: Any) -> Any:
    return lambda publisher, mark: remove(publisher, Mark(1 << 31))


def _from_whole_epochs(rows: Any) -> Any:
    return lambda outbox, after, **limits: rows(outbox, Mark(after.epoch), **limits)


def _of_any_publisher(move: Any) -> Any:
    def moving(connection: SqlConnection, published: Published) -> None:
        newest = select(connection._marks.c.publisher).where(*connection._own)
        connection._number = connection._connection.execute(newest).scalar_one()
        move(connection, published)

    return moving


def _mark_first(publish: Any) -> Any:
    def publishing(connection: BatchConnection, rows: pl.DataFrame, published: Published) -> None:
        connection._mark.write(published)
        publish(connection, rows, published)

    return publishing


def _never_refused(refusals: Any) -> Any:
    return lambda mark: 0


def _over_epochs(init: Any) -> Any:
    def initialising(connection: BatchConnection, *arguments: Any) -> None:
        init(connection, *arguments)
        connection.limits = replace(connection.limits, one_epoch=False)

    return initialising


def _nothing(original: Any) -> Any:
    return lambda *arguments, **options: None


MUTANTS: dict[str, Mutant] = {
    "epochs from one": Mutant(1, "epochs of a new generation begin at 1", Coordinator, "start", _epochs_from_one),
    "same generation": Mutant(
        2, "a claim takes the newest generation again", Committer, "_append_row", _old_generation
    ),
    "unfenced": Mutant(3, "a driver appends behind rows that it has not read", DeltaLog, "append", _unfenced),
    "no rollback": Mutant(5, "a rollback leaves the rows", task_store, "put_images_back", _nothing),
    "no compare": Mutant(6, "an epoch is applied to whatever state there is", TaskStore, "apply", _without_compare),
    "any receipt": Mutant(7, "any plan is answered with the newest receipt", TaskStore, "stored_receipt", _any_receipt),
    "to the end": Mutant(9, "a position is where reading was to end", EpochRunner, "_read_topic", _to_the_end),
    "kept timers": Mutant(
        11, "a rollback leaves timers and expiry as they are", TaskStore, "apply", _without_images_of_timers
    ),
    "busy tasks": Mutant(12, "a commit has no idle tasks", Task, "to_commit", _only_busy_tasks),
    "no stream times": Mutant(12, "a commit has no stream times", Task, "to_commit", _without_times),
    "tables first": Mutant(13, "tables are appended before the pivot", Committer, "_append_row", _tables_first),
    "unsynced files": Mutant(13, "folders of an epoch's files are not synced", Syncs, "wait", _nothing),
    "unsynced names": Mutant(13, "folders of entries are not synced", local, "sync_folder", _nothing),
    "no redo": Mutant(14, "a claim redoes no appends", Committer, "_redo", _nothing),
    "no images": Mutant(17, "nothing is kept to be undone", task_store, "keep_images", _without_images),
    "any boot": Mutant(
        19, "a store is trusted whichever boot it was written in", environment, "_read_identity", _of_this_boot
    ),
    "nothing accepted": Mutant(
        20, "a restore begins before what was accepted is committed", Restores, "_begin", _what_is_uncommitted_lost
    ),
    "an epoch short": Mutant(
        21, "a restore leaves out the epoch of its commit", restore, "TaskChangelog", _an_epoch_short
    ),
    "an epoch later": Mutant(22, "merged rows get a later epoch", merging, "_written", _an_epoch_later),
    "no blobs": Mutant(23, "a commit lists no blobs", Committer, "commit", _without_blobs),
    "own mark": Mutant(24, "a publisher goes on by its own memory", Publisher, "_begin", _by_own_memory),
    "emptied early": Mutant(
        24, "rows leave the outbox before they are published", Publisher, "_remove", _before_it_is_published
    ),
    "whole epochs": Mutant(24, "of a mark only the epoch counts", Outbox, "rows", _from_whole_epochs),
    "any publisher": Mutant(25, "a mark is moved by whoever likes", SqlConnection, "_move", _of_any_publisher),
    "another topic": Mutant(28, "no topic is compared with what was read", topic_watch, "lost_positions", _none_lost),
    "no leader compared": Mutant(
        28,
        "a log that another leader has cut counts as the one that was read",
        topic_watch,
        "cut_short",
        _without_leaders,
    ),
    "not confirmed": Mutant(28, "no broker is asked before a pivot", TopicWatch, "confirm", _nothing),
    "no waiting": Mutant(31, "rows are taken before those that come first", Frontiers, "marks", _no_marks),
    "mark first": Mutant(35, "the mark is moved before its batch is sent", BatchConnection, "publish", _mark_first),
    "not asked": Mutant(35, "a batch is sent without a look who owns the mark", MarkFile, "refusals", _never_refused),
    "over epochs": Mutant(35, "a batch has rows of several epochs", BatchConnection, "__init__", _over_epochs),
    "last epoch": Mutant(
        40, "a task that asks is told the epoch of the last commit", Coordinator, "_renewal", _under_the_last
    ),
    "no doubt": Mutant(
        41, "what was counted on from a wrong row is committed", Coordinator, "_require_no_doubt", _nothing
    ),
    "a later cut": Mutant(
        "Backfill 2", "rows of two epochs after the cut are replaced", swap, "_planned", _two_epochs_later
    ),
    "nothing taken out": Mutant(
        "Backfill 7", "a swap leaves the rows that it replaces", tables, "taken_out", _nothing_taken_out
    ),
}


@contextmanager
def mutated(name: str | None) -> Iterator[None]:
    """Within the block the code under test is the mutant ``name``; as it is if that is None."""
    with ExitStack() as stack:
        if name is not None:
            mutant = MUTANTS[name]
            original = getattr(mutant.owner, mutant.member)
            stack.enter_context(patch.object(mutant.owner, mutant.member, mutant.change(original)))
        yield
