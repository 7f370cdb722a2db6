"""Outboxes of sinks that get batches, filled without a run; also a publisher that is killed at a step, for a process
of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import polars as pl

from tests.faults.dying import signalled_at
from weir import Application, StreamsBuilder, String
from weir.pipelines.publishing import publisher
from weir.pipelines.publishing.batches import BatchConnection
from weir.pipelines.publishing.connect import connect
from weir.pipelines.publishing.http import HttpSink
from weir.pipelines.publishing.publisher import Publisher
from weir.pipelines.sinks.own import Batch
from weir.pipelines.topology.topology import table_spec
from weir.state.commit.files import write_file
from weir.state.commit.outbox import Outbox
from weir.state.commit.tables import AppendTable

APP, SINK = "shop", "orders"
BATCH = 20


def http_node(url: str, **options: Any) -> Any:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=String("user"), value=String("order"))
    stream.to_http(url, name=SINK, **{"max_records": BATCH, **options})
    (node,) = Application(APP, builder).topology.sinks
    return node


def own_node(sink: Any, **options: Any) -> Any:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=String("user"), value=String("order"))
    stream.to_sink(sink, name=SINK, **{"max_records": BATCH, **options})
    (node,) = Application(APP, builder).topology.sinks
    return node


class Orders:
    """An application's folder with one outbox, and the orders that were committed to it, in the order of reading."""

    def __init__(self, folder: Path, node: Any) -> None:
        self.folder, self.node, self.spec = folder, node, table_spec(node)
        self.table = AppendTable.create(folder, self.spec, APP)
        self.sent: list[str] = []
        self.epoch = 0

    def commit(self, *heights: int) -> None:
        """One epoch with files of so many rows."""
        self.commit_orders(
            *([f"{self.epoch + 1}-{task}-{number}" for number in range(height)] for task, height in enumerate(heights))
        )

    def commit_orders(self, *tasks: list[str]) -> None:
        """One epoch with a file for each of the lists."""
        self.epoch += 1
        files = []
        for orders in tasks:
            rows = pl.DataFrame({"user": "ann", "order": orders, "_ts": self.epoch, "_deleted": False})
            outgoing = self.node.sink.outgoing(rows).with_columns(_epoch=pl.lit(self.epoch, pl.Int64))
            files.append((write_file(self.folder, self.spec, outgoing), orders))
        files.sort(key=lambda file: file[0].path)
        self.table.append(self.epoch, [entry for entry, _ in files])
        self.sent += [order for _, orders in files for order in orders]

    def outbox(self) -> Outbox:
        return Outbox(self.folder, SINK, APP)

    def files(self) -> list[str]:
        """The files with rows that are in the outbox's folder."""
        return [file.name for file in self.outbox().folder.list() if file.name.endswith(".parquet")]

    def publisher(self, **more: Any) -> Publisher:
        outbox = self.outbox()
        return Publisher(
            outbox,
            SINK,
            lambda: connect(APP, self.node.sink, outbox, {}, ""),
            application=APP,
            shown_key=self.node.sink.shown_key,
            **more,
        )


def drain(publisher: Publisher) -> None:
    drained = Event()
    drained.set()
    publisher.run(Event(), drained)


def drain_until_killed(folder: Path, url: str, step: str, times: int) -> None:
    """Publish, and be killed when the publisher comes to ``step`` for the ``times``-th time."""
    publisher.REMOVE_EVERY_S, publisher.FIRST_WAIT_S = 0.0, 0.02
    on_step = signalled_at(step, times)
    _tell_steps_of_a_batch(on_step)
    drain(Orders(folder, http_node(url)).publisher(on_step=on_step))


def _tell_steps_of_a_batch(on_step: Callable[[str], None]) -> None:
    """The steps inside ``publish``: the publisher does not see them."""
    sends, opens = HttpSink.send, BatchConnection.published

    def send(self: HttpSink, batch: Batch) -> None:
        sends(self, batch)
        on_step("request answered")

    def published(self: BatchConnection) -> Any:
        found = opens(self)
        on_step("mark read")
        return found

    HttpSink.send, BatchConnection.published = send, published  # type: ignore[method-assign]
