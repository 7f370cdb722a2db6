"""The table of records that could not be read or processed, so that bad input is not lost."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from weir.pipelines.serdes.headers import HEADERS_TYPE
from weir.pipelines.serdes.shapes import LAST_TIME_MS, TIME
from weir.pipelines.serdes.source import BadRecord
from weir.state.types import TableSpec

DEAD_LETTERS = TableSpec(
    name="_dead_letters",
    schema=pl.Schema(
        {
            "topic": pl.String(),
            "partition": pl.Int32(),
            "offset": pl.Int64(),
            "timestamp": TIME,
            "key": pl.Binary(),
            "value": pl.Binary(),
            "reason": pl.String(),
            "_epoch": pl.Int64(),
            "stage": pl.String(),
            "operator": pl.String(),
            "trace": pl.String(),
            "id": pl.String(),
            "headers": HEADERS_TYPE,
        }
    ),
)
"""One row per record, committed with the epoch that read it. ``id`` is unique and the same in every attempt of the
epoch. ``stage``, ``operator``, ``trace``, ``id`` and ``headers`` are null in rows of versions that did not have
them; ``headers`` also where the program does not ask for those of the topic. A timestamp
before 1970 is kept as is; one after the year 9999 is null, since few readers have a date for it."""


def dead_letter_frame(bad: Sequence[BadRecord], epoch: int) -> pl.DataFrame:
    """Rows of ``DEAD_LETTERS``, in the order given."""
    frame = pl.DataFrame(
        {
            "topic": [record.topic for record in bad],
            "partition": [record.partition for record in bad],
            "offset": [record.offset for record in bad],
            "timestamp": [record.timestamp_ms for record in bad],
            "key": [record.key for record in bad],
            "value": [record.value for record in bad],
            "reason": [record.reason for record in bad],
            "_epoch": [epoch] * len(bad),
            "stage": [record.stage for record in bad],
            "operator": [record.operator for record in bad],
            "trace": [record.trace for record in bad],
            "id": [f"{record.topic}-{record.partition}-{record.offset}-{epoch}" for record in bad],
            "headers": [
                None if record.headers is None else [{"key": key, "value": value} for key, value in record.headers]
                for record in bad
            ],
        },
        schema={**DEAD_LETTERS.schema, "timestamp": pl.Int64()},
    )
    time = pl.col("timestamp")
    return frame.with_columns(pl.when(time <= LAST_TIME_MS).then(time).cast(TIME))
