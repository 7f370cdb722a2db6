"""Session windows: records of a key with no gap longer than the inactivity gap between them.

A new record joins the sessions within reach and merges them into one. The states and the store belong to
``data_windows``.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from datetime import timedelta

import polars as pl

from weir.pipelines.arguments import not_negative_ms, positive_ms
from weir.pipelines.operators.data_windows import Batch, Trace
from weir.pipelines.operators.fold import ColumnFold, Fold
from weir.pipelines.operators.session_columns import keys_that_join_sessions, merged_sessions
from weir.pipelines.operators.states import States


@dataclass(frozen=True, kw_only=True)
class SessionWindows:
    """Sessions ``[first record, last record]``, both included; records exactly the gap apart share a session.

    A record is late if the merged session that it would belong to ends before stream time minus gap and grace. A
    session closed this way is no longer merged. There is no default grace.

    >>> builder = StreamsBuilder()
    >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
    >>> half_hour = SessionWindows.of_inactivity_gap_and_grace(timedelta(minutes=30), timedelta(minutes=5))
    >>> visits = clicks.group_by_key().windowed_by(half_hour).count("visits")
    >>> visits.suppress(Suppressed.until_window_closes(BufferConfig.unbounded())).to_delta("visits")
    >>> with TopologyTestDriver(Application("shop", builder)) as driver:
    ...     clicks = driver.create_input_topic("clicks")
    ...     for minute in (0, 20, 90):
    ...         clicks.pipe_input("ann", "home", timestamp_ms=60_000 * minute)
    ...     visit = driver.create_output_table("visits").read_row()
    >>> visit["window_end"] - visit["window_start"], visit["count"]
    (datetime.timedelta(seconds=1200), 2)
    """

    gap_ms: int
    grace_ms: int

    @classmethod
    def of_inactivity_gap_with_no_grace(cls, gap: timedelta) -> SessionWindows:
        """Sessions that close as soon as stream time is more than ``gap`` after their last record.

        >>> SessionWindows.of_inactivity_gap_with_no_grace(timedelta(minutes=30))
        SessionWindows(gap_ms=1800000, grace_ms=0)
        """
        return cls.of_inactivity_gap_and_grace(gap, timedelta(0))

    @classmethod
    def of_inactivity_gap_and_grace(cls, gap: timedelta, grace: timedelta) -> SessionWindows:
        """Sessions that admit out-of-order records for ``grace`` longer than that.

        >>> SessionWindows.of_inactivity_gap_and_grace(timedelta(minutes=30), timedelta(minutes=5))
        SessionWindows(gap_ms=1800000, grace_ms=300000)
        """
        return cls(gap_ms=positive_ms(gap, "inactivity gap"), grace_ms=not_negative_ms(grace, "grace"))

    @property
    def closes_after_ms(self) -> int:
        """A session is closed once stream time reaches its end plus this.

        Kafka Streams' suppression forwards it a millisecond earlier, when a record can still change it.
        """
        return self.gap_ms + self.grace_ms + 1

    @property
    def kept_ms(self) -> int:
        """How long a session's state is needed after its end."""
        return self.closes_after_ms

    @property
    def least_retention_ms(self) -> int:
        """The shortest retention that a program may set, as in Kafka Streams."""
        return self.gap_ms + self.grace_ms

    @property
    def takes_null_values(self) -> bool:
        return True

    @property
    def ends_are_times(self) -> bool:
        return True

    @property
    def keep_bounds(self) -> bool:
        return False

    def reach_ms(self) -> tuple[int, int]:
        return self.gap_ms, self.gap_ms

    def by_columns(self, batch: Batch, fold: Fold) -> tuple[pl.DataFrame, pl.DataFrame, Batch]:
        """All sessions of keys whose records cannot be late or touch a closed session, so that order is irrelevant.

        Nor may stored sessions lie within the gap of each other, as those of a program with a shorter gap may; nor may
        a record join sessions if the fold depends on the order, since they are merged in the order of their ends.
        """
        nothing = batch.rows.clear()
        if not isinstance(fold, ColumnFold):
            return nothing, nothing, batch
        rows = batch.rows
        in_time = rows.get_column("_ts") >= batch.stream_time - self.grace_ms
        keys = rows.get_column("_key")
        reached = pl.col("window_end").cum_max().shift(1).over("_key") + pl.duration(milliseconds=self.gap_ms)
        crowded = batch.found.sort("_key", "window_start").filter(pl.col("window_start") <= reached)
        walked_keys = [keys.filter(~in_time), crowded.get_column("_key").cast(keys.dtype)]
        if fold.is_ordered:
            walked_keys.append(keys_that_join_sessions(rows, batch.found, self.gap_ms))
        batch, left = batch.parted(pl.concat(walked_keys).unique())
        return *merged_sessions(batch.rows, batch.found, fold, self.gap_ms), left

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
