"""The changelog of a suppression's buffer in Kafka Streams, version 3 of its records (since Kafka 2.4.1).

A record's key is the table's key, followed by the window's start, or a session's end and start, if it is windowed. The
value is the context of the buffered update (timestamp, offset, topic, partition, headers), the value before the buffer,
the old and the new value, and the place in the buffer: the end of the window, or the time of the first update. A length
of -1 stands for no value, -2 for the same as the old one.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from weir.pipelines.migrate.errors import MigrationError
from weir.pipelines.migrate.formats import TIME_BYTES, records, session_keys, split_key
from weir.pipelines.migrate.serdes import Part
from weir.pipelines.serdes.headers import HEADERS_TYPE
from weir.pipelines.serdes.shapes import TIME
from weir.state.stores.specs import BOOKKEEPING, GONE, HELD_HEADERS, SINCE
from weir.state.types import StoreSpec

NONE, SAME = -1, -2


@dataclass(frozen=True, kw_only=True)
class SuppressionFormat:
    """A buffer's newest update of each key. Kafka Streams writes its records with the time of the writing."""

    store: StoreSpec
    key: Part
    value: Part
    topic: str
    """Named in the context of records to be written."""
    window_size_ms: int | None
    """The size of the windows in the key; None if it has none or they are sessions."""
    is_session: bool
    is_timed = False
    keeps_versions = False
    keeps_places = True
    headers: Sequence[tuple[str, bytes]] = (("v", b"\x03"),)

    @property
    def config(self) -> Mapping[str, str]:
        return {"cleanup.policy": "compact"}

    def decode(self, rows: pl.DataFrame, where: str) -> pl.DataFrame:
        keys, bounds = rows["key"], []
        if self.is_session:
            keys, (end, start) = split_key(rows, (TIME_BYTES, TIME_BYTES), 0, where, "key with a session")
            bounds = [start.alias("window_start"), end.alias("window_end")]
        elif self.window_size_ms is not None:
            keys, (start,) = split_key(rows, (TIME_BYTES,), 0, where, "key with a window")
            bounds = [start.alias("window_start"), (start + self.window_size_ms).alias("window_end")]
        held = [
            _parsed(value, offset, where)
            for value, offset in zip(rows["value"].to_list(), rows["offset"].to_list(), strict=True)
        ]
        times, values, places = ([row[index] for row in held] for index in range(3))
        new = pl.Series(values, dtype=pl.Binary())
        there = new.is_not_null()
        decoded = pl.DataFrame(self.value.decode(new.filter(there), rows["offset"].filter(there), where))
        at = pl.select(pl.when(there).then(there.cum_sum() - 1)).to_series()
        return (
            pl.DataFrame(
                [
                    *self.key.decode(keys, rows["offset"], where),
                    *bounds,
                    *(decoded[name].gather(at) for name in decoded.columns),
                    pl.Series(SINCE, places, dtype=pl.Int64()).cast(TIME),
                    (~there).alias(GONE),
                    pl.Series(HELD_HEADERS, [None] * rows.height, HEADERS_TYPE),
                    pl.Series("_ts", times, dtype=pl.Int64()),
                    rows["offset"].alias("_order"),
                ]
            )
            .select(*self.store.key, *self.store.value, "_ts", "_order")
            .cast(self.store.key)
        )

    def encode(self, rows: pl.DataFrame) -> pl.DataFrame:
        keys, topic = self.key.encode(rows), self.topic.encode()
        if self.is_session:
            keys = session_keys(keys, rows)
        elif self.window_size_ms is not None:
            starts = rows["window_start"].dt.timestamp("ms").to_list()
            keys = [key + struct.pack(">q", start) for key, start in zip(keys, starts, strict=True)]
        new = iter(self.value.encode(rows.filter(~pl.col(GONE))))
        values: list[bytes | None] = []
        for time, gone, place in zip(
            rows["_ts"].to_list(), rows[GONE].to_list(), rows[SINCE].dt.timestamp("ms").to_list(), strict=True
        ):
            value = b"" if gone else next(new)
            values.append(
                struct.pack(f">qqi{len(topic)}sii", time, 0, len(topic), topic, 0, 0)
                + struct.pack(">iii", NONE, NONE, NONE if gone else len(value))
                + value
                + struct.pack(">q", place)
            )
        return records(keys, values, [None] * len(keys))


def held_columns(store: StoreSpec) -> pl.Schema:
    """The table's value columns in a buffer."""
    return pl.Schema({name: dtype for name, dtype in store.value.items() if name not in BOOKKEEPING})


def _parsed(value: bytes, offset: int, where: str) -> tuple[int, bytes | None, int]:
    """The timestamp, the new value and the place in the buffer."""
    try:
        time, _, length = struct.unpack_from(">qqi", value)
        at = 20 + length
        _, headers = struct.unpack_from(">ii", value, at)
        at += 8
        for _ in range(2 * max(headers, 0)):  # names and values
            (length,) = struct.unpack_from(">i", value, at)
            at += 4 + max(length, 0)
        items: list[bytes | None] = []
        for _ in ("prior", "old", "new"):
            (length,) = struct.unpack_from(">i", value, at)
            at += 4
            items.append(value[at : at + length] if length >= 0 else None)
            at += max(length, 0)
        (place,) = struct.unpack_from(">q", value, at)
        if at + TIME_BYTES != len(value) or length < NONE:
            raise ValueError("its lengths do not add up")
    except (struct.error, ValueError) as error:
        raise MigrationError(
            f"{where}, offset {offset}: this is not a record of a suppression's buffer as Kafka Streams has written it "
            f"since version 2.4.1 ({error}); run the application with a newer version until its buffer has emptied"
        ) from None
    return time, items[2], place
