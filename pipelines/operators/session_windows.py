"""Session windows: records of a key with no gap longer than the inactivity gap between them.

A new record joins the sessions within reach and merges them into one. What becomes of the states, and of the store,
belongs to ``data_windows`` beside this.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from datetime import timedelta

import polars as pl

from weir.pipelines.arguments import not_negative_ms, positive_ms
from weir.pipelines.operators.data_windows import Batch, Trace
from weir.pipelines.operators.fold import ColumnFold, Fold
from weir.pipelines.operators.session_columns import merged_sessions
from weir.pipelines.operators.states import States


@dataclass(frozen=True, kw_only=True)
class SessionWindows:
    """Sessions ``[first record, last record]``, both included; records exactly the gap apart are of one session.

    A record is late when the session that it would be part of, merged, ends before stream time minus gap and grace.
    A session that has closed so is not merged any more. There is no default grace.
    """

    gap_ms: int
    grace_ms: int

    @classmethod
    def of_inactivity_gap_with_no_grace(cls, gap: timedelta) -> SessionWindows:
        """Sessions that close as soon as stream time is more than ``gap`` beyond their last record."""
        return cls.of_inactivity_gap_and_grace(gap, timedelta(0))

    @classmethod
    def of_inactivity_gap_and_grace(cls, gap: timedelta, grace: timedelta) -> SessionWindows:
        """Sessions that admit out-of-order records until ``grace`` after that."""
        return cls(gap_ms=positive_ms(gap, "inactivity gap"), grace_ms=not_negative_ms(grace, "grace"))

    @property
    def closes_after_ms(self) -> int:
        """A session is closed once stream time reaches its end plus this.

        Kafka Streams' suppression forwards it one millisecond earlier, when a record can still change it.
        """
        return self.gap_ms + self.grace_ms + 1

    @property
    def kept_ms(self) -> int:
        """How long a session's state is needed, from its end."""
        return self.closes_after_ms

    @property
    def least_retention_ms(self) -> int:
        """The shortest retention that a program may ask for, as in Kafka Streams."""
        return self.gap_ms + self.grace_ms

    @property
    def takes_null_values(self) -> bool:
        return True

    @property
    def ends_are_times(self) -> bool:
        return True

    def reach_ms(self) -> tuple[int, int]:
        return self.gap_ms, self.gap_ms

    def by_columns(self, batch: Batch, fold: Fold) -> tuple[pl.DataFrame, pl.DataFrame, Batch]:
        """All of the keys whose records cannot be late, nor near a closed session: no turn matters to them."""
        nothing = batch.rows.clear()
        if not isinstance(fold, ColumnFold):
            return nothing, nothing, batch
        rows = batch.rows
        in_time = rows.get_column("_ts") >= batch.stream_time - self.grace_ms
        if in_time.all():
            put, gone = merged_sessions(rows, batch.found, fold, self.gap_ms)
            return put, gone, Batch(rows=nothing, stream_time=batch.stream_time.clear(), found=batch.found.clear())
        walked = rows.get_column("_key").is_in(rows.get_column("_key").filter(~in_time).unique().implode())
        found_walked = batch.found.get_column("_key").is_in(rows.get_column("_key").filter(walked).unique().implode())
        put, gone = merged_sessions(rows.filter(~walked), batch.found.filter(~found_walked), fold, self.gap_ms)
        return (
            put,
            gone,
            Batch(
                rows=rows.filter(walked),
                stream_time=batch.stream_time.filter(walked),
                found=batch.found.filter(found_walked),
            ),
        )

    def trace(self, batch: Batch, states: States) -> Trace:
        trace, gap_ms = Trace(), self.gap_ms
        sessions: dict[int, list[tuple[int, int, int]]] = {}
        for row, (key, start, end) in enumerate(
            zip(
                batch.found.get_column("_key").to_list(),
                batch.found.get_column("window_start").dt.timestamp("ms"),
                batch.found.get_column("window_end").dt.timestamp("ms"),
                strict=True,
            )
        ):
            insort(sessions.setdefault(key, []), (end, start, states.stored(row)))
        for record, (key, time, stream_time) in enumerate(
            zip(
                batch.rows.get_column("_key").to_list(),
                batch.rows.get_column("_ts").to_list(),
                batch.stream_time.to_list(),
                strict=True,
            )
        ):
            open_from = stream_time - self.grace_ms - gap_ms
            of_key = sessions.setdefault(key, [])
            met = [
                session
                for session in of_key
                if session[0] >= max(time - gap_ms, open_from) and session[1] <= time + gap_ms
            ]
            start = min([time, *(session[1] for session in met)])
            end = max([time, *(session[0] for session in met)])
            if end < open_from:
                trace.late.append((record, start, end))
                continue
            state: int | None = None
            for session in met:
                state = states.merge(state, session[2], record)
                of_key.remove(session)
                if start != time or end != time:
                    trace.put(record, (key, session[1], session[0]), None)
            state = states.fold(state, record)
            trace.put(record, (key, start, end), state)
            if not states.is_gone(state):
                insort(of_key, (end, start, state))
        return trace
