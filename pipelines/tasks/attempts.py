"""Runs the rows of an epoch, and leaves out records on which an operator fails (KIP-1033), or waits with them.

The rows run all at once. If that fails, what they wrote is rolled back, and parts of them run one after another, down
to single records: a record is left out if it fails alone, after all records before it that are not left out. So the
outcome is that of the same input without those records, however large the epochs are.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Protocol

import msgspec
import polars as pl

from weir.pipelines.errors import ProcessingError, UserFunctionError
from weir.pipelines.on_error import ErrorHandling, Retry
from weir.pipelines.serdes.headers import HEADERS, headers_of
from weir.pipelines.serdes.source import BadRecord, RawRecords
from weir.pipelines.tasks.order import Turns
from weir.pipelines.tasks.output import EpochOutput
from weir.pipelines.topology.sub_topology import Edge
from weir.state.engine.session import EpochSession, Savepoint

Mark = tuple[Savepoint, int, int]


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A record that is to be tried again; nothing behind it is taken before."""

    record: BadRecord
    place: int
    """Its place among the rows of the epoch."""
    tried: int
    """How often it has been tried."""
    attempts: int
    """How often it is tried at most."""
    wait_ms: int


class Run(Protocol):
    """Runs rows after those that ran before."""

    def __call__(
        self,
        turns: Turns,
        clocks: Mapping[str, int],
        *,
        is_last: bool,
        time_ms: int | None = None,
        begins_time: bool = False,
    ) -> EpochOutput:
        """With ``is_last`` also what follows the epoch's rows; with ``time_ms`` stream time advances to it after them,
        and with ``begins_time`` begins there where it has not yet.

        Raises:
            ProcessingError: An operator failed.
        """
        ...


