"""Rows of every kind are handed to librdkafka, over the broker that it can play itself."""

import polars as pl
import pytest
from confluent_kafka import KafkaError, KafkaException

from weir.infra.kafka.columns import RECORD_HEADERS
from weir.infra.kafka.producer import MOST_FAILURES, TransactionalProducer

TIMEOUT_S = 30
KINDS = [
    ("orders", None, b"", []),
    ("orders", b"", None, [{"key": "", "value": None}]),
    (
        "bills",
        b"k" * 1_000,
        b"v" * 100_000,
        [{"key": "trace", "value": b""}, {"key": "\u0105", "value": b"\x00" * 500}],
    ),
    ("orders", b"\x00", b"\x00\xff", None),
]


@pytest.fixture
def producer():
    made = TransactionalProducer({"transactional.id": "rows", "test.mock.num.brokers": 1, "log_level": 0})
    made.init_transactions(TIMEOUT_S)
    made.begin_transaction()
    yield made
    made.close()


def rows(kinds, partition=-1):
    frame = pl.DataFrame(
        {
            "topic": [kind[0] for kind in kinds],
            "partition": pl.Series([partition] * len(kinds), dtype=pl.Int32),
            "key": pl.Series([kind[1] for kind in kinds], dtype=pl.Binary),
            "value": pl.Series([kind[2] for kind in kinds], dtype=pl.Binary),
            "time_ms": pl.Series(range(len(kinds)), dtype=pl.Int64),
        }
    )
    return frame.with_columns(pl.Series("headers", [kind[3] for kind in kinds], dtype=RECORD_HEADERS))


def test_rows_are_taken_with_and_without_headers_and_whatever_is_null(producer):
    producer.produce(rows(KINDS * 50))
    producer.produce(rows(KINDS).drop("headers"))
    producer.produce(rows(KINDS).slice(1, 2))
    producer.produce(rows([]))
    producer.commit_transaction(TIMEOUT_S)
    assert list(producer.failures) == []


def test_rows_for_a_partition_that_does_not_exist_are_refused_or_not_delivered(producer):
    """librdkafka learns only while it sends which partitions there are."""

    def send():
        producer.produce(rows(KINDS * 50, partition=99))
        producer.commit_transaction(TIMEOUT_S)

    with pytest.raises(KafkaException):
        send()
    failures = [error.code() for error in producer.failures]
    assert failures in ([], [KafkaError._UNKNOWN_PARTITION] * MOST_FAILURES)
