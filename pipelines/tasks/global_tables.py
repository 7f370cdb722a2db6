"""The rows of global tables, as one worker holds them in memory: loaded before its first epoch, then kept up to date.

They come from their topics alone: there is no changelog, and a new worker reads the topics from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import polars as pl

from weir.pipelines.errors import BadInputError
from weir.pipelines.on_error import ErrorHandling
from weir.pipelines.operators.epoch import without_null_keys
from weir.pipelines.serdes.source import FetchedRecords, RawRecords, decode_source
from weir.pipelines.serdes.timestamps import UNKNOWN_MS
from weir.pipelines.tasks.plan import OffsetRange
from weir.pipelines.topology import Topology
from weir.pipelines.topology.global_tables import GlobalTableNode
from weir.state.stores.typed import TypedStore

READ_BYTES = 64 << 20
TRIES = 30
"""Consecutive reads that may return nothing, about a second each while the brokers are away."""


class GlobalTables:
    """Implements the part of ``weir.state.engine.contract.StateView`` that lookups by key need."""

    def __init__(self, topology: Topology, handling: ErrorHandling) -> None:
        self._nodes = {node.source.topic: node for node in topology.global_tables}
        self._handling = handling
        self._rows: dict[str, dict[bytes, bytes]] = {}
        self._positions: dict[tuple[str, int], int] = {}

    def read_on(
        self, ranges: Sequence[OffsetRange], read: Callable[[str, int, int, int], FetchedRecords], now_ms: int
    ) -> None:
        """Read every record up to the end of each range; ``read`` gives those of ``(topic, partition, start, end)``.

        Raises:
            BadInputError: A record cannot be read, and the application fails on it; else it is skipped.
            TimeoutError: The brokers return nothing for half a minute.
        """
        for wanted in ranges:
            place = wanted.topic, wanted.partition
            at, tries = self._positions.get(place, wanted.start), TRIES
            while at < wanted.end:
                raw = read(*place, at, wanted.end)
                self.take(raw, now_ms)
                tries = TRIES if raw.next_offset > at else tries - 1
                at = self._positions[place] = raw.next_offset
                if not tries:
                    raise TimeoutError(
                        f"topic {wanted.topic!r}, partition {wanted.partition}, of a global table returns nothing at "
                        f"offset {at} of {wanted.end}; make sure that the brokers are up, then start again"
                    )

    def take(self, raw: RawRecords, now_ms: int) -> None:
        """Put the records of one topic partition into the topic's table."""
        node = self._nodes[raw.topic]
        decoded = decode_source(node.source, raw, now_ms=now_ms, partition_time_ms=UNKNOWN_MS)
        for bad in decoded.bad:
            if self._handling.decide(bad) == "fail":
                raise BadInputError(bad.topic, bad.partition, bad.offset, bad.reason)
        self._put(node, decoded.frame)

    def _put(self, node: GlobalTableNode, rows: pl.DataFrame) -> None:
        names = list(node.store.key)
        newest = without_null_keys(rows, names).unique(names, keep="last", maintain_order=True)
        store = TypedStore(node.store, self)
        gone, kept = newest.filter("_deleted"), newest.filter(~pl.col("_deleted"))
        store.delete(store.encode(gone))
        store.write(store.encode(kept), kept.select_seq(*node.store.value, "_ts"))

    def get_many(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        rows = self._rows.get(store, {})
        return [rows.get(key) for key in keys]

    def put_many(self, store: str, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        self._rows.setdefault(store, {}).update(zip(keys, values, strict=True))

    def delete_many(self, store: str, keys: Sequence[bytes]) -> None:
        rows = self._rows.setdefault(store, {})
        for key in keys:
            rows.pop(key, None)

    def scan(
        self, store: str, lower: bytes = b"", upper: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        rows = sorted(self._rows.get(store, {}).items(), reverse=reverse)
        return iter([(key, value) for key, value in rows if lower <= key and (upper is None or key < upper)])

    def first(
        self, store: str, lower: bytes = b"", upper: bytes | None = None, *, reverse: bool = False
    ) -> tuple[bytes, bytes] | None:
        return next(self.scan(store, lower, upper, reverse=reverse), None)

    def count(self, store: str) -> int:
        return len(self._rows.get(store, {}))
