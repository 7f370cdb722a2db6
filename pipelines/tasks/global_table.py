"""One global table as a worker sees it: rows that the workers of an executor share, under rows of its own.

The shared rows are on disk, mapped into the memory of each worker, so the host's memory has them once. A worker brings
them to where its plan wants them if nobody else is at it, and takes a snapshot of them. What it sees is what its plans
have asked for, neither less nor more: where the shared rows are further, or nobody brings them on, it reads the topic
itself, on top of the snapshot that it has. What shared rows promise is in ``weir.state.engine.shared_rows``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import polars as pl
from msgspec.structs import replace

from weir.pipelines.errors import BadInputError
from weir.pipelines.on_error import ErrorHandling
from weir.pipelines.operators.epoch import without_null_keys
from weir.pipelines.serdes.source import FetchedRecords, RawRecords, decode_source
from weir.pipelines.serdes.timestamps import UNKNOWN_MS
from weir.pipelines.tasks.plan import OffsetRange
from weir.pipelines.topology.global_tables import GlobalTableNode
from weir.state.engine.contract import StateView
from weir.state.engine.ranges import Row
from weir.state.engine.shared_rows import FOLDER, About, SharedRows, Snapshot
from weir.state.engine.views import overlaid
from weir.state.stores.long_keys import LONG_KEYS
from weir.state.stores.typed import TypedStore

READ_BYTES = 4 << 20
"""At a time: with 64 MiB, a worker that has loaded a large table keeps 200 MB of memory, and is slower."""
TRIES = 30
"""Consecutive reads that may return nothing, about a second each while the brokers are away."""
PATIENCE_S = 30.0
"""How long whoever writes the shared rows may make no progress until others go without."""
LOOK_S = 0.005

Read = Callable[[str, int, int, int], FetchedRecords]
"""Gives records of ``(topic, partition, start, end)``."""


def shared_folder(state_folder: Path, store: str) -> Path:
    """Where the shared rows of a global table are, in an application's state folder."""
    return state_folder / FOLDER / store


def shared_stores(store: str) -> tuple[str, str]:
    """What the shared rows of a global table consist of."""
    return store, LONG_KEYS


def records_of(topic: str, partition: int, at: int, end: int, read: Read) -> Iterator[tuple[FetchedRecords, int]]:
    """The records from ``at`` to ``end`` in parts, each with the offset after it.

    Raises:
        TimeoutError: The brokers return nothing for half a minute.
    """
    tries = TRIES
    while at < end:
        raw = read(topic, partition, at, end)
        tries = TRIES if raw.next_offset > at else tries - 1
        at = min(raw.next_offset, end)
        yield raw, at
        if not tries:
            raise TimeoutError(
                f"topic {topic!r}, partition {partition}, of a global table returns nothing at offset {at} of {end}; "
                "make sure that the brokers are up, then start again"
            )


