"""What reading a topic partition gives: its records as they are, or the error that they are no longer there."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl


class OffsetGoneError(Exception):
    """The topic no longer holds the next offset: retention removed it unread, or its log was truncated."""

    def __init__(self, topic: str, partition: int, offset: int) -> None:
        super().__init__(topic, partition, offset)
        self.topic, self.partition, self.offset = topic, partition, offset

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r}, partition {self.partition}: offset {self.offset} is no longer in the log (removed "
            "by retention, lost with a broker, or the topic was recreated); raise the topic's retention.ms, and start "
            "again with `weir run MODULE:APP`, which says what is there and how to read on"
        )


@dataclass(frozen=True)
class RawRecords:
    """Undecoded records of one topic partition in offset order."""

    topic: str
    partition: int
    frame: pl.DataFrame
    """As ``record_schema`` of ``weir.infra.kafka.columns`` has it."""
    next_offset: int
    """Where the next read starts: after the records here and after offsets that hold none."""
    next_time_ms: int | None = None
    """The timestamp of the record there, if it has been fetched."""
