"""The processors of Weir programs of the suite."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import polars as pl
from polars import col

from tests.pipelines.order.description import RESOLUTION, Totals
from tests.pipelines.order.renderings import Value, chain, ms, nothing
from weir import (
    BatchProcessor,
    FixedKeyProcessor,
    FixedKeyRecord,
    KeyValueStore,
    ListStore,
    Processor,
    Punctuation,
    Record,
)

LOOSE_FOR = ms(50)
"""How long records are held back by the wall clock."""


HEADER = "name"


class FromHeaders(FixedKeyProcessor[str, Value, Value]):
    """The processor of a step ``FromHeader``."""

    def init(self, context: Any) -> None:
        self.context = context

    def process(self, record: FixedKeyRecord[str, Value]) -> None:
        words = [content.decode() for name, content in record.headers if name == HEADER and content is not None]
        self.context.forward(record.with_value(Value(record.value.num, *words)))


def gathering(name: str, wait: int) -> type[FixedKeyProcessor[str, Value, Value]]:
    """The processor of a step ``Process``."""

    class Gathering(FixedKeyProcessor[str, Value, Value]):
        stores = (KeyValueStore(f"{name}-open", key=str, value=Value),)

        def init(self, context: Any) -> None:
            self.context, self.open = context, context.state_store(f"{name}-open")

        def process(self, record: FixedKeyRecord[str, Value]) -> None:
            if record.value is None:  # a table has removed the key
                return
            chained = chain(record.key, record.value, self.open.get(record.key) or nothing())
            if chained.num % 3 == 0:
                self.context.cancel_timer(record.key)
                self._send(record, chained)
            else:
                self.open.put(record.key, chained)
                self.context.timer(record.key, record.timestamp + ms(wait))

        def on_timer(self, record: FixedKeyRecord[str, None]) -> None:
            self._send(record, self.open.get(record.key))

        def _send(self, record: Any, chained: Value) -> None:
            self.open.delete(record.key)
            self.context.forward(record.with_value(chained))

    return Gathering


def totalling(name: str, step: Totals) -> type[Processor[str, Value, str, Value]]:
    """The processor of a step ``Totals`` that takes records."""

    class Totalling(Processor[str, Value, str, Value]):
        stores = (KeyValueStore(f"{name}-totals", key=str, value=int),)

        def init(self, context: Any) -> None:
            self.context, self.totals = context, context.state_store(f"{name}-totals")
            context.schedule(ms(step.every), Punctuation.STREAM_TIME, self.report)

        def process(self, record: Record[str, Value]) -> None:
            total = (self.totals.get(record.key) or 0) + record.value.num
            self.totals.put(record.key, total)
            self.context.timer(record.key, record.timestamp + ms(step.wait))
            self.context.forward(record.with_value(Value(total, record.value.word)))

        def report(self, now: datetime) -> None:
            for key, total in self.totals.all():
                self.context.forward(Record(key, Value(total, "all"), now))
                self.totals.delete(key)

        def on_timer(self, record: Record[str, None]) -> None:
            total = self.totals.delete(record.key)
            if total is not None:
                self.context.forward(record.with_value(Value(total, "quiet")))

    return Totalling


def totalling_by_columns(name: str, step: Totals) -> type[BatchProcessor[str, Value, str, Value]]:
    """The processor of a step ``Totals`` that takes batches."""

    class TotallingByColumns(BatchProcessor[str, Value, str, Value]):
        stores = (KeyValueStore(f"{name}-totals", key=str, value=int),)
        timer_resolution = ms(RESOLUTION)

        def init(self, context: Any) -> None:
            self.context, self.totals = context, context.state_store(f"{name}-totals")
            context.schedule(ms(step.every), Punctuation.STREAM_TIME, self.report)

        def process_batch(self, rows: pl.DataFrame) -> pl.DataFrame:
            held = self.totals.get_rows(rows.select("key").unique()).select("key", before="value")
            rows = rows.join(held, on="key", how="left", maintain_order="left")
            rows = rows.with_columns(num=col("before").fill_null(0) + col("num").cum_sum().over("key"))
            self.totals.put_rows(rows.select("key", "_ts", value="num"))
            self.context.timers(rows, col("_ts") + step.wait)
            return rows

        def report(self, now: datetime) -> None:
            rows = self.totals.all_rows()
            self.totals.delete_rows(rows.select("key"))
            at_ms = pl.lit(now).dt.timestamp("ms")
            self.context.forward_rows(rows.with_columns(num="value", word=pl.lit("all"), _ts=at_ms))

        def on_timers(self, rows: pl.DataFrame) -> pl.DataFrame:
            held = self.totals.get_rows(rows.select("key")).filter("_found").select("key", num="value")
            self.totals.delete_rows(held.select("key"))
            return rows.join(held, on="key", maintain_order="left").with_columns(word=pl.lit("quiet"))

    return TotallingByColumns


def holding(name: str) -> type[Processor[str, Value, str, Value]]:
    """The processor of a step ``Loose``."""

    class Holding(Processor[str, Value, str, Value]):
        stores = (ListStore(f"{name}-held", key=str, value=Value),)

        def init(self, context: Any) -> None:
            self.context, self.held = context, context.state_store(f"{name}-held")
            context.schedule(LOOSE_FOR, Punctuation.WALL_CLOCK_TIME, self.let_go)

        def process(self, record: Record[str, Value]) -> None:
            self.held.append(record.key, record.value)

        def let_go(self, now: datetime) -> None:
            self.close()

        def close(self) -> None:
            for key, values in self.held.all():
                for value in values:
                    self.context.forward(Record(key, value, datetime.fromtimestamp(1 + value.num / 1000, UTC)))
                self.held.delete(key)

    return Holding


def sharing(store: str, fold: Callable[[Any, Value, Value], Value]) -> type[FixedKeyProcessor[str, Value, Value]]:
    """A processor of a step ``Shared``."""

    class Sharing(FixedKeyProcessor[str, Value, Value]):
        def init(self, context: Any) -> None:
            self.context, self.known = context, context.state_store(store)

        def process(self, record: FixedKeyRecord[str, Value]) -> None:
            value = fold(record.key, record.value, self.known.get(record.key) or nothing())
            self.known.put(record.key, value)
            self.context.forward(record.with_value(value))

    return Sharing
