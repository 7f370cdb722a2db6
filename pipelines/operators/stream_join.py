"""Stream-stream joins: records of two streams that share a key and are close in time, and records without a match.

Each side keeps its records; a record is joined with those of the other side that came before it. In a left or outer
join, records without a match wait in a third store until their window and the grace are over (KIP-633, section 18
rules 9 and 10 of the reference). Everything is evaluated over columns; a record's position among all records of the
batch, left and right, decides what it sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from weir.pipelines.operators.epoch import Epoch
from weir.pipelines.operators.fold import PLACE
from weir.pipelines.operators.idle import NOWHERE
from weir.pipelines.operators.join_windows import JoinWindows
from weir.pipelines.operators.joiner import Joiner
from weir.pipelines.serdes.shapes import TIME
from weir.state.stores.access import StoreTime
from weir.state.stores.codec import PRESENT, time_bytes
from weir.state.stores.key_value import KeyValueStore
from weir.state.stores.typed import TypedStore
from weir.state.types import StoreSpec

BEFORE_ALL = -(1 << 62)
NEVER = 1 << 62


@dataclass(frozen=True, kw_only=True)
class StreamSide:
    """One of the two streams."""

    store: StoreSpec
    """Its records by key, time (``_at``) and number (``_seq``)."""
    key: tuple[str, ...]
    """The key columns of its records; pairs have them under the left side's names."""
    names: Mapping[str, str]
    """Its value columns and their names in pairs."""
    back_ms: int
    """How much older than its record a record of the other side may be."""
    on_ms: int
    """How much newer than its record a record of the other side may be."""
    is_outer: bool
    """Whether its records are forwarded without a match too."""


@dataclass(frozen=True)
class _Side:
    """A side's records of one batch that have key and value, and the earlier records it still holds for their keys."""

    rows: pl.DataFrame
    """Key columns, pair values, ``_ts``, ``_seq``, ``_pos`` (the position in the batch, -1 for earlier records)."""
    clock: np.ndarray
    """Stream time of the side's store after each of its records."""
    positions: np.ndarray
    """The positions of its records."""
    first_clock: int

    def clock_at(self, positions: np.ndarray) -> np.ndarray:
        """The store's stream time when the record at each position arrives."""
        found = np.searchsorted(self.positions, positions) - 1
        return np.where(found >= 0, self.clock[found] if len(self.clock) else 0, self.first_clock)