@dataclass(kw_only=True)
class Attempts:
    """The attempts to process one epoch of one task."""

    run: Run
    handling: ErrorHandling
    session: EpochSession
    instances: MutableMapping[str, object]
    """The task's processors: after a failure new ones are made, as after a crash."""
    raws: Mapping[str, RawRecords]
    """By topic, the records as they were read."""
    edges: Iterable[Edge]
    partition: int
    tried: int = 0
    """How often the first row has been tried before."""
    waiting: Waiting | None = None
    """The record to try again, after which no row has been taken."""
    dead: list[BadRecord] = field(default_factory=list)
    """Left out so far, and to be put into the dead letters."""
    left_out: list[BadRecord] = field(default_factory=list)
    """Left out so far, and to be counted only."""

    def process(self, turns: Turns, clocks: Mapping[str, int], *, first: int = 0, is_last: bool) -> list[EpochOutput]:
        """Process rows, the first of which has the place ``first`` in the epoch; the outputs in order, at least one.

        They end before the record that is ``waiting``, if one is.

        Raises:
            ProcessingError: A record fails on which the application wants to fail, or what fails is not caused by a
                record: what time makes due, or a processor's ``init`` or ``close``.
        """
        if self.handling.processing == "fail":
            return [self.run(turns, clocks, is_last=is_last)]
        outputs: list[EpochOutput] = []
        waiting = [(0, len(turns))]
        while waiting:
            start, stop = waiting.pop()
            before = self.session.savepoint()
            try:
                output = self.run(_part(turns, start, stop), clocks, is_last=is_last and not waiting)
            except ProcessingError as error:
                self._roll_back(before)
                if start == stop:
                    raise
                if stop - start > 1 and error.turn != 0:
                    waiting += reversed(_parts(start, stop, error.turn))
                    continue
                if start + 1 < stop:  # nothing came before the first row: alone it fails too
                    waiting.append((start + 1, stop))
                    stop = start + 1
                self._leave_out(_part(turns, start, stop), clocks, first + start, error)
                if self.waiting is not None:
                    return outputs or [self.run(Turns(), clocks, is_last=False)]
                if not waiting:  # what follows the rows is still to come
                    waiting.append((stop, stop))
            else:
                outputs.append(output)
                clocks = output.clocks
        return outputs

    def mark(self) -> Mark:
        """Where the attempts are, for ``back_to``."""
        return self.session.savepoint(), len(self.dead), len(self.left_out)

    def back_to(self, mark: Mark) -> None:
        """Forget everything since ``mark``."""
        savepoint, dead, left_out = mark
        self._roll_back(savepoint)
        del self.dead[dead:], self.left_out[left_out:]

    def _leave_out(self, turn: Turns, clocks: Mapping[str, int], place: int, error: ProcessingError) -> None:
        (name,) = (name for name, frame in turn.frames.items() if frame.height)
        row = turn.frames[name]
        before = self.session.savepoint()
        try:  # a result that time makes fails with every later record too: leaving out this one is no way out
            is_of_time = isinstance(error, UserFunctionError) and error.record is None
            self.run(Turns(), clocks, is_last=False, time_ms=int(row["_ts"][0]), begins_time=is_of_time)
        finally:
            self._roll_back(before)
        record = self._bad_record(name, row, place, error)
        decision = self.handling.decide(record)
        if isinstance(decision, Retry):
            tried = 1 + (self.tried if place == 0 else 0)
            if tried < decision.attempts:
                self.waiting = Waiting(
                    record=record,
                    place=place,
                    tried=tried,
                    attempts=decision.attempts,
                    wait_ms=decision.wait_ms(tried),
                )
                return
            decision = decision.then
        match decision:
            case "fail":
                raise error
            case "continue":
                self.left_out.append(record)
            case "dead_letter":
                self.dead.append(record)

    def _roll_back(self, to: Savepoint) -> None:
        self.session.roll_back(to)
        self.instances.clear()

    def _bad_record(self, name: str, row: pl.DataFrame, place: int, error: ProcessingError) -> BadRecord:
        if name in self.raws:
            raw = self.raws[name]
            partition, offset = raw.partition, int(row["_offset"][0])
            read = raw.frame.row(by_predicate=pl.col("offset") == offset, named=True)
            key, value, time_ms = read["key"], read["value"], read["timestamp_ms"]
            kept = None
            headers = headers_of(read["headers"]) if "headers" in read else None
        else:
            partition, offset, time_ms = self.partition, place, int(row["_ts"][0])
            record = next(edge for edge in self.edges if edge.name == name).node.record
            key = _json(row, record.key_columns)
            value = None if row["_deleted"][0] else _json(row, record.value.columns)
            kept = _ipc(row)
            headers = headers_of(row[HEADERS].to_list()[0]) if HEADERS in row.columns else None
        return BadRecord(
            topic=name,
            partition=partition,
            offset=offset,
            timestamp_ms=time_ms,
            reason=error.cause,
            key=key,
            value=value,
            stage=error.stage,
            operator=error.node,
            trace="".join(traceback.format_exception(error.__cause__ or error)),
            row=kept,
            headers=headers,
        )


def _part(turns: Turns, start: int, stop: int) -> Turns:
    return turns[start:stop] if start < stop else Turns()


def _parts(start: int, stop: int, failed: int | None) -> list[tuple[int, int]]:
    """What to try instead of ``[start, stop)``: what comes before the row that failed, that row, and the rest; or, if
    it is not known, both halves."""
    if failed is None:
        middle = (start + stop) // 2
        return [(start, middle), (middle, stop)]
    at = start + failed
    return [(first, last) for first, last in ((start, at), (at, at + 1), (at + 1, stop)) if first < last]


def _ipc(row: pl.DataFrame) -> bytes:
    buffer = BytesIO()
    row.write_ipc(buffer)
    return buffer.getvalue()


def _json(row: pl.DataFrame, columns: Iterable[str]) -> bytes:
    return msgspec.json.encode(row.select_seq(list(columns)).row(0, named=True))
