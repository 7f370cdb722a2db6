"""Outboxes of a Kafka sink filled without a run, and what a consumer then reads; also a publisher as a process.

Run as a program, it publishes and dies at a step: ``outboxes.py FOLDER BROKER TOPIC STEP TIMES``.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import polars as pl
from confluent_kafka import Consumer, TopicPartition

from weir import Application, StreamsBuilder, String
from weir.infra.kafka import transactions
from weir.infra.kafka.librdkafka import rdkafka
from weir.infra.kafka.producer import TransactionalProducer
from weir.pipelines.publishing import kafka, publisher
from weir.pipelines.publishing.kafka import KafkaConnection
from weir.pipelines.publishing.publisher import Publisher
from weir.pipelines.sinks.kafka import KafkaTopic
from weir.pipelines.topology.topology import table_spec
from weir.state.commit.files import write_file
from weir.state.commit.outbox import Outbox
from weir.state.commit.tables import AppendTable

APP, SINK = "shop", "orders"
KEYS = 7
DIED = 9


def node_of(topic: str):
    builder = StreamsBuilder()
    builder.stream("in", key=String("user"), value=String("order")).to(topic, name=SINK)
    (node,) = Application(APP, builder).topology.sinks
    return node


class Shop:
    """An application's folder with one outbox, and the records that were committed to it, by key."""

    def __init__(self, folder: Path, topic: str, application: str = APP) -> None:
        self.folder, self.topic, self.application = folder, topic, application
        self.node = node_of(topic)
        self.spec = table_spec(self.node)
        self.table = AppendTable.create(folder, self.spec, application)
        self.sent: dict[str, list[str]] = {}
        self.epoch = 0

    def commit(self, *heights: int) -> None:
        """One epoch with files of so many rows; each file has keys of its own, as tasks do."""
        self._commit(
            [
                [[f"user-{task}-{number % KEYS}", f"{self.epoch + 1}-{task}-{number}"] for number in range(height)]
                for task, height in enumerate(heights)
            ]
        )

    def commit_orders(self, user: str, orders: list[str]) -> None:
        """One epoch with these orders of a user."""
        self._commit([([user, order] for order in orders)])

    def _commit(self, tasks: list[list[list[str]]]) -> None:
        self.epoch += 1
        files = []
        for task in tasks:
            rows = pl.DataFrame(task, schema=["user", "order"], orient="row")
            outgoing = self.node.sink.outgoing(rows.with_columns(_ts=self.epoch, _deleted=False))
            files.append(write_file(self.folder, self.spec, outgoing.with_columns(_epoch=pl.lit(self.epoch, pl.Int64))))
            for user, order in rows.rows():
                self.sent.setdefault(user, []).append(order)
        self.table.append(self.epoch, files)

    def publisher(self, broker: str, **more) -> Publisher:
        sink = self.node.sink
        assert isinstance(sink, KafkaTopic)
        connect = lambda: KafkaConnection(self.application, sink, {"bootstrap.servers": broker})
        outbox = Outbox(self.folder, SINK, self.application)
        return Publisher(outbox, SINK, connect, application=self.application, shown_key=sink.shown_key, **more)


def drain(publisher: Publisher) -> None:
    drained = Event()
    drained.set()
    publisher.run(Event(), drained)


def received(broker: str, topic: str, partitions: int) -> dict[str, list[str]]:
    """What a reader of committed records gets, by key, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker,
            "group.id": f"{topic}-reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    found: dict[str, list[str]] = {}
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    ended = 0
    while ended < partitions:
        for message in consumer.consume(1_000, timeout=1.0):
            if message.error() is not None:
                ended += 1
            else:
                found.setdefault(message.key().decode(), []).append(message.value().decode())
    consumer.close()
    return found


def main() -> None:
    folder, broker, topic, step, times = sys.argv[1:]
    left = int(times)
    kafka.LIMITS, publisher.REMOVE_EVERY_S = replace(kafka.LIMITS, rows=20), 0.0

    def on_step(name: str) -> None:
        nonlocal left
        left -= name == step
        if left == 0:
            os._exit(DIED)

    _tell_steps_of_transactions(on_step)
    drain(Shop(Path(folder), topic).publisher(broker, on_step=on_step))


def _tell_steps_of_transactions(on_step: Callable[[str], None]) -> None:
    """The steps inside a transaction: the publisher does not see them."""

    class Told(TransactionalProducer):
        def send_offset(self, *arguments: Any) -> None:
            rdkafka().rd_kafka_flush(ctypes.c_void_p(self._client), 10_000)
            on_step("records written")
            super().send_offset(*arguments)
            on_step("mark sent")

    transactions.TransactionalProducer = Told


if __name__ == "__main__":
    main()