@dataclass(frozen=True, kw_only=True)
class StreamJoin:
    """Pairs have the greater of the two timestamps; a record without a match has its own.

    Null values are dropped and counted. So are null keys, except on a side whose records are forwarded without a
    match: there they are forwarded at once.
    """

    left: StreamSide
    right: StreamSide
    held: StoreSpec | None
    """Records that wait for a match, by time, side (right first), key and number."""
    windows: JoinWindows
    joiner: Joiner
    is_right_first: bool
    """Whether a record that is on both sides arrives on the right side first."""

    def process_all(self, inputs: Sequence[pl.DataFrame], epoch: Epoch) -> pl.DataFrame:
        arrivals = self._arrivals(inputs, epoch)
        one, other = (rows.filter("_is_met") for rows in arrivals)
        left, right = self._side(self.left, one, other, epoch), self._side(self.right, other, one, epoch)
        sides, met = [left, right], self._met(left, right)
        parts = [self._paired(left, right, met)]
        if self.held is not None:
            parts += self._unmatched(arrivals, sides, met, self.held, epoch)
        for side, part in zip((self.left, self.right), sides, strict=True):
            new = part.rows.filter(pl.col("_pos") >= 0)
            store = KeyValueStore(side.store, epoch.session, StoreTime(clocks=epoch.clocks, now_ms=epoch.now_ms))
            store.put_rows(new.with_columns_seq(_at=pl.col("_ts").cast(TIME)))
            epoch.note_expired(side.store.name, store.expired_puts)
        key = list(self.joiner.key_columns)
        found = pl.concat([part for part in parts if part.height] or parts[:1])
        found = found.sort("_pos", "_phase", "_time", "_is_left", *key, "_seq", maintain_order=True)
        by_place = pl.concat([rows.select_seq("_pos", "_partition", "_offset") for rows in arrivals])
        return self._joined(found.join(by_place, on="_pos", how="left", maintain_order="left"))

    @property
    def _retention_ms(self) -> int:
        """How long each side is kept, by its own stream time."""
        assert self.left.store.retention_ms is not None
        return self.left.store.retention_ms

    @property
    def clock(self) -> str:
        """Both sides' stream time."""
        return f"{self.left.store.name}&{self.right.store.name}"

    def next_close_ms(self, epoch: Epoch) -> int | None:
        oldest = epoch.session.first(self.held.name) if self.held else None
        if self.held is None or oldest is None:
            return None
        at = TypedStore(self.held, epoch.session).decode([oldest[0]]).get_column("_at").dt.timestamp("ms")[0]
        near = self._waiting(self.held, at + abs(self.left.on_ms - self.right.on_ms) + 1, epoch)
        return max(int(self._last_ms(near).min()), epoch.clocks[self.clock]) + 1  # type: ignore[arg-type]

    def close(self, before_ms: int, epoch: Epoch) -> pl.DataFrame | None:
        """Records whose wait expired unmatched, as if records of both sides had arrived at this stream time."""
        if self.held is None:
            return None
        now_ms = epoch.clocks[self.clock]
        for side in (self.left, self.right):
            epoch.clocks[side.store.name] = max(now_ms, epoch.clocks.get(side.store.name, now_ms))
        waiting = self._waiting(self.held, now_ms, epoch)
        out = waiting.filter(self._last_ms(waiting) < now_ms)
        if out.is_empty():
            return None
        store = TypedStore(self.held, epoch.session)
        store.delete(store.encode(out))
        out = out.sort("_ts", "_is_left", *self.joiner.key_columns, "_seq").hstack(NOWHERE[[0] * out.height])
        return self._joined(out.with_columns_seq(_left_gone=~pl.col("_is_left"), _right_gone=pl.col("_is_left")))

    def _joined(self, pairs: pl.DataFrame) -> pl.DataFrame:
        return self.joiner.join(
            pairs.select_seq(
                *self.joiner.key_columns,
                *self.joiner.pair_values,
                "_ts",
                *PLACE,
                pl.lit(False).alias("_deleted"),
                "_left_gone",
                "_right_gone",
            )
        )

    def _arrivals(self, inputs: Sequence[pl.DataFrame], epoch: Epoch) -> list[pl.DataFrame]:
        """Both sides in pair columns, with ``_pos``, ``_seq``, ``_stream_time``, and whether they can match at all."""
        key = list(self.joiner.key_columns)
        sides = []
        for side, rows in zip((self.left, self.right), inputs, strict=True):
            pair = [rows.get_column(name).alias(known) for name, known in zip(side.key, key, strict=True)]
            pair += [rows.get_column(name).alias(known) for name, known in side.names.items() if known not in key]
            sides.append(
                pl.DataFrame([*pair, *rows.select_seq("_ts", "_partition", "_offset", "_deleted").get_columns()])
            )
        turns = np.concatenate([rows.get_column("_offset").to_numpy() for rows in sides])
        arrives = np.repeat([self.is_right_first, not self.is_right_first], [rows.height for rows in sides])
        order = np.lexsort((arrives, turns))
        positions = np.empty(len(turns), np.int64)
        positions[order] = np.arange(len(turns))
        times = np.concatenate([rows.get_column("_ts").to_numpy() for rows in sides])
        stream_time = epoch.advance(self.clock, pl.Series(times[order]))[positions]
        found, start = [], 0
        for side, rows in zip((self.left, self.right), sides, strict=True):
            count = f"_rows:{side.store.name}"
            first = epoch.clocks.get(count, 0)
            epoch.clocks[count] = first + rows.height
            end = start + rows.height
            has_key = pl.any_horizontal(pl.col(key).is_not_null())
            rows = rows.with_columns_seq(
                pl.Series("_pos", positions[start:end]),
                stream_time[start:end].alias("_stream_time"),
                _seq=first + pl.int_range(pl.len(), dtype=pl.Int64),
                _is_met=has_key & ~pl.col("_deleted"),
                _is_alone=~has_key & ~pl.col("_deleted") & pl.lit(side.is_outer),
            )
            null_values = int(rows.get_column("_deleted").sum())
            epoch.counts["null_values"] += null_values
            epoch.counts["null_keys"] += (
                rows.height
                - null_values
                - int(rows.get_column("_is_met").sum())
                - int(rows.get_column("_is_alone").sum())
            )
            found.append(rows)
            start = end
        return found

    def _side(self, side: StreamSide, rows: pl.DataFrame, others: pl.DataFrame, epoch: Epoch) -> _Side:
        """A side's records of the batch, preceded by the earlier ones that the other side's records may match."""
        key, time = list(self.joiner.key_columns), StoreTime(clocks=epoch.clocks, now_ms=epoch.now_ms)
        store = KeyValueStore(side.store, epoch.session, time)
        wanted = others.group_by(key, maintain_order=True).agg(
            (pl.col("_ts").min() - side.on_ms).alias("_from"), (pl.col("_ts").max() + side.back_ms).alias("_to")
        )
        bounds = [
            wanted.with_columns_seq(_at=bound.cast(TIME), _seq=pl.lit(BEFORE_ALL, pl.Int64))
            for bound in (pl.col("_from"), pl.col("_to") + 1)
        ]
        kept = store.get_ranges(*bounds)
        values = [name for name in side.names.values() if name not in key]
        columns = [*key, *values, "_ts", "_seq", "_pos"]
        every = pl.concat(
            [kept.with_columns_seq(_pos=pl.lit(-1, pl.Int64)).select_seq(columns), rows.select_seq(columns)]
        )
        first_clock = epoch.clocks.get(side.store.name, BEFORE_ALL)
        in_order = rows.sort("_pos")
        clock = np.maximum.accumulate(np.maximum(in_order.get_column("_ts").to_numpy(), first_clock))
        return _Side(every, clock, in_order.get_column("_pos").to_numpy(), first_clock)

    def _met(self, left: _Side, right: _Side) -> pl.DataFrame:
        """Rows ``_l`` and ``_r`` of the two sides that match, and the position of the later one, ``_pos``."""
        key, windows = list(self.joiner.key_columns), self.windows
        width = windows.before_ms + windows.after_ms + 1
        ours, theirs = (
            side.rows.with_row_index(index).select_seq(*key, index, "_ts", "_pos")
            for side, index in ((left, "_l"), (right, "_r"))
        )
        ours = pl.concat(
            [
                ours.with_columns_seq(_bucket=(pl.col("_ts") - windows.before_ms) // width),
                ours.with_columns_seq(_bucket=(pl.col("_ts") + windows.after_ms) // width).filter(
                    pl.col("_bucket") != (pl.col("_ts") - windows.before_ms) // width
                ),
            ]
        )
        theirs = theirs.with_columns_seq(_bucket=pl.col("_ts") // width)
        is_new = pl.col("_pos") >= 0
        distance = pl.col("_ts_right") - pl.col("_ts")
        met = pl.concat(
            [
                one.join(other, on=[*key, "_bucket"], nulls_equal=True).filter(
                    distance.is_between(-windows.before_ms, windows.after_ms)
                )
                for one, other in ((ours.filter(is_new), theirs), (ours.filter(~is_new), theirs.filter(is_new)))
            ]
        )
        is_left_later = pl.col("_pos") > pl.col("_pos_right")
        met = met.with_columns_seq(pl.max_horizontal("_pos", "_pos_right").alias("_pos"), _is_left_later=is_left_later)
        later = met.get_column("_pos").to_numpy()
        earlier_time = (
            met.select_seq(pl.when("_is_left_later").then("_ts_right").otherwise("_ts")).to_series().to_numpy()
        )
        clock = np.where(met.get_column("_is_left_later").to_numpy(), right.clock_at(later), left.clock_at(later))
        return met.select_seq("_l", "_r", "_pos", "_is_left_later").filter(
            pl.Series(earlier_time > clock - self._retention_ms)
        )

    def _paired(self, left: _Side, right: _Side, met: pl.DataFrame) -> pl.DataFrame:
        """The pairs of matching records, with the time and number of the older record for their order."""
        ours, theirs = left.rows[met.get_column("_l")], right.rows[met.get_column("_r")]
        theirs = theirs.rename({"_ts": "_other_ts", "_seq": "_other_seq"})
        key = list(self.joiner.key_columns)
        is_left_later = met.get_column("_is_left_later")
        other = pl.DataFrame(
            [
                *ours.select_seq("_ts", "_seq").get_columns(),
                is_left_later,
                *theirs.select_seq("_other_ts", "_other_seq").get_columns(),
            ]
        )
        order = other.select_seq(
            pl.max_horizontal("_ts", "_other_ts").alias("_ts"),
            pl.when("_is_left_later").then("_other_ts").otherwise("_ts").alias("_time"),
            pl.when("_is_left_later").then("_other_seq").otherwise("_seq").alias("_seq"),
        )
        values = [
            column
            for column in (*ours.get_columns(), *theirs.drop(key).get_columns())
            if not column.name.startswith("_")
        ]
        pairs = pl.DataFrame([*values, *order.get_columns(), met.get_column("_pos")])
        return self._part(
            pairs.with_columns_seq(
                _phase=pl.lit(1), _is_left=pl.lit(False), _left_gone=pl.lit(False), _right_gone=pl.lit(False)
            )
        )

    def _unmatched(
        self, arrivals: list[pl.DataFrame], sides: list[_Side], met: pl.DataFrame, spec: StoreSpec, epoch: Epoch
    ) -> list[pl.DataFrame]:
        """The records forwarded without a match; others wait in the store ``spec``."""
        at_once, waiting, matched = [], [], []
        for is_left, side, rows, part in zip((True, False), (self.left, self.right), arrivals, sides, strict=True):
            if not side.is_outer:
                continue
            index = "_l" if is_left else "_r"
            on_arrival = met.filter(pl.col("_is_left_later") == is_left).get_column(index)
            afterwards = (
                met.filter(pl.col("_is_left_later") != is_left)
                .group_by(index)
                .agg(pl.col("_pos").min().alias("_matched"))
            )
            known = part.rows.with_row_index(index).join(afterwards, on=index, how="left", maintain_order="left")
            new = known.filter((pl.col("_pos") >= 0) & ~pl.col(index).is_in(on_arrival.implode()))
            new = new.join(rows.select_seq("_pos", "_stream_time"), on="_pos", how="left", maintain_order="left")
            is_over = pl.col("_ts") + side.on_ms < pl.col("_stream_time")
            at_once += [self._alone(new.filter(is_over), is_left), self._alone(rows.filter("_is_alone"), is_left)]
            waiting.append(self._alone(new.filter(~is_over), is_left))
            matched.append(self._alone(known.filter((pl.col("_pos") < 0) & pl.col("_matched").is_not_null()), is_left))
        flushes = pl.concat(
            [
                rows.filter(pl.col("_is_met") & (pl.col("_ts") == pl.col("_stream_time"))).select_seq(
                    "_pos", "_stream_time"
                )
                for rows in arrivals
            ]
        ).sort("_pos")
        store = TypedStore(spec, epoch.session)
        gone = pl.concat(matched)
        every = pl.concat([self._due(spec, flushes, gone, epoch), *waiting])
        last_ms = self._last_ms(every)
        flush = np.maximum(
            np.searchsorted(flushes.get_column("_stream_time"), last_ms, side="right"),
            np.searchsorted(flushes.get_column("_pos"), every.get_column("_pos"), side="right"),
        )
        places = np.append(flushes.get_column("_pos").to_numpy(), NEVER)[flush]
        flushed = pl.Series(places)
        is_out = (flushed < NEVER) & (flushed <= every.get_column("_matched").fill_null(NEVER))
        stays = every.filter(~is_out & (pl.col("_pos") >= 0) & pl.col("_matched").is_null())
        out = every.with_columns_seq(flushed.alias("_place")).filter(is_out)
        store.delete(store.encode(pl.concat([gone, out.filter(pl.col("_pos") < 0).drop("_place")])))
        store.write(store.encode(stays), stays)
        parts = [part.with_columns_seq(_phase=pl.lit(1)) for part in at_once]
        parts.append(out.with_columns_seq(pl.col("_place").alias("_pos"), _phase=pl.lit(0)))
        return [
            self._part(
                part.with_columns_seq(
                    _time=pl.col("_ts"), _left_gone=~pl.col("_is_left"), _right_gone=pl.col("_is_left")
                )
            )
            for part in parts
        ]

    def _alone(self, rows: pl.DataFrame, is_left: bool) -> pl.DataFrame:
        """Records of one side as the store of waiting records has them, with ``_pos`` and ``_matched``."""
        values = [
            pl.col(name) if name in rows.columns else pl.lit(None, dtype).alias(name)
            for name, dtype in self.joiner.pair_values.items()
        ]
        matched = pl.col("_matched") if "_matched" in rows.columns else pl.lit(None, pl.Int64).alias("_matched")
        return rows.select_seq(
            pl.col("_ts").cast(TIME).alias("_at"),
            pl.lit(is_left).alias("_is_left"),
            *self.joiner.key_columns,
            "_seq",
            *values,
            "_ts",
            "_pos",
            matched,
        )

    def _last_ms(self, rows: pl.DataFrame) -> pl.Series:
        """The last stream time at which each of ``rows``, as ``_alone`` gives them, may still wait."""
        on_ms = rows.select_seq(pl.when("_is_left").then(self.left.on_ms).otherwise(self.right.on_ms)).to_series()
        return rows.get_column("_ts") + on_ms + self.windows.grace_ms

    def _waiting(self, spec: StoreSpec, before_ms: int, epoch: Epoch) -> pl.DataFrame:
        """The rows of the store ``spec`` with times before ``before_ms``."""
        store = TypedStore(spec, epoch.session)
        keys, rows = store.scan(b"", PRESENT + time_bytes(before_ms))
        return store.decode(keys).hstack(rows)

    def _due(self, spec: StoreSpec, flushes: pl.DataFrame, matched: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        """The waiting records that the newest flush of the batch may release, as ``_alone`` gives them."""
        reach = min(side.on_ms for side in (self.left, self.right) if side.is_outer) + self.windows.grace_ms
        newest_ms = int(flushes.get_column("_stream_time")[-1]) if flushes.height else BEFORE_ALL
        held = self._waiting(spec, newest_ms - reach, epoch)
        held = held.with_columns_seq(_pos=pl.lit(-1, pl.Int64))
        names = list(spec.key)
        found = held.join(matched.select_seq(*names, "_matched"), on=names, how="left", nulls_equal=True)
        return found.select_seq(matched.columns)

    def _part(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.select_seq(
            *self.joiner.key_columns,
            *self.joiner.pair_values,
            "_ts",
            "_pos",
            "_phase",
            "_time",
            "_is_left",
            "_seq",
            "_left_gone",
            "_right_gone",
        )
