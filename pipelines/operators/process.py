"""Runs processors with their punctuations and timers; how records are given to them is in ``process_records`` and
``process_batches``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import polars as pl

from weir.pipelines.errors import RecordPlace, UserFunctionError
from weir.pipelines.operators import calls
from weir.pipelines.operators.epoch import Epoch
from weir.pipelines.operators.functions import KeyType, Records
from weir.pipelines.processors.forwarding import Cause
from weir.pipelines.processors.processor import Punctuation
from weir.pipelines.processors.running import STREAM, WALL, Out, Running, Shape
from weir.pipelines.serdes.row_type import RowType
from weir.state.own_code import failures

CHILD = "_child"
"""Of a forwarded row, the one child that it is for; null for all. The column is there only if a row has one."""
NOWHERE = (-1, -1)
"""The place of what no record caused."""
_numbers = count()
"""Of calls that are not for one record."""


@dataclass(frozen=True, kw_only=True)
class Process(ABC):
    """A processor's node. A record is processed before the punctuations and timers that it makes due."""

    shape: Shape
    value: RowType
    key_result: KeyType
    result: RowType

    @property
    def key(self) -> KeyType:
        """As the processor takes it."""
        return self.shape.key

    @property
    def clock(self) -> str:
        return self.shape.node

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        with self.at_work(epoch) as running:
            self._pass_wall_clock(running, epoch)
            self._take(rows, running, epoch)
            return self._rows(running.out)

    def process_one(self, row: pl.DataFrame, epoch: Epoch) -> None:
        """Process the one record that is under way; what is forwarded goes to the node's outlet."""
        with self.at_work(epoch) as running:
            self._take(row, running, epoch)

    def sent(self, forwarded: Out) -> pl.DataFrame:
        """What an outlet was left, as rows."""
        return self._rows(forwarded)

    def pass_time(self, epoch: Epoch) -> pl.DataFrame | None:
        """What is due by the wall clock, without a record; what the processor then forwards, None for nothing."""
        with self.at_work(epoch) as running:
            self._pass_wall_clock(running, epoch)
            return self._rows(running.out) if running.out else None

    def stop(self, epoch: Epoch) -> pl.DataFrame | None:
        """Close the processor; what it then forwards, None for nothing."""
        with self.at_work(epoch) as running:
            running.calls("close")
            with self._guarded("close"):
                running.processor.close()
            epoch.instances.pop(self.shape.node)
            return self._rows(running.out) if running.out else None

    def next_close_ms(self, epoch: Epoch) -> int | None:
        """The stream time at which something is due next; None if nothing is."""
        with self.at_work(epoch) as running:
            return running.next_ms(STREAM)

    def close(self, before_ms: int, epoch: Epoch) -> pl.DataFrame | None:
        """What is due once stream time has advanced from ``before_ms``, without a record."""
        with self.at_work(epoch) as running:
            self._fire(STREAM, epoch.clocks[self.clock], running)
            return self._rows(running.out) if running.out else None

    def due_ms(self, epoch: Epoch) -> int | None:
        """When, by the wall clock, something is due next; None if nothing is, or the wall clock does not pass."""
        if not epoch.passes_wall_clock:
            return None
        with self.at_work(epoch) as running:
            return running.next_ms(WALL)

    @abstractmethod
    def _take(self, rows: pl.DataFrame, running: Running, epoch: Epoch) -> None:
        """Give ``rows`` to the processor, and what they make due."""

    @abstractmethod
    def _call_timers(self, punctuation: Punctuation, time_ms: int, running: Running, place: Sequence[int]) -> None:
        """Call the timers that are due; ``place`` is that of the record that made them due."""

    @abstractmethod
    def _rows(self, forwarded: Out) -> pl.DataFrame:
        """What was forwarded, as columns."""

    @contextmanager
    def at_work(self, epoch: Epoch) -> Iterator[Running]:
        """The task's instance, at work in this epoch until the outermost ``with`` ends."""
        node = self.shape.node
        running: Any = epoch.instances.get(node)
        if running is not None and running.is_called:
            yield running
            return
        if running is None:
            running = epoch.instances[node] = Running(self.shape, epoch.task)
        try:
            with self._guarded("init"):
                running.enter(epoch.session, epoch.clocks, epoch.now_ms, epoch.metadata_of, epoch.outlets.get(node, []))
            yield running
        finally:
            for store, expired in running.leave().items():
                epoch.note_expired(store, expired)
        epoch.wants_commit = epoch.wants_commit or running.wants_commit

    def _pass_wall_clock(self, running: Running, epoch: Epoch) -> None:
        if epoch.passes_wall_clock and running.is_due(WALL, epoch.now_ms):
            self._fire(WALL, epoch.now_ms, running)

    def _when_through(self, epoch: Epoch, kind: str, call: Callable[[], None]) -> None:
        """Call what a record has made due, once the record is through."""
        if epoch.due is None:
            call()
        else:
            epoch.due[self.shape.node, kind] = call

    def _fire(self, punctuation: Punctuation, time_ms: int, running: Running, place: Sequence[int] = NOWHERE) -> None:
        """Call punctuations, then timers, that are due; ``place`` is that of the record that made them due."""
        self._punctuate(punctuation, time_ms, running, place)
        self._call_timers(punctuation, time_ms, running, place)

    def _punctuate(self, punctuation: Punctuation, time_ms: int, running: Running, place: Sequence[int]) -> None:
        partition, offset = place
        running.cause(Cause(partition, offset, time_ms))
        running.punctuate(punctuation, time_ms, self._guarded)

    @property
    def _name(self) -> str:
        return str(getattr(self.shape.supplier, "__qualname__", repr(self.shape.supplier)))

    @contextmanager
    def _guarded(self, what: str, given: Callable[[], str] = str) -> Iterator[None]:
        """Around a call of ``what`` that is not for one record; ``given`` says what it is for, if anything."""
        before, calls.running = calls.running, (self._called_with, (what, given), next(_numbers))
        try:
            yield
        except UserFunctionError:
            raise
        except failures() as error:
            raise self._failed(what, error, None, None) from error
        finally:
            calls.running = before

    def _called_with(self, call: tuple[str, Callable[[], str]], number: int) -> calls.Call:
        what, given = call
        return calls.Call(f"{f'{self._name}.{what}'!r} in {self.shape.node}", -1, number, given)

    def _failed(self, what: str, error: BaseException, records: Records | None, index: int | None) -> UserFunctionError:
        return self._failed_at(what, error, None if records is None or index is None else records.at(index))

    def _failed_at(self, what: str, error: BaseException, place: RecordPlace | None) -> UserFunctionError:
        return UserFunctionError(f"{self._name}.{what}", self.shape.node, f"{type(error).__name__}: {error}", place)
