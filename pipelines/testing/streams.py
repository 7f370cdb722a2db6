"""Input topics and output tables of the topology test driver."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from weir.pipelines.arguments import not_negative_ms
from weir.pipelines.errors import TopologyError
from weir.pipelines.serdes.headers import HEADERS, Headers, checked_headers, headers_of
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.serdes.serde import Serde
from weir.pipelines.testing.stores import dictionaries, values_of
from weir.pipelines.topology.nodes import RecordType

__tracebackhide__ = True  # pytest shows the test's own lines
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_to_ms(time: datetime) -> int:
    """Milliseconds since 1970 of an aware datetime.

    Raises:
        TopologyError: It is not a datetime.
        ValueError: It has no time zone.
    """
    if not isinstance(time, datetime):
        raise TopologyError(f"the time is {time!r}; pass a datetime with tzinfo=UTC")
    if time.tzinfo is None:
        raise ValueError(f"{time!r} has no time zone; pass a datetime with tzinfo=UTC")
    return (time - _EPOCH) // timedelta(milliseconds=1)


def encode_part(topic: str, part: str, serde: Serde, row_type: RowType, item: Any) -> bytes | None:
    """The bytes of a record's key or value, which ``part`` names; bytes are passed on as they are.

    Raises:
        TypeError: The serde cannot write the object.
    """
    if isinstance(item, bytes):
        return item
    try:
        return serde.encode(item)
    except (TypeError, ValueError, OverflowError, AttributeError) as error:  # of the libraries below serdes, too
        raise misfit(topic, part, row_type, item, error) from error


def misfit(topic: str, part: str, row_type: RowType, item: Any, reason: object) -> TypeError:
    """The error about an object that the topic's serde cannot write, or could not read again."""
    return TypeError(
        f"topic {topic!r}, {part} ({', '.join(row_type.columns)}): {item!r} does not fit: {reason}; pass an object "
        "that fits, or the bytes that the topic would hold"
    )


