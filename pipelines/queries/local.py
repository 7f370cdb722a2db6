"""The stores of tasks on this host, read while another process may be writing to them.

Threads may ask at once: their reads take turns, since a process can open a store only once.
"""

from __future__ import annotations

import glob
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import polars as pl

from weir.pipelines.committed_input import commit_with, input_before
from weir.pipelines.errors import QueryError
from weir.pipelines.operators.slices import Slices
from weir.pipelines.queries.contract import Question, TaskAnswer
from weir.pipelines.tasks.epoch import CLOCKS_KEY, POSITIONS_KEY, load_task_row
from weir.pipelines.tasks.global_table import shared_folder, shared_stores
from weir.pipelines.topology.global_tables import GlobalTableNode
from weir.pipelines.topology.sub_topology import SubTopology
from weir.pipelines.topology.topology import Topology
from weir.state.engine.backing import reading_own
from weir.state.engine.contract import StateView
from weir.state.engine.instances import current_instance
from weir.state.engine.shared_rows import newest_rows
from weir.state.engine.standby import reading_standby
from weir.state.engine.views import NewestView, open_reader
from weir.state.errors import OwnStoreError
from weir.state.storage.places import Place
from weir.state.stores.access import Scan, StoreTime
from weir.state.stores.key_value import KeyValueStore
from weir.state.stores.kinds import AnyStore, store_of
from weir.state.stores.session import SessionStore
from weir.state.stores.specs import PLACE
from weir.state.stores.versioned import VersionedStore
from weir.state.stores.window import WindowStore
from weir.state.types import IsolationLevel, Positions, StoreSpec

UNHEARD = "has not heard of its newest commit"
_TURN = Lock()
_LAST_PLACE = (1 << 63) - 1
"""Greater than any place in a list."""


