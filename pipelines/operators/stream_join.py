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
from weir.pipelines.operators.kept_records import KeptRecords
from weir.pipelines.operators.stream_matches import Matches, Side, matches
from weir.pipelines.serdes.shapes import TIME
from weir.state.frames import framed, picked, repeated, where, with_series
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
        one, other = (where(rows, rows.get_column("_is_met")) for rows in arrivals)
        left, right = self._side(self.left, one, other, epoch), self._side(self.right, other, one, epoch)
        key = list(self.joiner.key_columns)
        met = matches(left, right, key, self.windows, self._retention_ms)
        found = self._paired(left, right, met)
        if self.held is not None:
            parts = [found, *self._unmatched(arrivals, [left, right], met, self.held, epoch)]
            found = pl.concat([part for part in parts if part.height] or parts[:1])
            found = found.sort("_pos", "_phase", "_time", "_is_left", *key, "_seq", maintain_order=True)
        for side, new in zip((self.left, self.right), (one, other), strict=True):
            store = KeyValueStore(side.store, epoch.session, StoreTime(clocks=epoch.clocks, now_ms=epoch.now_ms))
            new = with_series(new, new.get_column("_ts").cast(TIME).alias("_at"))
            KeptRecords.add(store, store.add_rows(new), epoch)
            epoch.note_expired(side.store.name, store.expired_puts)
        return self._joined(with_series(found, *_places(arrivals, found.get_column("_pos").to_numpy())))

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
        columns = (*self.joiner.key_columns, *self.joiner.pair_values, "_ts", *PLACE, "_left_gone", "_right_gone")
        return self.joiner.join(
            with_series(picked(pairs, columns), repeated("_deleted", False, pairs.height, np.bool_))
        )

    def _arrivals(self, inputs: Sequence[pl.DataFrame], epoch: Epoch) -> list[pl.DataFrame]:
        """Both sides in pair columns, with ``_pos``, ``_seq``, ``_stream_time``, and whether they can match at all."""
        key = list(self.joiner.key_columns)
        sides = []
        for side, rows in zip((self.left, self.right), inputs, strict=True):
            pair = [rows.get_column(name).alias(known) for name, known in zip(side.key, key, strict=True)]
            pair += [rows.get_column(name).alias(known) for name, known in side.names.items() if known not in key]
            sides.append(framed([*pair, *picked(rows, ("_ts", "_partition", "_offset", "_deleted")).get_columns()]))
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
            has_key = rows.get_column(key[0]).is_not_null()
            for name in key[1:]:
                has_key |= rows.get_column(name).is_not_null()
            is_given = ~rows.get_column("_deleted")
            is_met = has_key & is_given
            is_alone = (is_given & ~has_key) if side.is_outer else is_given & False
            rows = with_series(
                rows,
                pl.Series("_pos", positions[start:end]),
                stream_time[start:end].alias("_stream_time"),
                pl.Series("_seq", np.arange(first, first + rows.height)),
                is_met.alias("_is_met"),
                is_alone.alias("_is_alone"),
            )
            null_values = rows.height - int(is_given.sum())
            epoch.counts["null_values"] += null_values
            epoch.counts["null_keys"] += rows.height - null_values - int(is_met.sum()) - int(is_alone.sum())
            found.append(rows)
            start = end
        return found

    def _side(self, side: StreamSide, rows: pl.DataFrame, others: pl.DataFrame, epoch: Epoch) -> Side:
        """A side's records of the batch, preceded by the earlier ones that the other side's records may match."""
        kept = self._kept(side, others, epoch)
        every = pl.concat(
            [with_series(kept, repeated("_pos", -1, kept.height, np.int64)), picked(rows, [*kept.columns, "_pos"])]
        )
        first_clock = epoch.clocks.get(side.store.name, BEFORE_ALL)
        positions, times = rows.get_column("_pos").to_numpy(), rows.get_column("_ts").to_numpy()
        order = np.argsort(positions)
        clock = np.maximum.accumulate(np.maximum(times[order], first_clock))
        return Side(every, kept.height, clock, positions[order], first_clock)

    def _kept(self, side: StreamSide, others: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        """The earlier records of a side that those of the other side may match, perhaps among more: key columns, pair
        values, ``_ts``, ``_seq``."""
        key, time = list(self.joiner.key_columns), StoreTime(clocks=epoch.clocks, now_ms=epoch.now_ms)
        store = KeyValueStore(side.store, epoch.session, time)
        columns = [*key, *(name for name in side.names.values() if name not in key), "_ts", "_seq"]
        kept = KeptRecords.of(store, columns, others.height, epoch)
        if kept is not None and others.is_empty():
            return kept[:0]
        if kept is not None:
            times = others.get_column("_ts").to_numpy()
            from_ms, to_ms = int(times.min()) - side.on_ms, int(times.max()) + side.back_ms
            return where(kept, kept.get_column("_ts").is_between(from_ms, to_ms))
        wanted = others.group_by(key, maintain_order=True).agg(
            (pl.col("_ts").min() - side.on_ms).alias("_from"), (pl.col("_ts").max() + side.back_ms).alias("_to")
        )
        bounds = [
            wanted.with_columns_seq(_at=bound.cast(TIME), _seq=pl.lit(BEFORE_ALL, pl.Int64))
            for bound in (pl.col("_from"), pl.col("_to") + 1)
        ]
        return picked(store.get_ranges(*bounds), columns)

    def _paired(self, left: Side, right: Side, met: Matches) -> pl.DataFrame:
        """The pairs of matching records in order, with the time and number of the older record."""
        (times, numbers), (other_times, other_numbers) = (
            (side.numbers("_ts")[rows], side.numbers("_seq")[rows])
            for side, rows in ((left, met.left), (right, met.right))
        )
        older_times = np.where(met.is_left_later, other_times, times)
        older_numbers = np.where(met.is_left_later, other_numbers, numbers)
        order = np.lexsort((older_numbers, older_times, met.position))
        ours, its = (pl.Series(rows[order]) for rows in (met.left, met.right))
        columns = [left.rows.get_column(name).gather(ours) for name in self.joiner.key_columns]
        for name in self.joiner.pair_values:
            side, rows = (left, ours) if name in left.rows.columns else (right, its)
            columns.append(side.rows.get_column(name).gather(rows))
        return framed(
            [
                *columns,
                pl.Series("_ts", np.maximum(times, other_times)[order]),
                pl.Series("_pos", met.position[order]),
                repeated("_phase", 1, len(order), np.int32),
                pl.Series("_time", older_times[order]),
                repeated("_is_left", False, len(order), np.bool_),
                pl.Series("_seq", older_numbers[order]),
                repeated("_left_gone", False, len(order), np.bool_),
                repeated("_right_gone", False, len(order), np.bool_),
            ]
        )

    def _unmatched(
        self, arrivals: list[pl.DataFrame], sides: list[Side], met: Matches, spec: StoreSpec, epoch: Epoch
    ) -> list[pl.DataFrame]:
        """The records forwarded without a match; others wait in the store ``spec``."""
        at_once, waiting, matched = [], [], []
        pairs = pl.DataFrame(
            {"_l": met.left, "_r": met.right, "_pos": met.position, "_is_left_later": met.is_left_later}
        )
        for is_left, side, rows, part in zip((True, False), (self.left, self.right), arrivals, sides, strict=True):
            if not side.is_outer:
                continue
            index = "_l" if is_left else "_r"
            on_arrival = pairs.filter(pl.col("_is_left_later") == is_left).get_column(index)
            afterwards = (
                pairs.filter(pl.col("_is_left_later") != is_left)
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


def _places(arrivals: Sequence[pl.DataFrame], positions: np.ndarray) -> list[pl.Series]:
    """``_partition`` and ``_offset`` of the records at ``positions``."""
    order = np.argsort(np.concatenate([rows.get_column("_pos").to_numpy() for rows in arrivals]))
    return [
        pl.Series(name, np.concatenate([rows.get_column(name).to_numpy() for rows in arrivals])[order][positions])
        for name in ("_partition", "_offset")
    ]
