"""The table of records that could not be read or processed, so that bad input is not lost.

Letters that were processed again are marked in it by rows of the stage ``REPLAYED`` with their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from weir.pipelines.serdes.headers import HEADERS_TYPE, Headers, headers_of
from weir.pipelines.serdes.shapes import LAST_TIME_MS, TIME
from weir.pipelines.serdes.source import BadRecord
from weir.pipelines.tasks.ahead import Reader
from weir.state.types import TableSpec, TopicPartition

Place = tuple[str, int, int]
"""Topic, partition, offset."""

REPLAYED = "replayed"
"""The stage of a row which marks that the letter with its id was processed again."""

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
            "row": pl.Binary(),
            "headers": HEADERS_TYPE,
        }
    ),
)
"""One row per record, committed with the epoch that read it. ``id`` is unique and the same in every attempt of the
epoch. ``stage``, ``operator``, ``trace``, ``id``, ``row`` and ``headers`` are null in rows of versions without them;
``headers`` also where they could not be read once more. A timestamp before 1970 is kept as is; one after
the year 9999 is null, since few readers have a date for it. A letter that was processed again has a second row, with
its ``id``, the stage ``REPLAYED``, and a ``reason`` if it failed."""


@dataclass(frozen=True, kw_only=True)
class Letter:
    """A dead letter that is processed again; the fields are those of ``BadRecord``."""

    id: str
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    row: bytes | None
    headers: Headers | None = None


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
            "id": [letter_id(record, epoch) for record in bad],
            "row": [record.row for record in bad],
            "headers": [
                None if record.headers is None else [{"key": key, "value": value} for key, value in record.headers]
                for record in bad
            ],
        },
        schema={**DEAD_LETTERS.schema, "timestamp": pl.Int64()},
    )
    time = pl.col("timestamp")
    return frame.with_columns_seq(pl.when(time <= LAST_TIME_MS).then(time).cast(TIME))


def with_headers(dead: Sequence[BadRecord], reader: Callable[[str, int], Reader]) -> list[BadRecord]:
    """``dead`` with the headers of the records that were read from a topic without them, if they are still there.

    Only these records are read again for that: reading all of them with their headers would cost every epoch.
    """
    without: dict[TopicPartition, list[int]] = {}
    for record in dead:
        if _lacks_headers(record):
            without.setdefault((record.topic, record.partition), []).append(record.offset)
    found = {
        (*wanted, offset): headers_of(headers)
        for wanted, offsets in without.items()
        for offset, headers in reader(*wanted).headers(sorted(offsets)).iter_rows()
    }
    return with_known_headers(dead, found)


def with_known_headers(dead: Sequence[BadRecord], known: Mapping[Place, Headers | None]) -> list[BadRecord]:
    """``dead`` with the ``known`` headers of the records that were read from a topic without them."""
    return [
        replace(record, headers=known.get((record.topic, record.partition, record.offset)))
        if _lacks_headers(record)
        else record
        for record in dead
    ]


def _lacks_headers(record: BadRecord) -> bool:
    return record.headers is None and record.row is None


def letter_id(record: BadRecord, epoch: int) -> str:
    """The id of the letter that a record becomes in an epoch."""
    return f"{record.topic}-{record.partition}-{record.offset}-{epoch}"


def replay_marks(letters: Sequence[Letter], failed: Mapping[int, BadRecord], epoch: int) -> pl.DataFrame:
    """Rows of ``DEAD_LETTERS`` that mark letters; ``failed`` are those that failed again, by place."""
    return pl.DataFrame(
        {
            "topic": [letter.topic for letter in letters],
            "partition": [letter.partition for letter in letters],
            "offset": [letter.offset for letter in letters],
            "reason": [
                f"failed again, as {letter_id(failed[place], epoch)}" if place in failed else None
                for place in range(len(letters))
            ],
            "_epoch": [epoch] * len(letters),
            "stage": [REPLAYED] * len(letters),
            "id": [letter.id for letter in letters],
        },
        schema_overrides=DEAD_LETTERS.schema,
    ).pipe(lambda marks: pl.concat([pl.DataFrame(schema=DEAD_LETTERS.schema), marks], how="diagonal"))