class Overlay:
    """Newest values by store and key, None where deleted; the part of a session that writing typed rows needs."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[bytes, bytes | None]] = {}

    def get_many(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        rows = self.rows.get(store, {})
        return [rows.get(key) for key in keys]

    def put_many(self, store: str, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        self.rows.setdefault(store, {}).update(zip(keys, values, strict=True))

    def delete_many(self, store: str, keys: Sequence[bytes]) -> None:
        self.rows.setdefault(store, {}).update(dict.fromkeys(keys))

    def scan(
        self, store: str, lower: bytes = b"", upper: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes | None]]:
        rows = sorted(self.rows.get(store, {}).items(), reverse=reverse)
        return iter([(key, value) for key, value in rows if lower <= key and (upper is None or key < upper)])


class GlobalTable:
    """The rows of one global table; implements ``weir.state.engine.contract.StateView``."""

    def __init__(self, node: GlobalTableNode, handling: ErrorHandling) -> None:
        self._node, self._handling = node, handling
        self._shared: SharedRows | None = None
        self._below: Snapshot | None = None
        self._own = Overlay()
        self._at: dict[int, int] = {}
        """By partition, up to where its rows are the topic's."""
        self._wanted: dict[int, int] = {}
        """The most that was asked for, beyond which nothing may be seen, and below which it does not go back."""
        self._used_s = 0.0
        self._stuck: dict[int, int] | None = None
        """The shared rows' positions when they were given up."""

    def share(self, state_folder: Path, generation: int) -> None:
        """Forget everything, and share the rows with others of this generation."""
        store = self._node.store.name
        self.release()
        self._wanted, self._stuck = {}, None
        self._shared = SharedRows(shared_folder(state_folder, store), generation, shared_stores(store))

    def release(self, unused_s: float = 0.0) -> None:
        """Hold no snapshot any more, nor rows of its own, if no plan has wanted them for so long; the next one takes
        them again."""
        if self._shared is not None and time.monotonic() - self._used_s >= unused_s:
            self._take(None)

    def read_on(self, ranges: Sequence[OffsetRange], read: Read, now_ms: int) -> None:
        """Have the rows of every record up to the end of each range, and of none beyond what was asked for so far.

        Raises:
            BadInputError: A record cannot be read, and the application fails on it; else it is skipped.
            TimeoutError: The brokers return nothing for half a minute.
        """
        self._used_s = time.monotonic()
        begins = {wanted.partition: wanted.start for wanted in ranges}
        for wanted in ranges:
            known = self._wanted.get(wanted.partition, wanted.start)
            self._wanted[wanted.partition] = max(known, wanted.end)
        if self._is_there():
            return
        if self._shared is not None:
            self._share_until_there(self._shared, begins, read, now_ms)
        topic = self._node.source.topic
        for partition, end in self._wanted.items():
            begin = self._at.setdefault(partition, begins.get(partition, end))
            for raw, at in records_of(topic, partition, begin, end, read):
                self._put(raw, now_ms, self._own)
                self._at[partition] = at

    def take(self, raw: RawRecords, now_ms: int) -> None:
        """Put the records of one topic partition into rows of its own."""
        self._put(raw, now_ms, self._own)

    def _is_there(self) -> bool:
        return bool(self._at) and self._at == self._wanted

    def _share_until_there(self, shared: SharedRows, begins: Mapping[int, int], read: Read, now_ms: int) -> None:
        """Take a snapshot of the shared rows where they are wanted, once they are there or this worker has brought them
        there. It gives up if they are further than wanted, or whoever has the turn makes no progress."""
        seen, until_s = None, 0.0
        while not self._is_there():
            with shared.turn() as is_mine:
                newest = shared.snapshot()
                at = newest.about.positions
                if not self._may_be(at) or (at == self._stuck and not is_mine):
                    newest.close()
                    return
                self._take(newest)
                if is_mine:
                    self._stuck = None
                    self._bring_on(shared, newest.about, begins, read, now_ms)
                    return
            if at != seen:
                seen, until_s = at, time.monotonic() + PATIENCE_S
            elif time.monotonic() > until_s:
                self._stuck = at
                return
            if not self._is_there():
                time.sleep(LOOK_S)

    def _may_be(self, at: Mapping[int, int]) -> bool:
        """Whether rows at these positions are of nothing that was not asked for."""
        return all(offset <= self._wanted.get(partition, -1) for partition, offset in at.items())

    def _bring_on(self, shared: SharedRows, about: About, begins: Mapping[int, int], read: Read, now_ms: int) -> None:
        """Bring the shared rows, as they are now, to where they are wanted, in this worker's turn."""
        self._take(None)  # else no page could be used again meanwhile
        topic = self._node.source.topic
        for partition, end in self._wanted.items():
            begin = about.positions.get(partition, begins.get(partition, end))
            for raw, at in records_of(topic, partition, begin, end, read):
                changes = Overlay()
                self._put(raw, now_ms, changes)
                about, before = replace(about, positions={**about.positions, partition: at}), about
                if not shared.write(changes.rows, before, about):
                    return
        there = About(positions=dict(self._wanted), is_whole=True)
        if about != there and not shared.write({}, about, there):
            return
        if not about.is_whole:
            shared.remove_older()
        if self._may_be((newest := shared.snapshot()).about.positions):
            self._take(newest)
        else:
            newest.close()

    def _take(self, snapshot: Snapshot | None) -> None:
        if self._below is not None:
            self._below.close()
        self._below, self._own = snapshot, Overlay()
        self._at = {} if snapshot is None else dict(snapshot.about.positions)

    def _put(self, raw: RawRecords, now_ms: int, rows: Overlay) -> None:
        decoded = decode_source(self._node.source, raw, now_ms=now_ms, partition_time_ms=UNKNOWN_MS)
        for bad in decoded.bad:
            if self._handling.decide(bad) == "fail":
                raise BadInputError(bad.topic, bad.partition, bad.offset, bad.reason)
        spec = self._node.store
        names = list(spec.key)
        newest = without_null_keys(decoded.frame, names).unique(names, keep="last", maintain_order=True)
        store = TypedStore(spec, cast(StateView, rows))  # writing needs no more of it
        gone, kept = newest.filter("_deleted"), newest.filter(~pl.col("_deleted"))
        store.delete(store.encode(gone))
        store.write(store.encode(kept), kept.select_seq(*spec.value, "_ts"))

    def get_many(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        if self._below is None:
            return self._own.get_many(store, keys)
        own = self._own.rows.get(store)
        if not own:
            return self._below.get_many(store, keys)
        found = zip(keys, self._below.get_many(store, keys), strict=True)
        return [own.get(key, value) for key, value in found]

    def scan(
        self, store: str, lower: bytes = b"", upper: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[Row]:
        below = iter(()) if self._below is None else self._below.scan(store, lower, upper, reverse=reverse)
        return overlaid(below, self._own.scan(store, lower, upper, reverse=reverse), reverse)

    def first(self, store: str, lower: bytes = b"", upper: bytes | None = None, *, reverse: bool = False) -> Row | None:
        return next(self.scan(store, lower, upper, reverse=reverse), None)

    def count(self, store: str) -> int:
        return sum(1 for _ in self.scan(store))
