"""Output topics of the topology test driver: the records of sinks, as a consumer with their serdes reads them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from weir.pipelines.serdes.headers import Headers, headers_of
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.serdes.serde import Serde
from weir.pipelines.sinks.kafka import KafkaTopic


@dataclass(frozen=True)
class TestRecord:
    """A record of an output topic."""

    __test__ = False

    key: Any
    value: Any
    """None for a tombstone."""
    timestamp: datetime
    partition: int | None
    """None where the key decides."""
    headers: Headers = ()


class TestOutputTopic:
    """What a topology has sent to a Kafka topic, oldest first; reading a record takes it out.

    Examples:
        >>> builder = StreamsBuilder()
        >>> builder.stream("orders", key=String("customer"), value=Int64("cents")).to("all-orders")
        >>> with TopologyTestDriver(Application("shop", builder)) as driver:
        ...     driver.create_input_topic("orders").pipe_input("ann", 500, timestamp_ms=0)
        ...     record = driver.create_output_topic("all-orders").read_record()
        ...     record.key, record.value, record.timestamp.year, record.partition
        ('ann', 500, 1970, None)
    """

    __test__ = False

    def __init__(self, name: str, records: deque[TestRecord]) -> None:
        self.name, self._records = name, records

    def is_empty(self) -> bool:
        """Whether every record has been read.

        Examples:
            >>> builder = StreamsBuilder()
            >>> builder.stream("orders", key=String("customer"), value=Int64("cents")).to("all-orders")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     topic = driver.create_output_topic("all-orders")
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("ann", 200)])
            ...     topic.is_empty(), topic.read_values_to_list(), topic.is_empty()
            (False, [500, 200], True)
        """
        return not self._records

    def get_queue_size(self) -> int:
        """How many records are unread.

        Examples:
            >>> builder = StreamsBuilder()
            >>> builder.stream("orders", key=String("customer"), value=Int64("cents")).to("all-orders")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     topic = driver.create_output_topic("all-orders")
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("ann", 200)])
            ...     topic.get_queue_size()
            2
        """
        return len(self._records)

    def read_record(self) -> TestRecord:
        """The oldest unread record; raises ``LookupError`` when there is none.

        Examples:
            >>> builder = StreamsBuilder()
            >>> builder.stream("orders", key=String("customer"), value=Int64("cents")).to("all-orders")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     topic = driver.create_output_topic("all-orders")
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("ann", 200)])
            ...     topic.read_record().value
            500
        """
        if not self._records:
            raise LookupError(f"the topic {self.name!r} has no unread record")
        return self._records.popleft()

    def read_key_value(self) -> tuple[Any, Any]:
        """Key and value of the oldest unread record.

        Examples:
            >>> builder = StreamsBuilder()
            >>> builder.stream("orders", key=String("customer"), value=Int64("cents")).to("all-orders")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     topic = driver.create_output_topic("all-orders")
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("ann", 200)])
            ...     topic.read_key_value()
            ('ann', 500)
        """
        record = self.read_record()
        return record.key, record.value

    def read_value(self) -> Any:
        """The value of the oldest unread record.

        Examples:
            >>> builder = StreamsBuilder()
            >>> builder.stream("orders", key=String("customer"), value=Int64("cents")).to("all-orders")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     topic = driver.create_output_topic("all-orders")
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("ann", 200)])
            ...     topic.read_value()
            500
        """
        return self.read_record().value

    def read_records(self) -> list[TestRecord]:
        """All unread records, oldest first.

        Examples:
            >>> builder = StreamsBuilder()
            >>> builder.stream("orders", key=String("customer"), value=Int64("cents")).to("all-orders")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     topic = driver.create_output_topic("all-orders")
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("ann", 200)])
            ...     [record.value for record in topic.read_records()]
            [500, 200]
        """
        return [self.read_record() for _ in range(len(self._records))]

    def read_key_values_to_list(self) -> list[tuple[Any, Any]]:
        """Keys and values of all unread records, oldest first.

        Examples:
            >>> builder = StreamsBuilder()
            >>> builder.stream("orders", key=String("customer"), value=Int64("cents")).to("all-orders")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     topic = driver.create_output_topic("all-orders")
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("ann", 200)])
            ...     topic.read_key_values_to_list()
            [('ann', 500), ('ann', 200)]
        """
        return [(record.key, record.value) for record in self.read_records()]

    def read_values_to_list(self) -> list[Any]:
        """Values of all unread records, oldest first.

        Examples:
            >>> builder = StreamsBuilder()
            >>> builder.stream("orders", key=String("customer"), value=Int64("cents")).to("all-orders")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     topic = driver.create_output_topic("all-orders")
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("ann", 200)])
            ...     topic.read_values_to_list()
            [500, 200]
        """
        return [record.value for record in self.read_records()]

    def read_key_values_to_map(self) -> dict[Any, Any]:
        """The newest value of each key among the unread records.

        Examples:
            >>> builder = StreamsBuilder()
            >>> builder.stream("orders", key=String("customer"), value=Int64("cents")).to("all-orders")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     topic = driver.create_output_topic("all-orders")
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("ann", 200)])
            ...     topic.read_key_values_to_map()
            {'ann': 200}
        """
        return dict(self.read_key_values_to_list())


def records_of(sink: KafkaTopic, rows: pl.DataFrame) -> list[tuple[str, TestRecord]]:
    """Each row of a sink's outbox as its topic and record."""
    key_columns = sink.key_serde.decode(rows["key"], sink.key.row_type).columns
    keys = sink.key.to_objects(pl.DataFrame(key_columns))
    all_headers = map(headers_of, rows["headers"].to_list())
    values = _objects(sink.value_serde, sink.value, rows["value"])
    return [
        (
            topic,
            TestRecord(
                key=key,
                value=value,
                timestamp=datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=time_ms),
                partition=None if partition < 0 else partition,
                headers=headers,
            ),
        )
        for key, value, (topic, partition, time_ms), headers in zip(
            keys, values, rows.select("topic", "partition", "time_ms").iter_rows(), all_headers, strict=True
        )
    ]


def _objects(serde: Serde, row_type: RowType, items: pl.Series) -> list[Any]:
    decoded = serde.decode(items, row_type)
    absent = set(decoded.absent)
    return row_type.to_objects(pl.DataFrame(decoded.columns), pl.Series([row in absent for row in range(len(items))]))
