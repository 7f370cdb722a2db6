"""Outboxes of SQL sinks filled without a run, and what their tables then hold; also a publisher that gets a
signal at a step, for a process of its own."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import polars as pl
from sqlalchemy import Engine, event

from tests.faults.dying import signalled_at
from weir import Application, Json, StreamsBuilder, String
from weir.pipelines.publishing import publisher, sql
from weir.pipelines.publishing.publisher import Publisher
from weir.pipelines.publishing.sql import SqlConnection
from weir.pipelines.sinks.sql import SqlTable
from weir.pipelines.topology.topology import table_spec
from weir.state.commit.files import write_file
from weir.state.commit.outbox import Outbox
from weir.state.commit.refused import Refused
from weir.state.commit.tables import AppendTable

APP, TABLE = "shop", "orders"
USERS = 7
STEPS = ("rows read", "mark moved", "before commit", "rows published", "outbox emptied")


@dataclass(frozen=True)
class Order:
    item: str
    cents: int | None


class SqlShop:
    """An application's folder with one outbox, the records that were committed to it, and the newest of each user."""

    def __init__(
        self, folder: Path, url: str, mode: str = "append", *, value: Any = Order, application: str = APP, **more: Any
    ) -> None:
        builder = StreamsBuilder()
        builder.stream("in", key=String("user"), value=Json(value)).to_sql(TABLE, mode=mode, url=url, **more)
        (self.node,) = Application(application, builder).topology.sinks
        assert isinstance(self.node.sink, SqlTable)
        self.sink: SqlTable = self.node.sink
        self.folder, self.application = folder, application
        self.spec = table_spec(self.node)
        self.table = AppendTable.create(folder, self.spec, application)
        self.sent: list[dict[str, Any]] = []
        self.epoch = self.table.version

    @property
    def newest(self) -> dict[str, dict[str, Any]]:
        """By user, without those whose newest record is a tombstone."""
        found = {row["user"]: row for row in self.sent}
        return {user: row for user, row in found.items() if row["item"] is not None}

    def commit(self, *heights: int) -> None:
        """One epoch with files of so many rows, about every fifth a tombstone; each file has users of its own, as
        tasks do."""
        rng = random.Random(self.epoch)
        self.epoch += 1
        files = []
        for task, height in enumerate(heights):
            rows = [
                {
                    "user": f"user-{task}-{rng.randrange(USERS)}",
                    "item": f"{self.epoch}-{task}-{number}",
                    "cents": number,
                }
                for number in range(height)
            ]
            files.append(self._file([row if rng.randrange(5) else tombstone(row["user"]) for row in rows]))
        self.table.append(self.epoch, files)

    def commit_rows(self, rows: list[dict[str, Any]]) -> None:
        """One epoch with these rows; one whose value is null is a tombstone."""
        self.epoch += 1
        self.table.append(self.epoch, [self._file(rows)])

    def publisher(self, **more: Any) -> Publisher:
        return Publisher(
            Outbox(self.folder, self.sink.name, self.application),
            self.sink.name,
            lambda: SqlConnection(self.application, self.sink, ""),
            application=self.application,
            shown_key=self.sink.shown_key,
            **more,
        )

    def publisher_of_refused(self) -> Publisher:
        """As for ``weir sink retry``."""
        sink = replace(self.sink, name=f"{self.sink.name}.refused")
        outbox = Outbox(self.folder, self.sink.name, self.application, is_of_refused=True)
        again = Publisher(
            outbox,
            sink.name,
            lambda: SqlConnection(self.application, sink, ""),
            application=self.application,
            shown_key=sink.shown_key,
        )
        again.decide("resume")
        return again

    def refused(self) -> Refused:
        return Refused(self.folder, self.sink.name, self.application)

    def _file(self, rows: list[dict[str, Any]]) -> Any:
        schema = self.node.record.columns
        is_gone = [all(row[name] is None for name in self.sink.value.columns) for row in rows]
        frame = pl.DataFrame(rows, schema=schema).with_columns(
            _ts=pl.lit(self.epoch), _deleted=pl.Series(is_gone, dtype=pl.Boolean)
        )
        outgoing = self.sink.outgoing(frame).with_columns(_epoch=pl.lit(self.epoch, pl.Int64))
        self.sent += rows
        return write_file(self.folder, self.spec, outgoing)


def tombstone(user: str) -> dict[str, Any]:
    return {"user": user, "item": None, "cents": None}


def drain(publisher: Publisher) -> None:
    drained = Event()
    drained.set()
    publisher.run(Event(), drained)


def drain_until(folder: Path, url: str, mode: str, ended_by: signal.Signals, step: str, times: int) -> None:
    """Publish, and get the signal when the publisher comes to ``step`` for the ``times``-th time."""
    sql.LIMITS, publisher.REMOVE_EVERY_S = replace(sql.LIMITS, rows=20), 0.0
    on_step = signalled_at(step, times, ended_by)
    _tell_steps_of_transactions(on_step)
    drain(SqlShop(folder, url, mode).publisher(on_step=on_step))


def _tell_steps_of_transactions(on_step: Callable[[str], None]) -> None:
    """The steps inside a transaction, and those of connecting: the publisher does not see them."""

    @event.listens_for(Engine, "after_cursor_execute")
    def executed(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("UPDATE weir_progress"):
            on_step("mark moved")

    @event.listens_for(Engine, "commit")
    def committing(connection: Any) -> None:
        on_step("before commit")
