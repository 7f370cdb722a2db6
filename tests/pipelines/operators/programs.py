"""Small programs for the tests of semantics, driven record by record."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from weir import Application, Json, KStream, StreamsBuilder, String
from weir.testing import TestInputTopic, TestOutputTable, TopologyTestDriver


@dataclass(frozen=True)
class Click:
    page: str
    ms: int | None = None


@contextmanager
def driven(program: Callable[[KStream], None]) -> Iterator[tuple[TestInputTopic, TestOutputTable, TopologyTestDriver]]:
    """The topic ``clicks`` (key ``user``, value ``Click``), the table ``out``, and the driver."""
    builder = StreamsBuilder()
    program(builder.stream("clicks", key=String("user"), value=Json(Click)))
    with TopologyTestDriver(Application("test", builder)) as driver:
        yield driver.create_input_topic("clicks"), driver.create_output_table("out"), driver


def pipe(topic, *times, user="a"):
    for time in times:
        topic.pipe_input(user, Click("x", time), timestamp_ms=time)


def in_ms(time: datetime) -> int:
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def read_windows(out, column="count"):
    """Start, end, value (None for a tombstone) and time of each unread row."""
    return [
        (in_ms(r.row["window_start"]), in_ms(r.row["window_end"]), r.row[column], in_ms(r.timestamp))
        for r in out.read_records()
    ]
