"""The exact result of each job, computed from the numbers that the events are made of: no side's word is taken for it.

Columns ``key: String, total: Int64``, unordered, with the keys that ``bench.peers.peer`` describes; of ``joined_text``
``total: String``.
"""

from __future__ import annotations

import polars as pl

from bench.events import PAGES, ROWS, START_MS, click_fields, event_fields, page_prices, totals_per, user_factors

GRACE_MS, SIZE_MS, GAP_MS = 10_000, 60_000, 3_000
APART_MS = 5_000
"""The time difference of sliding windows, and how far apart an event and a click are at most that are joined."""
TEXTS_MS = 15_000
"""The size of the windows of joined texts."""
ADVANCES_MS = {"window_final": SIZE_MS, "hopping_final": 15_000, "hopping_60_final": 1_000}
"""The jobs with windows of ``SIZE_MS``, each with how far it is from one to the next."""
SUMMED_BY = {"sum_per_key": "user", "sum_to_topic": "user", "python_sum": "user", "repartition_sum": "page"}
"""The jobs that are a running sum, each with the field of the events that it sums by."""


def closed_by_ms(events: int) -> int:
    """The greatest end of a window that the last of ``events`` events closes.

    A partition's own last event is a few milliseconds older than that of all; no window may end between the two.
    """
    return START_MS + (events - 1) // 10 - GRACE_MS


def truth(job: str, events: int) -> pl.DataFrame:
    """The result of ``job`` over the first ``events`` events, and all users where it joins them."""
    if job in SUMMED_BY:
        return totals_per(SUMMED_BY[job], events)
    if job == "distinct_keys":
        return totals_per("user", events, keys=events)
    fields = event_fields(0, events, ROWS if job in ("table_join_sum", "foreign_key_join") else None)
    every = fields.select("user", "amount", "ts")
    match job:
        case "window_final" | "hopping_final" | "hopping_60_final":
            return _windows(every, ADVANCES_MS[job], events)
        case "joined_text":
            return _texts(fields, events)
        case "session_sum":
            return _sessions(every)
        case "table_join_sum":
            joined = every.join(user_factors(0, ROWS), left_on="user", right_on="key")
            return joined.group_by(key="user").agg(total=(pl.col("amount") * pl.col("factor")).sum())
        case "sliding_sum":
            return _sliding(every)
        case "stream_join_sum":
            pairs = every.join(click_fields(0, events // 2), on="user")
            near = pairs.filter((pl.col("ts") - pl.col("ts_right")).abs() <= APART_MS)
            return near.group_by(key="user").agg(total=(pl.col("amount") * pl.col("weight")).sum())
        case "foreign_key_join":
            newest = fields.unique("user", keep="last", maintain_order=True)
            placed = newest.join(page_prices(0, PAGES), left_on="page", right_on="key")
            return placed.select(key="user", total=pl.col("amount") * pl.col("price"))
    raise ValueError(f"there is no job {job}")


def _windows(every: pl.DataFrame, advance_ms: int, events: int) -> pl.DataFrame:
    """Windows of ``SIZE_MS`` each ``advance_ms``, those that are closed at the end."""
    newest = pl.col("ts") // advance_ms * advance_ms
    pieces = every.group_by("user", start=newest).agg(pl.sum("amount"))
    starts = [pieces.with_columns(pl.col("start") - back) for back in range(0, SIZE_MS, advance_ms)]
    closed = pl.concat(starts).filter(pl.col("start") + SIZE_MS <= closed_by_ms(events))
    sums = closed.group_by("user", "start").agg(total=pl.sum("amount"))
    return sums.select(key=pl.concat_str("user", pl.lit("@"), "start"), total="total")


def _texts(every: pl.DataFrame, events: int) -> pl.DataFrame:
    """The pages of tumbling windows of ``TEXTS_MS``, those that are closed at the end, in the order of the events."""
    start = pl.col("ts") // TEXTS_MS * TEXTS_MS
    closed = every.with_columns(start=start).filter(pl.col("start") + TEXTS_MS <= closed_by_ms(events))
    texts = closed.group_by("user", "start").agg(total=pl.col("page").str.join(","))
    return texts.select(key=pl.concat_str("user", pl.lit("@"), "start"), total="total")


def _sessions(every: pl.DataFrame) -> pl.DataFrame:
    ordered = every.sort("user", "ts")
    is_first = pl.col("ts").diff().over("user").fill_null(GAP_MS + 1) > GAP_MS
    sums = ordered.group_by("user", is_first.cum_sum().alias("session")).agg(
        start=pl.min("ts"), end=pl.max("ts"), total=pl.sum("amount")
    )
    return sums.select(key=pl.concat_str("user", pl.lit("@"), "start", pl.lit("@"), "end"), total="total")


def _sliding(every: pl.DataFrame) -> pl.DataFrame:
    """The windows that end with an event, and those that begin right after one and hold another."""
    times = every.select("user", "ts").unique().sort("user", "ts")
    following = pl.col("ts").shift(-1).over("user")
    ending = times.select("user", start=pl.col("ts") - APART_MS)
    beginning = times.filter(following - pl.col("ts") <= APART_MS + 1).select("user", start=pl.col("ts") + 1)
    pairs = pl.concat([ending, beginning]).unique().join(every, on="user")
    within = pairs.filter(pl.col("ts").is_between("start", pl.col("start") + APART_MS))
    sums = within.group_by("user", "start").agg(total=pl.sum("amount"))
    return sums.select(key=pl.concat_str("user", pl.lit("@"), "start"), total="total")
