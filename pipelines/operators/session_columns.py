"""All sessions of a batch at once, for keys whose records are all in time: sort, cut where the gap is too long, fold.

Where records can be late, their order matters, and ``session_windows`` takes them one by one.
"""

from __future__ import annotations

import polars as pl

from weir.pipelines.operators.fold import PLACE, ColumnFold
from weir.pipelines.serdes.shapes import TIME
from weir.state.frames import picked, without

_START, _END = (pl.col(name).dt.timestamp("ms") for name in ("window_start", "window_end"))


def keys_that_join_sessions(rows: pl.DataFrame, found: pl.DataFrame, gap_ms: int) -> pl.Series:
    """Each ``_key`` of which a row joins sessions that were apart before; arguments as for ``merged_sessions``."""
    before = _points(rows, found, gap_ms).sort("_row")
    first, last = pl.col("_start").cum_min().shift(1), pl.col("_end").cum_max().shift(1)
    is_apart = (pl.col("_start") > last + gap_ms) | (pl.col("_end") < first - gap_ms)
    return before.filter(is_apart.over("_session")).get_column("_key").unique()


def merged_sessions(
    rows: pl.DataFrame, found: pl.DataFrame, fold: ColumnFold, gap_ms: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The sessions that ``rows`` end up in, and the stored sessions that those replace under other bounds.

    ``rows`` and the stored sessions ``found`` are those of a ``data_windows.Batch``. Both results have the
    store's key columns, state columns (null for replaced sessions), ``_ts`` (the session's end), the place of the
    session's last record, ``_deleted``.
    """
    key_columns = [name for name in found.columns if name not in (*fold.state, "_ts", "_key", "_seen")]
    columns = [*key_columns, *fold.state, "_ts", *PLACE, "_deleted"]
    points = _points(rows, found, gap_ms)
    bounds = points.group_by("_session").agg(
        pl.col("_start").min(), pl.col("_end").max(), (pl.col("_row") >= 0).any().alias("_is_met")
    )
    of_rows = points.filter(pl.col("_row") >= 0).sort("_row").get_column("_session")
    rows = rows.with_columns_seq(of_rows)
    groups = fold.group(rows, ["_session"])
    keys = rows.select_seq("_session", *key_columns[:-2], "_key").unique("_session")
    groups = without(groups, "_ts").join(bounds, on="_session").join(keys, on="_session").rename({"_end": "_ts"})
    sessions_of = points.filter(pl.col("_row") < 0).sort("_row", descending=True).get_column("_session")
    replaced = found.with_columns_seq(sessions_of).join(bounds.filter("_is_met"), on="_session", maintain_order="left")
    states = fold.merge(groups, _stored(replaced, groups, fold), rows).with_columns_seq(
        pl.col("_start").cast(TIME).alias("window_start"), pl.col("_ts").cast(TIME).alias("window_end")
    )
    others = replaced.filter((pl.col("_start") != _START) | (pl.col("_end") != _END))
    gone = others.join(groups.select_seq("_session", *PLACE), on="_session", maintain_order="left").with_columns_seq(
        *(pl.lit(None, dtype).alias(name) for name, dtype in fold.state.items()),
        _END.alias("_ts"),
        pl.lit(True).alias("_deleted"),
    )
    return picked(states, columns), picked(gone, columns)


def _points(rows: pl.DataFrame, found: pl.DataFrame, gap_ms: int) -> pl.DataFrame:
    """Records and stored sessions with the number of the session that they end up in, by key and start.

    Columns: ``_key``, ``_start`` and ``_end`` (Int64, ms), ``_row`` (of stored sessions negative, from -1 down),
    ``_session``.
    """
    points = pl.concat(
        [
            rows.select_seq(
                "_key",
                pl.col("_ts").alias("_start"),
                pl.col("_ts").alias("_end"),
                pl.int_range(pl.len(), dtype=pl.Int64).alias("_row"),
            ),
            found.select_seq(
                "_key",
                _START.alias("_start"),
                _END.alias("_end"),
                (-1 - pl.int_range(pl.len(), dtype=pl.Int64)).alias("_row"),
            ),
        ]
    ).sort("_key", "_start")
    reached = pl.col("_end").cum_max().shift(1).over("_key") + gap_ms
    return points.with_columns_seq((pl.col("_start") > reached).fill_null(True).cum_sum().alias("_session"))


def _stored(replaced: pl.DataFrame, groups: pl.DataFrame, fold: ColumnFold) -> pl.DataFrame:
    """The stored states merged into each of ``groups``, in order of window end: state columns, ``_ts``, ``_found``."""
    merged = (
        replaced.select_seq("_session", *(scan.over("_session") for scan in fold.scans()), "_ts")
        .group_by("_session")
        .last()
    )
    return (
        groups.select_seq("_session")
        .join(merged.with_columns_seq(pl.lit(True).alias("_found")), on="_session", how="left", maintain_order="left")
        .select_seq(*fold.state, "_ts", pl.col("_found").fill_null(False))
    )
