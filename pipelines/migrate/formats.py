"""How Kafka Streams lays out the keys and values of its stores in changelog topics, and the serdes to read them with.

A key-value store's key is the key's bytes; a window store's is the key, the window's start (8 bytes) and a sequence
number (4 bytes), big-endian. The DSL's timestamped stores write plain values, whose timestamps are the records'; other
stores may put 8 bytes of timestamp before the value, as all of them do on disk.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from weir.pipelines.migrate.errors import MigrationError
from weir.pipelines.operators.windows import TimeWindows
from weir.pipelines.serdes.scalar import Bytes, Int64, String
from weir.pipelines.serdes.serde import Serde
from weir.pipelines.topology import SubTopology
from weir.pipelines.topology.nodes import AggregateNode, TableNode
from weir.state.types import StoreKind, StoreSpec

TIME_BYTES, SEQUENCE_BYTES = 8, 4
_SCALARS: dict[pl.DataType, Serde] = {pl.String(): String(), pl.Int64(): Int64(), pl.Binary(): Bytes()}


@dataclass(frozen=True, kw_only=True)
class StoreSerdes:
    """How the bytes of a store's changelog become the columns of a store of Weir."""

    key: Serde
    value: Serde
    """Reads the state: what the store holds, not the results computed from it."""
    has_timestamps: bool = False
    """Whether 8 bytes of timestamp precede each value."""


def default_serdes(sub_topology: SubTopology, store: StoreSpec) -> StoreSerdes:
    """The serdes that the program itself suggests: its source's, or those of a single text, number or bytes column.

    Raises:
        MigrationError: The program suggests none.
    """
    keys, source = key_columns(store), sub_topology.sources[0] if sub_topology.sources else None
    key = source.key_serde if source is not None and source.key.columns == keys else _scalar(keys)
    is_table = any(isinstance(node, TableNode) and node.store is store for node in sub_topology.nodes)
    value = (
        source.value_serde
        if is_table and source is not None and source.value.columns == store.value
        else _scalar(store.value)
    )
    if key is None or value is None:
        part, columns = ("key", keys) if key is None else ("value", store.value)
        raise MigrationError(
            f"how Kafka Streams wrote the {part} of store {store.name!r} ({', '.join(columns)}) is "
            f"unknown; give --serdes {store.name}=MODULE:NAME, which names a StoreSerdes object"
        )
    return StoreSerdes(key=key, value=value)


def key_columns(store: StoreSpec) -> pl.Schema:
    """The key's columns without the bounds of a window."""
    names = list(store.key)[:-2] if store.kind is StoreKind.WINDOW else list(store.key)
    return pl.Schema({name: store.key[name] for name in names})


def decode_rows(
    store: StoreSpec, window_size_ms: int | None, serdes: StoreSerdes, rows: pl.DataFrame, where: str
) -> pl.DataFrame:
    """A changelog's rows (as ``RAW_SCHEMA``) as the store's columns and ``_ts`` (ms).

    Raises:
        MigrationError: A key or value cannot be read by the serdes; ``where`` names the topic and partition.
    """
    keys, values, times = rows["key"], rows["value"], rows["timestamp_ms"]
    bounds = []
    if window_size_ms is not None:
        _require_length(keys, TIME_BYTES + SEQUENCE_BYTES, rows, where, "key of a window store")
        start = _times(keys.bin.tail(TIME_BYTES + SEQUENCE_BYTES).bin.head(TIME_BYTES))
        bounds = [start.alias("window_start"), (start + window_size_ms).alias("window_end")]
        keys = rows.select(pl.col("key").bin.head(pl.col("key").bin.size() - TIME_BYTES - SEQUENCE_BYTES)).to_series()
    if serdes.has_timestamps:
        _require_length(values, TIME_BYTES, rows, where, "value after a timestamp")
        times, values = _times(values.bin.slice(0, TIME_BYTES)), values.bin.slice(TIME_BYTES)
    columns = [
        *_decoded(serdes.key, keys, key_columns(store), rows, f"{where}, store {store.name!r}: its key"),
        *bounds,
        *_decoded(serdes.value, values, store.value, rows, f"{where}, store {store.name!r}: its value"),
    ]
    return pl.DataFrame([*columns, times.alias("_ts")]).cast({name: store.key[name] for name in store.key})


def window_size_ms(sub_topology: SubTopology, store: StoreSpec) -> int | None:
    """The size of the windows in an aggregation's store; None for a key-value store.

    Raises:
        MigrationError: The store is of another kind, whose changelog cannot be read.
    """
    for node in sub_topology.nodes:
        if isinstance(node, (AggregateNode, TableNode)) and node.store is store:
            windows = node.windows if isinstance(node, AggregateNode) else None
            if isinstance(windows, TimeWindows):
                return windows.size_ms
            if windows is None and store.kind is StoreKind.KEY_VALUE:
                return None
    raise MigrationError(
        f"store {store.name!r} ({store.kind}) has no changelog in Kafka Streams that can be read: "
        "only key-value and window stores of tables and aggregations have one; suppress directly after "
        "the aggregation, which needs no store of its own"
    )


def _decoded(serde: Serde, items: pl.Series, wanted: pl.Schema, rows: pl.DataFrame, what: str) -> list[pl.Series]:
    row_type = serde.row_type(next(iter(wanted)))
    found = row_type.columns
    is_single = len(found) == len(wanted) == 1
    if list(found.values()) != list(wanted.values()) or not (is_single or list(found) == list(wanted)):
        raise MigrationError(
            f"{what} is read as {dict(found)} by {serde!r}, but the store has {dict(wanted)}; give "
            "serdes with the store's columns"
        )
    decoded = serde.decode(items, row_type)
    if bad := [*decoded.bad.items(), *((index, "is empty") for index in decoded.absent)]:
        index, reason = min(bad)
        raise MigrationError(
            f"{what} at offset {rows['offset'][index]} cannot be read by {serde!r}: {reason}; give "
            "the serdes that the application wrote it with"
        )
    return [column.alias(name) for column, name in zip(decoded.columns, wanted, strict=True)]


def _scalar(columns: pl.Schema) -> Serde | None:
    return _SCALARS.get(next(iter(columns.values()))) if len(columns) == 1 else None


def _times(eight_bytes: pl.Series) -> pl.Series:
    return eight_bytes.bin.reinterpret(dtype=pl.Int64(), endianness="big")


def _require_length(items: pl.Series, wanted: int, rows: pl.DataFrame, where: str, what: str) -> None:
    short = (items.bin.size() < wanted).arg_true()
    if len(short):
        raise MigrationError(
            f"{where}, offset {rows['offset'][short[0]]}: {items[short[0]]!r} is too short for a "
            f"{what}; check the store's kind and serdes"
        )
