"""Runs a part of a sub-topology record by record, depth first, as Kafka Streams runs all of one.

A record that a processor forwards passes through everything below it before ``forward`` returns. What a record makes
due is called when the record is through. Which part runs so is in ``weir.pipelines.topology.record_by_record``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import polars as pl

from weir.pipelines.operators import calls
from weir.pipelines.operators.batch_session import BatchSession
from weir.pipelines.operators.epoch import Epoch
from weir.pipelines.operators.process import CHILD, NOWHERE, Process
from weir.pipelines.operators.process_records import Given, ProcessRecords
from weir.pipelines.serdes.source import source_schema
from weir.pipelines.topology.nodes import LateRecordsNode, Node, RepartitionNode, readers_of
from weir.pipelines.topology.record_by_record import RecordByRecord
from weir.state.frames import without

Rows = pl.DataFrame | None


@dataclass(frozen=True, kw_only=True)
class NodeCalls:
    """How the task calls its operators."""

    process: Callable[[Node, list[pl.DataFrame], Epoch], Rows]
    """What a node forwards for rows, with a frame for each parent."""
    while_idle: Callable[[Node, Epoch], Rows]
    """What a node without rows forwards after the batch."""
    end: Callable[[Node, Epoch], Rows]
    """What a node with rows forwards after the batch."""
    processes: Mapping[Node, Process]
    looked_into: Collection[str]
    """The stores in which other nodes look up rows."""


class Walk:
    """One batch of records on their way through the part, one after another."""

    def __init__(self, part: RecordByRecord, calls: NodeCalls, epoch: Epoch) -> None:
        self._part, self._calls, self._epoch = part, calls, epoch
        inside = set(part.nodes)
        self._below = {
            node: [child for child in readers_of(node) if child in inside] for node in (*part.feeders, *part.nodes)
        }
        self._late = {
            node: [child for child in node.children if isinstance(child, LateRecordsNode)] for node in part.nodes
        }
        self._given: dict[Node, list[Any]] = {node: [] for node in part.nodes}
        """What each node forwarded, in order: rows, or what a processor has sent and nothing inside took as rows."""
        self._prepared: dict[tuple[Node, Node], Iterator[Given]] = {}
        """By feeder and child, the records that the child takes, if it takes each row."""
        self._late_outside: dict[str, pl.DataFrame] = {}
        self._heard = set[Node]()
        self._failure: Exception | None = None
        self.counts: dict[Node, Counter[str]] = {node: Counter() for node in part.nodes}

    def run(self, fed: Mapping[Node, Rows], *, stops: bool) -> dict[Node, pl.DataFrame]:
        """What each node forwards for the rows that the feeders forward."""
        epoch, processes = self._epoch, [node for node in self._part.nodes if node in self._calls.processes]
        outer, clocks_before = epoch.session, epoch.clocks_before
        epoch.session, epoch.clocks_before = BatchSession(outer, ()), epoch.clocks  # before a record is now
        epoch.outlets = {node.name: _Outlet(partial(self._leave, node)) for node in processes}
        epoch.due = {}
        try:
            with ExitStack() as stack:
                for node in processes:
                    stack.enter_context(self._calls.processes[node].at_work(epoch))
                for node in reversed(processes):  # a processor is up to date before anything reaches it
                    self._calls.processes[node].pass_time(epoch)
                for feeder, rows in fed.items():
                    self._prepare(feeder, rows)
                _, nowhere = NOWHERE
                cause = nowhere
                with calls.timed():
                    for feeder, row, offset in self._in_turn(fed):
                        if offset != cause:
                            self._call_due()
                            cause = offset
                        self._deliver(feeder, row)
                if cause != nowhere:
                    self._call_due()
                for node in self._part.nodes:
                    self._call_due(node)
                    is_over = node in self._heard or node in self._calls.processes
                    self._forward(node, (self._calls.end if is_over else self._calls.while_idle)(node, epoch))
                    if stops and node in self._calls.processes:
                        self._calls.processes[node].stop(epoch)
                self._call_due()
        except Exception as error:
            if self._failure is None or self._failure is error:
                raise
            raise self._failure from self._failure.__cause__
        finally:
            epoch.session, epoch.clocks_before, epoch.outlets, epoch.due = outer, clocks_before, {}, None
        epoch.late.update(self._late_outside)
        return {node: rows for node in self._part.nodes if (rows := self._all_given(node)) is not None}

    def _in_turn(self, fed: Mapping[Node, Rows]) -> Iterator[tuple[Node, pl.DataFrame, int]]:
        """Rows of the feeders one by one, in the order in which the task has taken the records that caused them, each
        with the offset of that record."""
        frames = [(node, rows) for node, rows in fed.items() if rows is not None and rows.height]
        if not frames:
            return
        offsets = np.concatenate([rows.get_column("_offset").to_numpy() for _, rows in frames])
        feeders = np.repeat(np.arange(len(frames)), [rows.height for _, rows in frames])
        if len(frames) > 1:
            order = np.argsort(offsets, kind="stable")
            offsets, feeders = offsets[order], feeders[order]
        rest = [_each(rows) for _, rows in frames]
        for index, offset in zip(feeders.tolist(), offsets.tolist(), strict=True):
            yield frames[index][0], next(rest[index]), offset

    def _prepare(self, feeder: Node, rows: Rows) -> None:
        """Make the records that processors take of a feeder's rows, all at once."""
        if rows is None or CHILD in rows.columns:
            return
        for child in self._below[feeder]:
            process = self._calls.processes.get(child)
            if isinstance(process, ProcessRecords):
                self._prepared[feeder, child] = iter(process.given(rows))

    def _deliver(self, parent: Node, row: pl.DataFrame) -> None:
        """Pass one row of ``parent`` to each child inside, and so to all below."""
        for child in self._below[parent]:
            process = self._calls.processes.get(child)
            if isinstance(process, ProcessRecords) and (prepared := self._prepared.get((parent, child))) is not None:
                self._heard.add(child)
                process.process_given(next(prepared), self._epoch)
                continue
            if (meant := meant_for(child, row, parent)) is None or meant.is_empty():
                continue
            self._heard.add(child)
            if process is not None:
                process.process_one(meant, self._epoch)
            else:
                self._process(child, parent, meant)

    def _process(self, node: Node, parent: Node, row: pl.DataFrame) -> None:
        epoch, before = self._epoch, self._epoch.counts.copy()
        outer, clocks_before = epoch.session, epoch.clocks_before
        arrived = [
            row if each is parent else pl.DataFrame(schema=source_schema(each.record.columns)) for each in node.parents
        ]
        stores = {store.name for store in node.stores if store.name in self._calls.looked_into}
        if stores:  # nodes below see the row that this one is about to replace
            epoch.session, epoch.clocks_before = BatchSession(outer, stores), dict(epoch.clocks)
        try:
            rows = self._calls.process(node, arrived, epoch)
            self.counts[node] += epoch.counts - before
            self._forward(node, rows)
        finally:
            epoch.session, epoch.clocks_before = outer, clocks_before
        for late in self._late[node]:
            if (dropped := epoch.late.pop(late.name, None)) is not None:
                self._forward_late(late, dropped)

    def _forward_late(self, late: LateRecordsNode, rows: pl.DataFrame) -> None:
        if late in self._given:
            self._forward(late, rows)
        else:
            before = self._late_outside.get(late.name)
            self._late_outside[late.name] = rows if before is None else pl.concat([before, rows])

    def _forward(self, node: Node, rows: Rows) -> None:
        if rows is None or rows.is_empty():
            return
        self._given[node].append(rows)
        if self._below[node]:
            for row in _each(rows):
                self._deliver(node, row)

    def _leave(self, node: Node, sent: Any) -> None:
        """A processor has forwarded ``sent``."""
        try:
            if not self._pass_on(node, sent):
                self._forward(node, self._calls.processes[node].sent([sent]))
        except Exception as error:
            self._failure = self._failure or error  # whatever the processor that forwarded makes of it
            raise

    def _pass_on(self, node: Node, sent: Any) -> bool:
        """Hand a record to the processors below as it is, without columns; False if something below needs these."""
        process, targets = self._calls.processes[node], self._below[node]
        if sent.child is not None:
            name = process.shape.children[sent.child]
            targets = [child for child in targets if child.name == name]
        givens: list[tuple[Node, ProcessRecords, Given]] = []
        for child in targets:
            to = self._calls.processes.get(child)
            if not (isinstance(process, ProcessRecords) and isinstance(to, ProcessRecords)):
                return False
            if (given := process.passed_on(sent, to)) is None:
                return False
            givens.append((child, to, given))
        self._given[node].append(sent)
        for child, to, given in givens:
            self._heard.add(child)
            to.process_given(given, self._epoch)
        return True

    def _call_due(self, only: Node | None = None) -> None:
        """Call what is due, node by node, with what comes of it; a failure that a processor hides ends the epoch."""
        due = self._epoch.due
        assert due is not None
        for node in self._part.nodes if only is None else (only,):  # what comes of it is due further down
            for key in [key for key in due if key[0] == node.name]:
                due.pop(key)()
        if self._failure is not None:
            raise self._failure

    def _all_given(self, node: Node) -> Rows:
        parts: list[pl.DataFrame] = []
        for is_rows, each in groupby(self._given[node], lambda each: isinstance(each, pl.DataFrame)):
            found = list(each)
            parts += found if is_rows else [self._calls.processes[node].sent(found)]
        return pl.concat(parts, how="diagonal") if parts else None


