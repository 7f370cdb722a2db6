"""Compares a task's local stores with their changelogs and with the commit log, row by row.

While a driver runs, both sides are read as of one commit: the stores from a copy as of the last commit that the task
has heard of, the changelogs through that commit's epoch. Memory is bounded by one store of one task.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from weir.state.changelog.reading import EncodedRows, TaskChangelog, encoded
from weir.state.changelog.rows import changelog_spec
from weir.state.commit.log import COMMITS, commits_above, newest_commit
from weir.state.commit.record import CommitRecord, TaskCommit
from weir.state.commit.tables import file_actions, version_text
from weir.state.engine.backing import ELSEWHERE
from weir.state.engine.contract import StateView
from weir.state.engine.copies import committed_copy
from weir.state.engine.instances import current_instance
from weir.state.engine.task_store import LONG_KEYS, TASK_STORE
from weir.state.errors import RowFormatError, StateError, TaskCorruptedError
from weir.state.printable import printable
from weir.state.storage.places import Place, table_at
from weir.state.stores.codec import KeyCodec, RowCodec
from weir.state.stores.long_keys import whole
from weir.state.types import IsolationLevel, StateId, StoreSpec

NOTHING = "nothing"
_UNKNOWN = TaskCommit(state=None, instance="")


class StateDifferenceError(StateError):
    """A store differs from its changelog or the commit log; describes the first difference found."""

    def __init__(
        self, task: str, store: str, key: str, wanted: str, found: str, application: str = "APP", task_id: str = ""
    ) -> None:
        """``task`` is the stored name; ``task_id`` is its id, such as ``0_3``, where that is known."""
        super().__init__(task, store, key, wanted, found, application, task_id)
        self.task, self.store, self.key, self.wanted, self.found = task, store, key, wanted, found
        self.application, self.task_id = application, task_id
        self.instance: Path | None = None
        """The folder whose content differs; None if it is not the content."""
        self.state: StateId | None = None
        """The commit at which rows differ; None if it is not rows."""

    def of(self, application: str, task_id: str) -> StateDifferenceError:
        """The same, naming the application and the task's id."""
        named = StateDifferenceError(self.task, self.store, self.key, self.wanted, self.found, application, task_id)
        named.instance, named.state = self.instance, self.state
        return named

    def __str__(self) -> str:
        shown = f"{self.task_id} ({self.task})" if self.task_id else self.task
        return (
            f"task {shown}, store {self.store!r}, {self.key}: wanted {self.wanted}, found {self.found}; the changelog "
            f"is the truth: `weir restore {self.application} {self.task_id or self.task} --from-changelog` while the "
            "application runs"
        )


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """A task whose stores agree with the changelogs and the commit log."""

    task: str
    state: StateId | None
    """The commit at which both were compared; None before the task's first."""
    rows: int
    """Over all stores."""


def verify_task(
    warehouse: Place,
    application: str,
    task_folder: Path,
    specs: Sequence[StoreSpec],
    task_rows: Callable[[TaskCommit], Iterable[tuple[bytes, bytes]]],
) -> Agreement:
    """Compare the instance that serves queries in ``task_folder``, named after the task, with what is durable.

    Of a store whose values a user's store holds, only the keys are compared; a store whose rows are not in a changelog
    has nothing to be compared with.
    ``task_rows`` gives the rows of the task's own store as of a commit, as a restore would write them.
    Needs disk space for a copy of the task's state, which is removed afterwards.

    Raises:
        StateDifferenceError: They differ.
    """
    task, instance = task_folder.name, current_instance(task_folder)
    if instance is None:
        newest = newest_commit(warehouse, application)
        if newest is not None and newest.tasks.get(task, _UNKNOWN).state is not None:
            raise StateDifferenceError(task, "-", "instance", newest.tasks[task].instance, NOTHING)
        return Agreement(task=task, state=None, rows=0)
    try:
        with committed_copy(instance, task) as copy, copy.reader(IsolationLevel.READ_UNCOMMITTED) as reader:
            state = copy.base
            if state is None:
                return Agreement(task=task, state=None, rows=0)
            named = os.path.relpath(instance, task_folder)  # another folder's, where the task had another name
            record = _commit_of(warehouse, application, task, state, named)
            _require_changelogs(warehouse / application, application, task, specs, record)
            try:
                _compare_task_rows(task, task_rows(record.tasks[task]), reader)
                rows = _compare_stores(warehouse / application, task, specs, record, state, reader)
            except StateDifferenceError as difference:
                difference.instance, difference.state = instance, state
                raise
            return Agreement(task=task, state=state, rows=rows)
    except TaskCorruptedError as error:
        damage = StateDifferenceError(task, "-", "instance", f"a readable {instance.name}", error.reason)
        damage.instance = instance
        raise damage from error


def _commit_of(warehouse: Place, application: str, task: str, state: StateId, instance: str) -> CommitRecord:
    """The newest commit if it has the task at ``state``, else the first one that does.

    An idle task may not have heard of the newest commit, and only the newest names a restored task's instance.
    """
    newest = newest_commit(warehouse, application)
    known = _UNKNOWN if newest is None else newest.tasks.get(task, _UNKNOWN)
    if newest is not None and known.instance != instance:
        raise StateDifferenceError(task, "-", "instance", f"{known.instance}, which the commit log names", instance)
    if newest is not None and known.state == state:
        return newest
    if newest is not None:
        folder = warehouse / application / COMMITS.name
        for record in commits_above(folder, file_actions(table_at(folder)), state.version - 1):
            if record.tasks.get(task, _UNKNOWN).state == state:
                return record
    wanted = NOTHING if newest is None else f"{known.state}, which the commit log has"
    raise StateDifferenceError(task, "-", "state id", wanted, str(state))


