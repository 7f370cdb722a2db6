"""Runs processors: record after record, or batch after batch, with their punctuations and timers in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import polars as pl

from weir.pipelines.errors import UserFunctionError
from weir.pipelines.operators.epoch import Epoch
from weir.pipelines.operators.functions import KeyType, Records, UserFunction
from weir.pipelines.processors.processor import Punctuation
from weir.pipelines.processors.records import FixedKeyRecord, Record
from weir.pipelines.processors.running import STREAM, WALL, Cause, Forwarded, Running, Shape, as_time
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.serdes.shapes import TIME
from weir.pipelines.serdes.values import as_datetimes

CHILD = "_child"
"""Of a forwarded row, the one child that it is for; null for all. The column is there only if a row has one."""


@dataclass(frozen=True, kw_only=True)
class Process:
    """A processor's node. A record is processed before the punctuations and timers that it makes due."""

    shape: Shape
    key: KeyType
    """As the processor takes it."""
    value: RowType
    key_result: RowType
    result: RowType
    is_batch: bool

    @property
    def clock(self) -> str:
        return self.shape.node

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        with self._running(epoch) as running:
            self._pass_wall_clock(running, epoch)
            if self.is_batch:
                raise NotImplementedError
            self._each(rows, running, epoch)
        return self._rows(running.out)

    def pass_time(self, epoch: Epoch) -> pl.DataFrame | None:
        """What is due by the wall clock, without a record; what the processor then forwards, None for nothing."""
        with self._running(epoch) as running:
            self._pass_wall_clock(running, epoch)
        return self._rows(running.out) if running.out else None

    def stop(self, epoch: Epoch) -> pl.DataFrame | None:
        """Close the processor; what it then forwards, None for nothing."""
        with self._running(epoch) as running, self._guarded("close"):
            running.processor.close()
        epoch.instances.pop(self.shape.node)
        return self._rows(running.out) if running.out else None

    def next_close_ms(self, epoch: Epoch) -> int | None:
        """The stream time at which something is due next; None if nothing is."""
        with self._running(epoch) as running:
            return running.next_ms(STREAM)

    def close(self, before_ms: int, epoch: Epoch) -> pl.DataFrame | None:
        """What is due once stream time has advanced from ``before_ms``, without a record."""
        with self._running(epoch) as running:
            self._fire(STREAM, epoch.clocks[self.clock], running)
        return self._rows(running.out) if running.out else None

    def due_ms(self, epoch: Epoch) -> int | None:
        """When, by the wall clock, something is due next; None if nothing is."""
        with self._running(epoch) as running:
            return running.next_ms(WALL)

    @contextmanager
    def _running(self, epoch: Epoch) -> Iterator[Running]:
        """The task's instance, at work in this epoch."""
        node = self.shape.node
        running: Any = epoch.instances.get(node)
        if running is None:
            running = epoch.instances[node] = Running(self.shape, epoch.task)
        with self._guarded("init"):
            running.enter(epoch.session, epoch.clocks, epoch.now_ms, [])
        yield running
        epoch.wants_commit = epoch.wants_commit or running.wants_commit

    def _each(self, rows: pl.DataFrame, running: Running, epoch: Epoch) -> None:
        times = epoch.advance(self.clock, rows.get_column("_ts"))
        new: Any = FixedKeyRecord if self.shape.is_fixed_key else Record
        records = map(
            new,
            self.key.to_objects(rows),
            self.value.to_objects(rows, rows.get_column("_deleted")),
            as_datetimes(rows.get_column("_ts").cast(TIME)).to_list(),
        )
        causes = zip(
            rows.get_column("_partition").to_list(),
            rows.get_column("_offset").to_list(),
            rows.get_column("_ts").to_list(),
            strict=True,
        )
        process, due_ms = running.processor.process, running.next_ms(STREAM)
        given = Records(rows, self.key.names)
        for index, (record, cause, time_ms) in enumerate(zip(records, causes, times.to_list(), strict=True)):
            running.clocks[self.clock] = time_ms
            running.cause(Cause(*cause, epoch.metadata_of(*cause[:2])))
            try:
                process(record)
            except Exception as error:
                raise self._failed("process", error, given, index) from error
            due_ms = running.next_ms(STREAM)
            if due_ms is not None and due_ms <= time_ms:
                self._fire(STREAM, time_ms, running, cause[:2])

    def _pass_wall_clock(self, running: Running, epoch: Epoch) -> None:
        due_ms = running.next_ms(WALL) if epoch.passes_wall_clock else None
        if due_ms is not None and due_ms <= epoch.now_ms:
            self._fire(WALL, epoch.now_ms, running)

    def _fire(self, punctuation: Punctuation, time_ms: int, running: Running, place: Sequence[int] = (-1, -1)) -> None:
        """Call punctuations, then timers, that are due; ``place`` is that of the record that made them due."""
        partition, offset = place
        running.cause(Cause(partition, offset, time_ms, None))
        with self._guarded("a punctuation"):
            running.punctuate(punctuation, time_ms)
        new: Any = FixedKeyRecord if self.shape.is_fixed_key else Record
        for key, at_ms in running.due_timers(punctuation, time_ms):
            running.cause(Cause(partition, offset, at_ms, None))
            with self._guarded("on_timer"):
                running.processor.on_timer(new(key, None, as_time(at_ms)))

    def _rows(self, forwarded: Sequence[Forwarded]) -> pl.DataFrame:
        """What was forwarded, as columns."""
        records = [each.record for each in forwarded]
        nowhere = pl.DataFrame(schema={"_partition": pl.Int32, "_offset": pl.Int64, "_ts": pl.Int64})
        given = Records(nowhere, ())
        call = UserFunction(self.shape.supplier, self.shape.node, known_as=f"{self._name}.process")
        frame = pl.DataFrame(
            [
                *call.columns(self.key_result, [record.key for record in records], given),
                *call.columns(self.result, [record.value for record in records], given),
                pl.Series("_ts", [record.timestamp for record in records], dtype=TIME).dt.timestamp("ms"),
                pl.Series("_partition", [each.cause.partition for each in forwarded], dtype=pl.Int32),
                pl.Series("_offset", [each.cause.offset for each in forwarded], dtype=pl.Int64),
                pl.Series("_deleted", [record.value is None for record in records], dtype=pl.Boolean),
            ]
        )
        if any(each.child is not None for each in forwarded):
            frame = frame.with_columns(pl.Series(CHILD, [each.child for each in forwarded], dtype=pl.Int32))
        return frame

    @property
    def _name(self) -> str:
        return str(getattr(self.shape.supplier, "__qualname__", repr(self.shape.supplier)))

    @contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        try:
            yield
        except UserFunctionError:
            raise
        except Exception as error:
            raise self._failed(what, error, None, None) from error

    def _failed(self, what: str, error: Exception, records: Records | None, index: int | None) -> UserFunctionError:
        place = None if records is None or index is None else records.at(index)
        return UserFunctionError(f"{self._name}.{what}", self.shape.node, f"{type(error).__name__}: {error}", place)


Metadata = Callable[[int, int], Any]