class _Outlet(list[Any]):
    """Passes on what is appended, and stays empty."""

    def __init__(self, leave: Callable[[Any], None]) -> None:
        super().__init__()
        self._leave = leave

    def append(self, sent: Any) -> None:
        self._leave(sent)


def meant_for(node: Node, rows: Rows, parent: Node) -> Rows:
    """Of a processor's rows, those that are for all nodes below it or for ``node``."""
    if rows is None or CHILD not in rows.columns:
        return rows
    is_meant = pl.col(CHILD).is_null() | (pl.col(CHILD) == [child.name for child in parent.children].index(node.name))
    return without(rows.filter(is_meant), CHILD)


def feeds(part: RecordByRecord, inputs: Mapping[str, pl.DataFrame], forwarded: Mapping[Node, Rows]) -> dict[Node, Rows]:
    """What the feeders of ``part`` forward."""
    return {
        feeder: inputs.get(feeder.name) if isinstance(feeder, RepartitionNode) else forwarded.get(feeder)
        for feeder in part.feeders
    }


def around(part: RecordByRecord, nodes: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    """The nodes that run before the part, and those that run after it, since they get its rows."""
    after = set(part.nodes)
    for node in nodes:  # parents before children
        if any(parent in after for parent in node.parents if not isinstance(parent, RepartitionNode)):
            after.add(node)
    outside = [node for node in nodes if node not in part.nodes]
    return [node for node in outside if node not in after], [node for node in outside if node in after]


def _each(rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """The rows one by one."""
    return (rows[place : place + 1] for place in range(rows.height)) if rows.height > 1 else iter((rows,))