class TestInputTopic:
    """A topic that a test pipes records into. Typed objects go through its serdes; bytes are passed on as they are."""

    __test__ = False

    def __init__(
        self,
        pipe: Callable[[Any, Any, int | None, Headers], None],
        start_ms: int | None = None,
        auto_advance_ms: int = 0,
    ) -> None:
        self._pipe = pipe
        self._time_ms, self._auto_advance_ms = start_ms, auto_advance_ms

    def pipe_input(
        self,
        key: Any,
        value: Any = None,
        *,
        timestamp: datetime | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> None:
        """Process one record to the end, and commit.

        A record without a time gets the topic's, which ``auto_advance`` then moves; if the topic was created without
        ``start``, it gets the driver's wall clock. ``headers`` are lost unless the topic is read with
        ``headers=True``, as in a run.

        Raises:
            TypeError: An object does not fit the topic's serde, whatever ``on_error`` says, or the headers are no
                pairs.
            BadInputError: The bytes cannot be read or the time is invalid, and the application has
                ``on_error="fail"``.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents"))
            >>> orders.to_delta("all_orders")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     topic = driver.create_input_topic("orders")
            ...     topic.pipe_input("ann", 500, timestamp=datetime(2026, 1, 1, 9, tzinfo=UTC))
            ...     topic.pipe_input(b"bob", b"\\0\\0\\0\\0\\0\\0\\2\\xbc")  # the bytes that the topic would hold
            ...     driver.create_output_table("all_orders").read_key_values_to_list()
            [('ann', 500), ('bob', 700)]
        """
        if timestamp is not None and timestamp_ms is not None:
            raise ValueError("pass timestamp or timestamp_ms, not both")
        if timestamp is not None:
            timestamp_ms = time_to_ms(timestamp)
        elif timestamp_ms is None and self._time_ms is not None:
            timestamp_ms = self._time_ms
            self._time_ms += self._auto_advance_ms
        self._pipe(key, value, timestamp_ms, checked_headers(headers))

    def pipe_key_value_list(self, records: Iterable[tuple[Any, Any]]) -> None:
        """Process ``(key, value)`` pairs one after another, at the topic's time.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents"))
            >>> orders.to_delta("all_orders")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("bob", 200)])
            ...     driver.create_output_table("all_orders").get_queue_size()
            2
        """
        for record in records:
            self.pipe_input(*_parts("pipe_key_value_list", record, "key", "value"))

    def pipe_value_list(self, values: Iterable[Any]) -> None:
        """Process values with null keys one after another, at the topic's time.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents"))
            >>> orders.to_delta("all_orders")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     driver.create_input_topic("orders").pipe_value_list([500, 700])
            ...     driver.create_output_table("all_orders").read_key_values_to_list()
            [(None, 500), (None, 700)]
        """
        for value in values:
            self.pipe_input(None, value)

    def advance_time(self, duration: timedelta) -> None:
        """Move the topic's time forward; raises ``ValueError`` if it was created without ``start``.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents"))
            >>> orders.to_delta("all_orders")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     topic = driver.create_input_topic("orders", start=datetime(2026, 1, 1, 9, tzinfo=UTC))
            ...     topic.advance_time(timedelta(hours=1))
            ...     topic.pipe_input("ann", 500)
            ...     driver.create_output_table("all_orders").read_record().timestamp.hour
            10
        """
        if self._time_ms is None:
            raise ValueError("the topic has no time of its own; create it with create_input_topic(..., start=...)")
        self._time_ms += not_negative_ms(duration, "duration")

    def pipe_records(self, records: Iterable[tuple[Any, Any, datetime | int]]) -> None:
        """Process ``(key, value, time)`` triples one after another; a time is a datetime or milliseconds since 1970.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents"))
            >>> orders.to_delta("all_orders")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     topic = driver.create_input_topic("orders")
            ...     nine = datetime(2026, 1, 1, 9, tzinfo=UTC)
            ...     topic.pipe_records([("ann", 500, nine), ("bob", 700, 1_767_258_000_000)])
            ...     [record.timestamp.hour for record in driver.create_output_table("all_orders").read_records()]
            [9, 9]
        """
        for record in records:
            key, value, time = _parts("pipe_records", record, "key", "value", "time")
            self._pipe(key, value, time if isinstance(time, int) else time_to_ms(time), ())


def _parts(call: str, record: object, *names: str) -> Sequence[Any]:
    """The parts of one record of a list; raises ``TypeError`` unless it is a tuple or list of these."""
    if isinstance(record, tuple | list) and len(record) == len(names):
        return record
    raise TypeError(f"{call} takes a list of ({', '.join(names)}), but one of its items is {record!r}")


@dataclass(frozen=True)
class OutputRecord:
    """One row of an output table, with its event time and whether it is a tombstone."""

    row: dict[str, Any]
    timestamp: datetime
    is_deleted: bool
    headers: Headers = ()
    """None unless the table has them (``to_delta(..., headers=True)``)."""


class TestOutputTable:
    """What a topology has written to a Delta table, oldest first; reading a row takes it out.

    A time after the year 9999, such as the end of a window, is ``datetime.max`` in UTC.
    """

    __test__ = False

    def __init__(self, name: str, record: RecordType, rows: deque[pl.DataFrame]) -> None:
        """``rows`` are the unread ones, each with all the table's columns; the driver adds to them."""
        self.name, self._record, self._rows = name, record, rows

    def is_empty(self) -> bool:
        """Whether every row has been read.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents"))
            >>> orders.to_delta("all_orders")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     table = driver.create_output_table("all_orders")
            ...     driver.create_input_topic("orders").pipe_input("ann", 500)
            ...     table.is_empty(), table.read_value(), table.is_empty()
            (False, 500, True)
        """
        return not self._rows

    def get_queue_size(self) -> int:
        """How many rows are unread.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents"))
            >>> orders.to_delta("all_orders")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("bob", 200)])
            ...     driver.create_output_table("all_orders").get_queue_size()
            2
        """
        return len(self._rows)

    def read_key_value(self) -> tuple[Any, Any]:
        """Key and value of the oldest unread row; raises ``LookupError`` when there is none.

        The key is an object of the key's type, or a ``Windowed`` after a windowed aggregation. A scalar value is
        itself, any other a dictionary of the value columns; a tombstone's is None.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents"))
            >>> orders.group_by_key().count("orders_of").to_delta("customers")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     driver.create_input_topic("orders").pipe_input("ann", 500)
            ...     driver.create_output_table("customers").read_key_value()
            ('ann', 1)
        """
        row = self._next()
        (key,), (value,) = self._record.key_type.to_objects(row), values_of(self._record, row)
        return key, None if row.get_column("_deleted")[0] else value

    def read_value(self) -> Any:
        """The value of the oldest unread row, as ``read_key_value`` gives it.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents"))
            >>> orders.to_delta("all_orders")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("bob", 200)])
            ...     driver.create_output_table("all_orders").read_value()
            500
        """
        return self.read_key_value()[1]

    def read_key_values_to_list(self) -> list[tuple[Any, Any]]:
        """Keys and values of all unread rows, oldest first.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents"))
            >>> orders.group_by_key().count("orders_of").to_delta("customers")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("ann", 700), ("bob", 200)])
            ...     driver.create_output_table("customers").read_key_values_to_list()
            [('ann', 1), ('ann', 2), ('bob', 1)]
        """
        return [self.read_key_value() for _ in range(len(self._rows))]

    def read_values_to_list(self) -> list[Any]:
        """Values of all unread rows, oldest first.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents"))
            >>> orders.to_delta("all_orders")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("bob", 200)])
            ...     driver.create_output_table("all_orders").read_values_to_list()
            [500, 200]
        """
        return [value for _, value in self.read_key_values_to_list()]

    def read_key_values_to_map(self) -> dict[Any, Any]:
        """The newest value of each key among the unread rows; raises ``ValueError`` for a null key.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents"))
            >>> orders.group_by_key().count("orders_of").to_delta("customers")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("ann", 700), ("bob", 200)])
            ...     driver.create_output_table("customers").read_key_values_to_map()
            {'ann': 2, 'bob': 1}
        """
        found = dict(self.read_key_values_to_list())
        if None in found:
            raise ValueError(f"the table {self.name!r} has a row with a null key, which a map cannot hold; read a list")
        return found

    def read_record(self) -> OutputRecord:
        """The oldest unread row with its time; raises ``LookupError`` when there is none.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents"))
            >>> orders.to_delta("all_orders")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     driver.create_input_topic("orders").pipe_input("ann", 500, timestamp_ms=0)
            ...     record = driver.create_output_table("all_orders").read_record()
            ...     record.row, record.timestamp.year, record.is_deleted
            ({'customer': 'ann', 'cents': 500}, 1970, False)
        """
        row = self._next()
        (visible,) = dictionaries(row.select(name for name in row.columns if not name.startswith("_")))
        headers = headers_of(row.get_column(HEADERS).to_list()[0]) if HEADERS in row.columns else ()
        return OutputRecord(visible, row.get_column("_ts")[0], row.get_column("_deleted")[0], headers)

    def read_row(self) -> dict[str, Any]:
        """The oldest unread row: key columns, window bounds, value columns. A tombstone has null value columns.

        Raises:
            LookupError: There is no unread row.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents"))
            >>> orders.to_delta("all_orders")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("bob", 200)])
            ...     driver.create_output_table("all_orders").read_row()
            {'customer': 'ann', 'cents': 500}
        """
        return self.read_record().row

    def read_rows(self) -> list[dict[str, Any]]:
        """All unread rows, oldest first.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents"))
            >>> orders.to_delta("all_orders")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("bob", 200)])
            ...     driver.create_output_table("all_orders").read_rows()
            [{'customer': 'ann', 'cents': 500}, {'customer': 'bob', 'cents': 200}]
        """
        return [self.read_record().row for _ in range(len(self._rows))]

    def read_records(self) -> list[OutputRecord]:
        """All unread rows with their times, oldest first.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents"))
            >>> orders.to_delta("all_orders")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("bob", 200)])
            ...     [record.row["cents"] for record in driver.create_output_table("all_orders").read_records()]
            [500, 200]
        """
        return [self.read_record() for _ in range(len(self._rows))]

    def _next(self) -> pl.DataFrame:
        if not self._rows:
            raise LookupError(f"the table {self.name!r} has no unread row")
        return self._rows.popleft()
