"""Small programs for the tests of semantics, driven a record at a time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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