def _compare_task_rows(task: str, wanted_rows: Iterable[tuple[bytes, bytes]], reader: StateView) -> None:
    """What the store lacks it takes from the commit log; what it has must equal the log."""
    wanted, found = _entries(wanted_rows), _entries(reader.scan(TASK_STORE))
    _compare_maps(task, TASK_STORE, "entry", {name: wanted.get(name, NOTHING) for name in found}, found)


def _entries(rows: Iterable[tuple[bytes, bytes]]) -> dict[str, Any]:
    """The numbers in the rows of a task's own store by path, for example ``positions/events/3``."""
    found: dict[str, Any] = {}

    def add(path: str, value: Any) -> None:
        if not isinstance(value, dict):
            found[path] = value
            return
        for name, inner in value.items():
            add(f"{path}/{name}", inner)

    for key, packed in rows:
        try:
            add(key.decode(), msgspec.msgpack.decode(packed))
        except (UnicodeDecodeError, msgspec.MsgspecError):
            found[repr(key)] = packed
    return found


def _compare_maps(task: str, store: str, what: str, wanted: Mapping[Any, Any], found: Mapping[Any, Any]) -> None:
    for name in sorted({*wanted, *found}):
        if wanted.get(name) != found.get(name):
            raise StateDifferenceError(
                task, store, f"{what} {name!r}", str(wanted.get(name, NOTHING)), str(found.get(name, NOTHING))
            )


def _require_changelogs(
    app_folder: Place, application: str, task: str, specs: Sequence[StoreSpec], record: CommitRecord
) -> None:
    """Raise ``StateDifferenceError`` if a changelog does not have the commit yet."""
    for spec in _compared(task, specs, record):
        table = changelog_spec(spec).name
        wanted = record.table_versions.get(table, 0)
        version = table_at(app_folder / table).transaction_version(application) or 0
        if version < wanted:
            raise StateDifferenceError(
                task,
                spec.name,
                "changelog",
                f"at commit {version_text(wanted)}",
                f"{version_text(version)}: the next start of the application repairs it",
            )


def _compared(task: str, specs: Sequence[StoreSpec], record: CommitRecord) -> list[StoreSpec]:
    return [spec for spec in specs if spec.is_logged and spec.name not in record.tasks[task].unlogged]


def _compare_stores(
    app_folder: Place,
    task: str,
    specs: Sequence[StoreSpec],
    record: CommitRecord,
    state: StateId,
    reader: StateView,
) -> int:
    count, long_keys = 0, dict[bytes, bytes]()
    for spec in _compared(task, specs, record):
        rows = TaskChangelog.of(app_folder, spec, task, through=state.epoch).newest_rows().filter(~pl.col("_deleted"))
        held = reader.scan(spec.name)
        for part in encoded(spec, rows):
            if spec.supplier is not None:  # it may hold the values of a newer commit by now
                part = replace(part, values=[ELSEWHERE] * len(part.keys))
            long_keys |= part.long_keys
            count += len(part.keys)
            _compare_part(task, spec, part, held, reader)
        if (extra := next(held, None)) is not None:
            raise StateDifferenceError(
                task, spec.name, _shown_key(spec, extra[0], reader, long_keys), NOTHING, _shown_row(spec, extra[1])
            )
    held_keys = dict(reader.scan(LONG_KEYS))  # also those of stores that are kept aside
    _compare_maps(
        task, LONG_KEYS, "whole key", long_keys, {key: held_keys[key] for key in long_keys & held_keys.keys()}
    )
    return count


def _compare_part(
    task: str, spec: StoreSpec, part: EncodedRows, held: Iterator[tuple[bytes, bytes]], reader: StateView
) -> None:
    found = list(islice(held, len(part.keys)))
    wanted = list(zip(part.keys, part.values, strict=True))
    if found == wanted:
        return
    at = next((index for index, pair in enumerate(zip(found, wanted, strict=False)) if pair[0] != pair[1]), len(found))
    key, value = wanted[at]
    stored: bytes | None = None
    if at < len(found) and found[at][0] <= key:
        stored = found[at][1]
        if found[at][0] < key:
            key, value = found[at][0], None
    raise StateDifferenceError(
        task,
        spec.name,
        _shown_key(spec, key, reader, part.long_keys),
        _shown_row(spec, value),
        _shown_row(spec, stored),
    )


def _shown_key(spec: StoreSpec, key: bytes, reader: StateView, long_keys: Mapping[bytes, bytes]) -> str:
    try:
        known = whole([key], partial(reader.get_many, LONG_KEYS), lambda hashes: list(map(long_keys.get, hashes)))
        row = KeyCodec(spec.key, spec.kind).decode(known).row(0, named=True)
    except (RowFormatError, ValueError, pl.exceptions.PolarsError):  # a damaged key may be anything
        return f"key {key!r}"
    return "key " + ", ".join(f"{name}={printable(str(value))}" for name, value in row.items())


def _shown_row(spec: StoreSpec, value: bytes | None) -> str:
    if value is None:
        return NOTHING
    try:
        row = RowCodec(spec.value).decode([value]).row(0, named=True)
    except RowFormatError:
        return f"bytes that are not a row: {value!r}"
    return ", ".join(f"{name}={printable(str(shown))}" for name, shown in row.items())
