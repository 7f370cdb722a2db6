"""Suppression: a table's updates held back until their window closes or a time has passed (KIP-328).

A suppression until the window closes that directly follows its aggregation is evaluated together with it
(``final_results`` and ``data_windows``). Which record makes which rows leave the buffer is decided in
``suppression_order``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import polars as pl

from weir.pipelines.operators.epoch import Epoch
from weir.pipelines.operators.fold import PLACE
from weir.pipelines.operators.idle import NOWHERE
from weir.pipelines.operators.suppression_order import BufferLimits, Held, Walk
from weir.pipelines.operators.table_view import SuppressedTable
from weir.pipelines.serdes.shapes import TIME
from weir.state.engine.figures import Values
from weir.state.stores.codec import KeyCodec, RowCodec
from weir.state.stores.expiry import ExpiryIndex
from weir.state.stores.specs import BOOKKEEPING, GONE, HELD_HEADERS, SHOWN, SINCE
from weir.state.stores.typed import TypedStore
from weir.state.types import StoreSpec

HELD_BYTES = "_held_bytes:"
"""Prefix of a clock, before the name of a suppression's store: how many bytes its buffer holds."""
READ_AHEAD = 1_000
"""How many rows of the buffer are read at a time."""


@dataclass(frozen=True, kw_only=True)
class Suppression:
    """Buffers the newest update of each key; forwards it when it is due, or early when the buffer is full.

    A key's place in the buffer is the end of its window if windows have to close, else the first timestamp since the
    key entered it; only an update with an older timestamp moves it, to that time. If updates restart the wait, it is
    the greatest timestamp since the key entered it. A row leaves once stream time reaches
    its place plus ``delay_ms``: the oldest place first, then, if windows need not close, by its own timestamp, then by
    key. Rows keep their ``_ts``; ``_partition`` and ``_offset`` are those of the record that made them leave.
    """

    store: StoreSpec
    delay_ms: int
    is_final: bool
    """Whether windows have to close; tombstones are not forwarded then."""
    limits: BufferLimits
    restarts: bool = False
    """Whether each update of a key restarts its wait."""
    looked_up: SuppressedTable | None = None
    """The table as others look it up, for which the buffer keeps what was forwarded; None if nobody does."""

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        stream_time = epoch.advance(self.store.name, rows.get_column("_ts"))
        place = pl.col("window_end") if self.is_final else pl.col("_ts").cast(TIME)
        rows = rows.with_columns_seq(place.alias(SINCE), pl.col("_deleted").alias(GONE))
        buffer = self._buffer(epoch)
        if self.is_final and not self.limits:
            return self._closed(rows, stream_time, buffer, epoch)
        if self.looked_up is not None:
            rows = rows.with_columns_seq(pl.lit(None, self.store.value[SHOWN]).alias(SHOWN))
        keys = buffer.store.encode(rows)
        walk = buffer.walk(rows, keys, self.limits, restarts=self.restarts)
        walk.run(
            keys,
            _ms(rows.get_column(SINCE)),
            buffer.ties(rows),
            buffer.sizes(keys, rows),
            (stream_time - self.delay_ms).to_list(),
        )
        left = buffer.candidates()[[ref for _, ref, _ in walk.left]]
        buffer.settle(walk, self._shown(rows, left, epoch))
        if not walk.left:
            return self._forwarded(rows.clear())
        turns = [turn for turn, _, _ in walk.left]
        places = pl.Series([place_ms for _, _, place_ms in walk.left])
        self._note_overtime(left, places, stream_time[turns], epoch)
        return self._forwarded(pl.concat([left, rows.select_seq(PLACE)[turns]], how="horizontal"))

    def _note_overtime(self, left: pl.DataFrame, places_ms: pl.Series, stream_time: pl.Series, epoch: Epoch) -> None:
        """Note how far stream time is beyond the updates that have waited out the time limit."""
        if self.is_final or not left.height:
            return
        is_due = places_ms + self.delay_ms <= stream_time
        waited = (stream_time - left.get_column("_ts")).filter(is_due)
        overtime = Values.over(waited.to_numpy())
        if overtime.count:
            epoch.overtimes[self.store.name] = epoch.overtimes.get(self.store.name, Values()) + overtime

    def _shown(self, rows: pl.DataFrame, left: pl.DataFrame, epoch: Epoch) -> pl.DataFrame | None:
        """What has been forwarded last of each key of ``rows``, after the rows that have ``left``: key columns and
        ``SHOWN``; None if nobody looks the table up."""
        if self.looked_up is None:
            return None
        by, names = list(self.store.key), [name for name in self.store.value if name not in BOOKKEEPING]
        before = self.looked_up.before(rows.select_seq(by).unique(maintain_order=True), epoch)
        parts = [
            part.select_seq(*by, *names, "_ts", gone.alias("_deleted"))
            for part, gone in ((before, pl.col("_deleted")), (left, pl.col(GONE)))
        ]
        last = pl.concat(parts).unique(by, keep="last", maintain_order=True)
        struct = pl.when(~pl.col("_deleted")).then(pl.struct(*names, "_ts"))
        return last.select_seq(*by, struct.cast(self.store.value[SHOWN]).alias(SHOWN))

    def _closed(self, rows: pl.DataFrame, stream_time: pl.Series, buffer: _Buffer, epoch: Epoch) -> pl.DataFrame:
        """Write the newest rows and take out what has closed; without limits, the order of records does not matter."""
        by = list(self.store.key)
        buffer.put(rows.unique(by, keep="last", maintain_order=True))
        return self._due(buffer, stream_time, rows.select_seq(PLACE), epoch)

    @property
    def clock(self) -> str:
        return self.store.name

    def next_close_ms(self, epoch: Epoch) -> int | None:
        oldest_ms = ExpiryIndex(self.store, epoch.session).oldest_ms()
        return None if oldest_ms is None else oldest_ms + self.delay_ms

    def close(self, before_ms: int, epoch: Epoch) -> pl.DataFrame | None:
        """The rows that are due."""
        rows = self._due(self._buffer(epoch), pl.Series([epoch.clocks[self.store.name]]), NOWHERE, epoch)
        return rows if rows.height else None

    def _due(self, buffer: _Buffer, stream_time: pl.Series, places: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        """Take out what is due; ``places`` are those of the records at whose turns stream time was ``stream_time``."""
        due = buffer.take_through(int(stream_time[-1]) - self.delay_ms).sort(SINCE, buffer.tie, *self.store.key)
        places_ms = due.get_column(SINCE).dt.timestamp("ms")
        turns = stream_time.search_sorted(places_ms + self.delay_ms, side="left")
        self._note_overtime(due, places_ms, stream_time[turns], epoch)
        return self._forwarded(pl.concat([due, places[turns]], how="horizontal"))

    def _buffer(self, epoch: Epoch) -> _Buffer:
        return _Buffer(self.store, epoch, tie=SINCE if self.is_final else "_ts")

    def _forwarded(self, left: pl.DataFrame) -> pl.DataFrame:
        user_columns = [name for name in self.store.value if name not in BOOKKEEPING]
        if self.is_final:
            left = left.filter(~pl.col(GONE))
        headers = [HELD_HEADERS] if HELD_HEADERS in self.store.value else []
        return left.select_seq(*self.store.key, *user_columns, "_ts", *PLACE, pl.col(GONE).alias("_deleted"), *headers)


class _Buffer:
    """The rows that a suppression holds, with their index by place, during one batch.

    ``tie`` is the column that decides, before the key, which of several rows at one place leaves first.
    """

    def __init__(self, spec: StoreSpec, epoch: Epoch, *, tie: str) -> None:
        self.tie = tie
        self.store, self._index = TypedStore(spec, epoch.session), ExpiryIndex(spec, epoch.session)
        self._spec, self._epoch, self._clock = spec, epoch, HELD_BYTES + spec.name
        self._sizes = _user_codec(spec)
        self._columns = [*spec.key, *spec.value, "_ts"]
        self._candidates: list[pl.DataFrame] = []
        self._seen = 0
        self._before: dict[bytes, Held] = {}

    def ties(self, rows: pl.DataFrame) -> list[int]:
        return _ms(rows.get_column(self.tie).cast(TIME))

    def sizes(self, keys: list[bytes], rows: pl.DataFrame) -> list[int]:
        """Bytes of keys and rows, without Weir's own columns."""
        return [len(key) + len(value) for key, value in zip(keys, self._sizes.encode(rows), strict=True)]

    def walk(self, rows: pl.DataFrame, keys: list[bytes], limits: BufferLimits, *, restarts: bool) -> Walk:
        """A walk that begins with what is held; rows that may leave are remembered as candidates."""
        self._remember(rows.select_seq(self._columns))
        known = list(dict.fromkeys(keys))
        self._before = {held.key: held for held in self._held(known)}
        return Walk(
            name=self._spec.name,
            limits=limits,
            restarts=restarts,
            count=self.store.count(),
            size=self._epoch.clocks.get(self._clock, 0),
            held=dict(self._before),
            others=self._others(set(known)),
        )

    def candidates(self) -> pl.DataFrame:
        return pl.concat(self._candidates)

    def settle(self, walk: Walk, shown: pl.DataFrame | None) -> None:
        """Write the changes that the walk made to the buffer, with what was ``shown`` of their keys."""
        gone = [held for key, held in self._before.items() if key not in walk.held] + walk.others_left
        moved = [(held, self._before.get(key)) for key, held in walk.held.items() if held != self._before.get(key)]
        self._index.remove([(held.key, held.place_ms) for held in gone])
        self._index.remove([(old.key, old.place_ms) for new, old in moved if old and old.place_ms != new.place_ms])
        self._index.put([(new.key, new.place_ms) for new, old in moved if old is None or old.place_ms != new.place_ms])
        self.store.delete([held.key for held in gone])
        if moved:
            places = pl.Series(SINCE, [new.place_ms for new, _ in moved], dtype=pl.Int64).cast(TIME)
            rows = self._candidates[0][[new.ref for new, _ in moved]].with_columns_seq(places)
            if shown is not None:
                by = list(self._spec.key)
                rows = rows.drop(SHOWN).join(shown, on=by, how="left", nulls_equal=True, maintain_order="left")
            self.store.write([new.key for new, _ in moved], rows)
        self._epoch.clocks[self._clock] = walk.size

    def put(self, newest: pl.DataFrame) -> None:
        """Write one row per key, whose place never changes; a tombstone removes the row."""
        keys = self.store.encode(newest)
        before = self._held(keys)
        size = self._epoch.clocks.get(self._clock, 0) - sum(held.size for held in before)
        is_gone = newest.get_column(GONE).to_list()
        kept = [
            (key, place)
            for key, place, gone in zip(keys, _ms(newest.get_column(SINCE)), is_gone, strict=True)
            if not gone
        ]
        rows = newest.filter(~pl.col(GONE))
        names = [key for key, _ in kept]
        gone = {key for key, is_tombstone in zip(keys, is_gone, strict=True) if is_tombstone}
        self._index.remove([(held.key, held.place_ms) for held in before if held.key in gone])
        self.store.delete(list(gone))
        self._index.put(kept)
        self.store.write(names, rows)
        self._epoch.clocks[self._clock] = size + sum(self.sizes(names, rows))

    def take_through(self, place_ms: int) -> pl.DataFrame:
        """Take out the rows with places up to ``place_ms``."""
        due = self._index.between(None, place_ms)
        keys = [key for key, _ in due]
        rows = self._rows(keys)
        self._index.remove(due)
        self.store.delete(keys)
        self._epoch.clocks[self._clock] = self._epoch.clocks.get(self._clock, 0) - sum(self.sizes(keys, rows))
        return rows

    def _others(self, known: set[bytes]) -> Iterator[Held]:
        """The rows of other keys, in the order in which they leave."""
        entries = (entry for entry in self._index.in_order() if entry[0] not in known)
        groups = (list(group) for _, group in groupby(entries, key=lambda entry: entry[1]))
        while ahead := _at_least(READ_AHEAD, groups):
            yield from sorted(self._held([key for key, _ in ahead]))

    def _held(self, keys: list[bytes]) -> list[Held]:
        """Those of ``keys`` that are held; their rows become candidates."""
        found = self.store.fetch(keys)
        keys = [key for key, is_held in zip(keys, found.get_column("_found").to_list(), strict=True) if is_held]
        if not keys:
            return []
        rows = pl.concat([self.store.decode(keys), found.filter("_found")], how="horizontal").select_seq(self._columns)
        first = self._remember(rows)
        return [
            Held(*parts)
            for parts in zip(
                _ms(rows.get_column(SINCE)),
                self.ties(rows),
                keys,
                self.sizes(keys, rows),
                range(first, first + len(keys)),
                strict=True,
            )
        ]

    def _rows(self, keys: list[bytes]) -> pl.DataFrame:
        return pl.concat([self.store.decode(keys), self.store.fetch(keys)], how="horizontal").select_seq(self._columns)

    def _remember(self, rows: pl.DataFrame) -> int:
        self._candidates.append(rows)
        self._seen += rows.height
        return self._seen - rows.height


def held_bytes(spec: StoreSpec, rows: pl.DataFrame) -> int:
    """How many bytes ``rows`` (key and value columns, ``_ts``) are in the buffer ``spec``, as it counts them."""
    keys = KeyCodec(spec.key, spec.kind).encode(rows)
    return sum(map(len, keys)) + sum(map(len, _user_codec(spec).encode(rows)))


def _user_codec(spec: StoreSpec) -> RowCodec:
    """Packs rows without Weir's own columns."""
    return RowCodec(pl.Schema({name: dtype for name, dtype in spec.value.items() if name not in BOOKKEEPING}))


def _at_least(count: int, groups: Iterator[list[tuple[bytes, int]]]) -> list[tuple[bytes, int]]:
    """The entries of the next whole groups until there are at least ``count``, or all that are left."""
    taken: list[tuple[bytes, int]] = []
    while len(taken) < count and (group := next(groups, None)):
        taken += group
    return taken


def _ms(times: pl.Series) -> list[int]:
    return times.dt.timestamp("ms").to_list()