class LocalStores:
    """The stores below ``folder``, that of an application's tasks on this host."""

    def __init__(self, folder: Path, application_folder: Place, topology: Topology) -> None:
        self._folder, self._application_folder, self._topology = folder, application_folder, topology

    def tasks(self, sub_topology: SubTopology) -> list[str]:
        """The stored names of the tasks of a sub-topology that have state here, sorted."""
        name = sub_topology.stored_name
        return [
            folder.name
            for folder in sorted(self._folder.glob(f"{glob.escape(name)}_*"))
            if folder.name.removeprefix(f"{name}_").isdigit() and current_instance(folder) is not None
        ]

    def answer(self, question: Question, tasks: Sequence[str]) -> list[TaskAnswer]:
        """See ``TaskStores``.

        Raises:
            QueryError: The store is of a kind that does not support the question, or cannot be read from here.
            TaskCorruptedError: A task's folder holds nothing that can be read.
        """
        for node in self._topology.global_tables:
            if node.store.name == question.store:
                return [self._of_global(question, task, node) for task in tasks]
        sub_topology, spec = next(
            (sub_topology, spec)
            for sub_topology in self._topology.sub_topologies
            for spec in sub_topology.stores
            if spec.name == question.store
        )
        return [self._answer(question, task, sub_topology, spec) for task in tasks]

    def has_global(self, node: GlobalTableNode) -> bool:
        """Whether a worker on this host has ever begun to load a global table."""
        return shared_folder(self._folder, node.store.name).is_dir()

    def _of_global(self, question: Question, task: str, node: GlobalTableNode) -> TaskAnswer:
        spec = node.store
        folder = shared_folder(self._folder, spec.name)
        with _TURN, newest_rows(folder, shared_stores(spec.name)) as snapshot:
            if snapshot is None:
                return TaskAnswer(task=task, has_state=False)
            reached = {node.source.topic: dict(snapshot.about.positions)}
            if behind := _behind(reached, question.at_least):
                return TaskAnswer(task=task, reached=reached, behind=behind)
            time_now = StoreTime(clocks={}, now_ms=time.time_ns() // 1_000_000)
            rows = None if question.look == "position" else _rows(question, store_of(spec, snapshot, time_now))
            return TaskAnswer(task=task, rows=rows, reached=reached)

    def _answer(self, question: Question, task: str, sub_topology: SubTopology, spec: StoreSpec) -> TaskAnswer:
        with _TURN, self._opened(task, question, spec) as found:
            if found is None:
                return TaskAnswer(task=task, has_state=False)
            held, snapshot = found
            reached = self._reached(held, sub_topology, task, question.isolation)
            behind = UNHEARD if reached is None else _behind(reached, question.at_least)
            if behind and (question.at_least or question.look == "position"):
                return TaskAnswer(task=task, reached=reached, behind=behind)
            if question.look == "position":
                return TaskAnswer(task=task, reached=reached)
            store = store_of(spec, snapshot, _time(snapshot))
            slices = sub_topology.slices_in(spec.name, store.time.clocks)
            rows = _rows(question, store) if slices is None else _windows(question, store, slices)
            return TaskAnswer(task=task, rows=rows, reached=reached)

    @contextmanager
    def _opened(self, task: str, question: Question, spec: StoreSpec) -> Iterator[tuple[NewestView, StateView] | None]:
        """The task's state, without and with the values of the user's store behind ``spec``; None if there is none."""
        folder = self._folder / task
        if question.of_standbys:
            with reading_standby(folder, question.isolation) as standby:
                yield None if standby is None else (standby, standby)
            return
        instance = current_instance(folder)
        if instance is None or not instance.is_dir():  # it is being restored
            yield None
            return
        try:
            with (
                open_reader(instance, question.isolation) as held,
                reading_own(held, instance, spec) as snapshot,
            ):
                yield held, snapshot
        except OwnStoreError as error:
            raise QueryError(str(error)) from error

    def _reached(
        self, held: NewestView, sub_topology: SubTopology, task: str, isolation: IsolationLevel
    ) -> Positions | None:
        """How far a task's state reflects its input.

        None while it has not heard of a commit that took what was on its way to it: then that is no longer known.
        """
        reached = load_task_row(held, POSITIONS_KEY, Positions)
        if isolation is not IsolationLevel.READ_COMMITTED or not sub_topology.edges_in:
            return reached
        record = None if held.base is None else commit_with(self._application_folder, task, held.base)
        if record is None:
            return None
        try:
            before = input_before(self._topology, sub_topology, self._application_folder, record, task)
        except FileNotFoundError:
            return None
        take_least(reached, before)
        return reached


def take_least(position: Positions, other: Positions) -> None:
    """Add ``other`` to ``position``; of two offsets of one partition the lower counts."""
    for topic, offsets in other.items():
        known = position.setdefault(topic, {})
        for partition, offset in offsets.items():
            known[partition] = min(offset, known.get(partition, offset))


def _rows(question: Question, store: AnyStore) -> pl.DataFrame:
    key = _dictionary(question.lower)
    match question.look, store:
        case "key", KeyValueStore() as found if PLACE in found.spec.key:
            return _range(found, key, key)
        case "key", VersionedStore() as found if question.as_of_ms is not None and question.lower is not None:
            rows = found.get_rows(question.lower.with_columns(as_of_ms=pl.lit(question.as_of_ms)))
            return rows.filter("_found").drop("_found")
        case "key", KeyValueStore() | VersionedStore() as found if (
            question.as_of_ms is None and question.lower is not None
        ):
            return found.get_rows(question.lower).filter("_found").drop("_found")
        case "range", KeyValueStore() as found:
            return _range(found, key, _dictionary(question.upper))
        case "prefix", KeyValueStore() as found if key is not None:
            return _frame(found.prefix_scan(tuple(key.values())))
        case "windows", WindowStore() as found:
            bounds = question.from_ms, question.to_ms
            return _frame(found.fetch_all(*bounds) if key is None else found.fetch_between(key, *bounds))
        case "sessions", SessionStore() as found:
            return _frame(found.find_sessions(key, question.from_ms, question.to_ms))
    kind = store.spec.kind.replace("_", "-")
    raise QueryError(f"store {store.spec.name!r} is a {kind} store, which does not support this query")


def _windows(question: Question, store: AnyStore, slices: Slices) -> pl.DataFrame:
    """The rows of windows, merged from slices: those of a window start with it or later, and before it ends."""
    to_ms = None if question.to_ms is None else question.to_ms + slices.windows.size_ms
    rows = _rows(replace(question, to_ms=to_ms), store)
    rows = slices.open_windows(store.spec.name, rows, store.time.clocks)
    starts = pl.col("window_start").dt.timestamp("ms")
    if question.from_ms is not None:
        rows = rows.filter(starts >= question.from_ms)
    return rows if question.to_ms is None else rows.filter(starts <= question.to_ms)


def _range(store: KeyValueStore, lower: dict[str, Any] | None, upper: dict[str, Any] | None) -> pl.DataFrame:
    """Rows with keys from ``lower`` through ``upper``; of a list store, the whole lists."""
    bounds = [lower, upper]
    if PLACE in store.spec.key:
        bounds = [bound and {**bound, PLACE: place} for bound, place in zip(bounds, (0, _LAST_PLACE), strict=True)]
    return _frame(store.range(*bounds))


def _dictionary(row: pl.DataFrame | None) -> dict[str, Any] | None:
    return None if row is None else row.row(0, named=True)


def _frame(scan: Scan[Any]) -> pl.DataFrame:
    return scan.frame()


def _time(snapshot: StateView) -> StoreTime:
    return StoreTime(clocks=load_task_row(snapshot, CLOCKS_KEY, dict[str, int]), now_ms=time.time_ns() // 1_000_000)


def _behind(reached: Positions, wanted: Positions) -> str:
    """The topic partitions of the task that are behind the wanted position, as text; empty if none."""
    return ", ".join(
        f"{topic}-{partition} is at {reached[topic][partition]}, not {offset}"
        for topic, offsets in wanted.items()
        for partition, offset in offsets.items()
        if partition in reached.get(topic, {}) and reached[topic][partition] < offset
    )
