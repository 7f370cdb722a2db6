"""Runs the rows of an epoch, and leaves out records on which an operator fails (KIP-1033), or that violate an
expectation, or waits with them, or stops before them.

The rows run all at once. If that fails, what they wrote is rolled back, and parts of them run one after another, down
to single records: a record is left out if it fails alone, after all records before it that are not left out. Records
that violate an expectation whatever came before them are left out together. So the outcome is that of the same input
without those records, however large the epochs are.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from operator import itemgetter
from typing import Any, Protocol

import msgspec
import numpy as np
import polars as pl

from weir.pipelines.errors import ExpectationError, ProcessingError, UserFunctionError
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


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """A record that violates an expectation at which the run stops; nothing behind it is taken."""

    record: BadRecord
    place: int
    """Its place among the rows of the epoch."""
    error: ExpectationError


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
    stops_records: bool
    """Whether an expectation puts records aside, or stops the run."""
    with_headers: Callable[[Sequence[BadRecord]], list[BadRecord]]
    """Adds the headers of records that were read without them, for a function that decides about them."""
    tried: int = 0
    """How often the row at ``tried_place`` has been tried before."""
    tried_place: int = 0
    waiting: Waiting | None = None
    """The record to try again, after which no row has been taken."""
    stopped: Stopped | None = None
    """The record at which the run stops."""
    left_out: list[BadRecord] = field(default_factory=list)
    """Left out so far, and to be counted only."""
    _dead: list[tuple[int, BadRecord]] = field(default_factory=list)
    """Left out so far, and to be put into the dead letters, each with its place among the rows of the epoch."""

    @property
    def dead(self) -> list[BadRecord]:
        """Left out so far, and to be put into the dead letters, in the order of the rows."""
        return [record for _, record in sorted(self._dead, key=itemgetter(0))]

    @property
    def ends_at(self) -> int | None:
        """The place of the record before which the rows end; None if they do not."""
        last = self.waiting or self.stopped
        return None if last is None else last.place

    def process(self, turns: Turns, clocks: Mapping[str, int], *, first: int = 0, is_last: bool) -> list[EpochOutput]:
        """Process rows, the first of which has the place ``first`` in the epoch; the outputs in order, at least one.

        They end before the record that is ``waiting``, or at which the run has ``stopped``, if there is one.

        Raises:
            ProcessingError: A record fails on which the application wants to fail, or what fails is not caused by a
                record: what time makes due, or a processor's ``init`` or ``close``.
        """
        if self.handling.processing == "fail" and not self.stops_records:
            return [self.run(turns, clocks, is_last=is_last)]
        outputs: list[EpochOutput] = []
        places = np.arange(first, first + len(turns))
        waiting = [(0, len(turns))]
        while waiting:
            start, stop = waiting.pop()
            before = self.session.savepoint()
            try:
                output = self.run(_part(turns, start, stop), clocks, is_last=is_last and not waiting)
            except ProcessingError as error:
                if self.handling.processing == "fail" and not isinstance(error, ExpectationError):
                    raise
                self._roll_back(before)
                if start == stop:
                    raise
                if isinstance(error, ExpectationError) and error.turns is not None and self._puts_aside(error):
                    found = start + np.asarray(error.turns)
                    records = self._bad_records(turns.only(found), places[found], error)
                    self._dead += zip(places[found].tolist(), records, strict=True)
                    turns, places = turns.without(found), np.delete(places, found)
                    waiting = [(begin - len(found), end - len(found)) for begin, end in waiting]
                    waiting.append((start, stop - len(found)))
                    continue
                if stop - start > 1 and error.turn != 0:
                    waiting += reversed(_parts(start, stop, error.turn))
                    continue
                if start + 1 < stop:  # nothing came before the first row: alone it fails too
                    waiting.append((start + 1, stop))
                    stop = start + 1
                self._leave_out(_part(turns, start, stop), clocks, int(places[start]), error)
                if (end := self.ends_at) is not None:
                    self._dead = [each for each in self._dead if each[0] < end]  # those behind it are met again
                    return outputs or [self.run(Turns(), clocks, is_last=False)]
                if not waiting:  # what follows the rows is still to come
                    waiting.append((stop, stop))
            else:
                outputs.append(output)
                clocks = output.clocks
        return outputs

    def mark(self) -> Mark:
        """Where the attempts are, for ``back_to``."""
        return self.session.savepoint(), len(self._dead), len(self.left_out)

    def back_to(self, mark: Mark) -> None:
        """Forget everything since ``mark``."""
        savepoint, dead, left_out = mark
        self._roll_back(savepoint)
        self.waiting = self.stopped = None
        del self._dead[dead:], self.left_out[left_out:]

    def _puts_aside(self, error: ExpectationError) -> bool:
        return error.on_violation == "dead_letter" and not self.handling.overrules_expectations

    def _leave_out(self, turn: Turns, clocks: Mapping[str, int], place: int, error: ProcessingError) -> None:
        (row,) = (frame for frame in turn.frames.values() if frame.height)
        before = self.session.savepoint()
        try:  # a result that time makes fails with every later record too: leaving out this one is no way out
            is_of_time = isinstance(error, UserFunctionError) and error.record is None
            self.run(Turns(), clocks, is_last=False, time_ms=int(row["_ts"][0]), begins_time=is_of_time)
        finally:
            self._roll_back(before)
        (record,) = self._bad_records(turn, np.array([place]), error)
        if isinstance(error, ExpectationError) and not self.handling.overrules_expectations:
            if error.on_violation == "fail":
                self.stopped = Stopped(record=record, place=place, error=error)
            else:
                self._dead.append((place, record))
            return
        if callable(self.handling.processing):
            (record,) = self.with_headers([record])
        decision = self.handling.decide(record)
        if isinstance(decision, Retry):
            tried = 1 + (self.tried if place == self.tried_place else 0)
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
                self._dead.append((place, record))

    def _roll_back(self, to: Savepoint) -> None:
        self.session.roll_back(to)
        self.instances.clear()

    def _bad_records(self, turns: Turns, places: np.ndarray, error: ProcessingError) -> list[BadRecord]:
        """The rows as records that ``error`` is about, in their order; ``places`` are their places in the epoch."""
        why = {"reason": error.cause, "stage": error.stage, "operator": error.node}
        if isinstance(error, ExpectationError):
            why["expectation"] = error.expectation
        else:
            why["trace"] = "".join(traceback.format_exception(error.__cause__ or error))
        found: dict[int, BadRecord] = {}
        for name, rows in turns.frames.items():
            at = places[turns.places[name]].tolist()
            made = self._read(name, rows, why) if name in self.raws else self._received(name, rows, at, why)
            found.update(zip(at, made, strict=True))
        return [found[place] for place in sorted(found)]

    def _read(self, topic: str, rows: pl.DataFrame, why: Mapping[str, Any]) -> Iterator[BadRecord]:
        """Records of a topic, as they were read."""
        raw = self.raws[topic]
        offsets = rows.get_column("_offset")
        for read in raw.frame.filter(raw.frame.get_column("offset").is_in(offsets.implode())).iter_rows(named=True):
            yield BadRecord(
                topic=topic,
                partition=raw.partition,
                offset=read["offset"],
                timestamp_ms=read["timestamp_ms"],
                key=read["key"],
                value=read["value"],
                headers=headers_of(read["headers"]) if "headers" in read else None,
                **why,
            )

    def _received(
        self, edge: str, rows: pl.DataFrame, places: Sequence[int], why: Mapping[str, Any]
    ) -> Iterator[BadRecord]:
        """Rows that came over a repartition."""
        record = next(each for each in self.edges if each.name == edge).node.record
        for row, place in zip(rows.iter_slices(1), places, strict=True):
            yield BadRecord(
                topic=edge,
                partition=self.partition,
                offset=place,
                timestamp_ms=int(row["_ts"][0]),
                key=_json(row, record.key_columns),
                value=None if row["_deleted"][0] else _json(row, record.value.columns),
                row=_ipc(row),
                headers=headers_of(row[HEADERS].to_list()[0]) if HEADERS in row.columns else None,
                **why,
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
