"""Processes one epoch of one task: passes the rows of its topics and edges through its operators to sinks and edges.

Reading, settling and writing files belong to ``epoch``; there is neither I/O nor a clock here.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np
import polars as pl

from weir.pipelines.errors import BufferFullError, ExpectationError, OperatorError, ProcessingError, UserFunctionError
from weir.pipelines.operators import calls
from weir.pipelines.operators.batch_session import BatchSession
from weir.pipelines.operators.epoch import Epoch, has_key
from weir.pipelines.operators.idle import Closing, Following, Idleness
from weir.pipelines.operators.process import Process
from weir.pipelines.operators.sliced_results import make_whole
from weir.pipelines.operators.suppress import HELD_BYTES
from weir.pipelines.processors.records import RecordMetadata
from weir.pipelines.serdes.headers import HEADERS, with_headers
from weir.pipelines.serdes.source import source_schema
from weir.pipelines.tasks.metered import MeteredSession, size_of
from weir.pipelines.tasks.metrics import EpochMetrics, Moments
from weir.pipelines.tasks.operator_factory import global_join_of, merge_of, operator_of, several_inputs_of
from weir.pipelines.tasks.order import LAST_KEY, MERGE, ORIGIN, Turns, last_key, sent
from weir.pipelines.tasks.output import EpochOutput, sink_rows
from weir.pipelines.tasks.record_by_record import NodeCalls, Walk, around, feeds, meant_for
from weir.pipelines.topology.expectations import depends_on_one_record
from weir.pipelines.topology.global_tables import GlobalJoinNode
from weir.pipelines.topology.headers import passes_headers
from weir.pipelines.topology.idle import followed_while_idle, idle_after_ms
from weir.pipelines.topology.nodes import (
    AggregateNode,
    LateRecordsNode,
    Node,
    RepartitionNode,
    SourceNode,
    SuppressNode,
    TableSinkNode,
)
from weir.pipelines.topology.processors import ProcessorNode
from weir.pipelines.topology.sub_topology import SubTopology
from weir.state.engine.contract import StateSession, StateView
from weir.state.errors import StateError
from weir.state.frames import picked, with_series, without
from weir.state.own_code import failures
from weir.state.stopwatch import NodeWork, running
from weir.state.stores.access import StoreTime
from weir.state.stores.key_value import KeyValueStore
from weir.state.stores.kinds import store_of
from weir.state.stores.session import SessionStore
from weir.state.types import StoreClock, StoreKind

P = ParamSpec("P")
Result = TypeVar("Result")
TURNS = "_turns"
"""The task's clock that counts the rows taken, which is the turn of the next one."""


@dataclass(frozen=True)
class _Given:
    """The rows of an epoch, and what the nodes have made of them."""

    inputs: Mapping[str, pl.DataFrame]
    arrived: dict[Node, list[pl.DataFrame]] = field(default_factory=dict)
    forwarded: dict[Node, pl.DataFrame] = field(default_factory=dict)
    sinks: dict[str, pl.DataFrame] = field(default_factory=dict)
    edges: dict[str, pl.DataFrame] = field(default_factory=dict)
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    """By node."""

    @contextmanager
    def measured(self, nodes: Sequence[Node]) -> Iterator[None]:
        """The stopwatch hears what the nodes do within the block: one, or those that take turns record by record."""
        if (stopwatch := running()) is None:
            yield
            return
        began_s = time.perf_counter()
        yield
        seconds = time.perf_counter() - began_s
        rows = sum(found.height for node in nodes if (found := self._made_by(node)) is not None)
        stopwatch.node(", ".join(node.name for node in nodes), NodeWork(seconds=seconds, rows=rows))

    def _made_by(self, node: Node) -> pl.DataFrame | None:
        match node:
            case TableSinkNode():
                return self.sinks.get(node.table)
            case RepartitionNode():
                return self.edges.get(node.name)
            case _:
                return self.forwarded.get(node)

    def forward(self, node: Node, rows: pl.DataFrame, counts: Counter[str], epoch: Epoch) -> None:
        self.forwarded[node] = rows
        if isinstance(node, SuppressNode):
            epoch.counts["suppression_emits"] += rows.height
            counts["suppression_emits"] += rows.height
        self.counts[node.name] = counts
        if isinstance(node, SourceNode):
            counts["process"] = rows.height


def _at_node(
    method: Callable[Concatenate[TaskProcessor, Node, P], Result],
) -> Callable[Concatenate[TaskProcessor, Node, P], Result]:
    """``method`` with errors that name the node, unless they are about the stores or a disk, or a buffer is full."""

    def named(self: TaskProcessor, node: Node, /, *args: P.args, **options: P.kwargs) -> Result:
        try:
            return method(self, node, *args, **options)
        except (StateError, BufferFullError, OSError, MemoryError):
            raise
        except ProcessingError as error:
            if isinstance(node, TableSinkNode):
                error.stage = "production"
            raise
        except failures() as error:
            raise OperatorError(node.name, f"{type(error).__name__}: {' '.join(str(error).split())}") from error
        finally:
            calls.running = None

    return named


class TaskProcessor:
    """The operators of one sub-topology. It holds no state between epochs: that is in the session and the clocks."""

    def __init__(
        self,
        sub_topology: SubTopology,
        global_tables: Mapping[str, StateView] = MappingProxyType({}),
        *,
        is_debug: bool = False,
        is_profiled: bool = False,
    ) -> None:
        """``global_tables`` are by the names of their stores; ``is_debug``: whether to measure what each node and store
        does; ``is_profiled``: whether to tell the time that operators spend in stores from their own."""
        self._sub_topology, self._is_debug, self._is_profiled = sub_topology, is_debug, is_profiled
        self._merges = {
            node: merge_of(node)
            for node in sub_topology.nodes
            if len(node.parents) > 1 and isinstance(node, ProcessorNode | TableSinkNode)
        }
        self._operators = {
            node: operator_of(node) for node in sub_topology.nodes if len(node.parents) < 2 or node in self._merges
        }
        self._operators |= {
            node: global_join_of(node, global_tables[node.table.store.name])
            for node in sub_topology.nodes
            if isinstance(node, GlobalJoinNode)
        }
        self._joins = {
            node: several_inputs_of(node, operator_of)
            for node in sub_topology.nodes
            if len(node.parents) > 1 and node not in self._merges
        }
        self._nothing: dict[Node, pl.DataFrame] = {}
        operators: dict[Node, object] = {**self._operators, **self._joins}
        self._closing = {node: operator for node, operator in operators.items() if isinstance(operator, Closing)}
        self._idleness: dict[Node, Idleness | Following] = {}
        for node, operator in self._closing.items():
            if (aggregation := followed_while_idle(node)) is not None:
                self._idleness[node] = Following(operator=operator, aggregation=aggregation.store.name)
            elif (after_ms := idle_after_ms(node)) is not None:
                self._idleness[node] = Idleness(operator=operator, after_ms=after_ms)
        self._processes = {node: each for node, each in operators.items() if isinstance(each, Process)}
        self._has_headers = {node for node in sub_topology.nodes if node.has_headers}
        self._drops_headers = {
            node
            for node in sub_topology.nodes
            if any(parent.has_headers for parent in node.parents) and not (node.has_headers and passes_headers(node))
        }
        """The nodes whose operators get no headers."""
        self._part = sub_topology.record_by_record
        one_by_one = () if self._part is None else self._part.nodes
        self._row_by_row = {
            node.name for node in sub_topology.nodes if depends_on_one_record(node) and node not in one_by_one
        }
        """The nodes that find all violations of an expectation at once."""
        self._before, self._after = (
            (list(sub_topology.nodes), list[Node]()) if self._part is None else around(self._part, sub_topology.nodes)
        )
        self._of_windows = [
            (node.store, node.hops)
            for node in sub_topology.nodes
            if isinstance(node, AggregateNode) and node.hops and not node.slices
        ]
        """Stores of whole windows, with the slices that they have if another program has kept them so."""
        self._looked_into = {store.name for node in sub_topology.nodes for store in node.foreign_stores}
        self._expiring = [store for store in sub_topology.stores if store.retention_ms is not None]
        self._window_stores = [
            store.name
            for node in sub_topology.nodes
            for store in node.stores
            if store.kind in (StoreKind.WINDOW, StoreKind.SESSION) and store.name in node.store_names
        ]
        suppressions = [node for node in sub_topology.nodes if isinstance(node, SuppressNode)]
        self._buffers = {store.name: node.name for node in suppressions for store in node.stores}
        """By store of a suppression, the suppression."""
        self._fused = [node.fused_with.store.name for node in suppressions if node.fused_with is not None]
        """The stores of aggregations that are evaluated together with a suppression."""

    def run(
        self,
        turns: Turns,
        session: StateSession,
        clocks: Mapping[str, int],
        now_ms: int,
        *,
        partition: int = 0,
        lets_idle: bool = False,
        end_time_ms: int | None = None,
        moves_clocks: bool = False,
        instances: MutableMapping[str, object] | None = None,
        passes_wall_clock: bool = True,
        begins_time: bool = False,
        stops: bool = False,
    ) -> EpochOutput:
        """Process the rows of an epoch, or a batch of them.

        With ``lets_idle`` inputs without records are idle: time passes for operators that define what idle input means.
        With ``end_time_ms`` the input has ended, and after the rows stream time advances to it, node by node; only
        where that makes something due, or with ``moves_clocks``, as a record would, everywhere that it has begun.
        ``instances`` are the task's processors, made where there are none; with ``stops`` they are closed after the
        rows. With ``begins_time`` a processor's stream time begins with the end of the input if it has not yet.
        Without ``passes_wall_clock`` nothing that they do by the wall clock is due. Writes go to ``session``.
        ``clocks`` are those of the task's last epoch and stay unchanged; ``partition`` is the task's.
        """
        metered, now = None, dict(clocks)
        for name in self._fused:
            if not self._is_debug:
                now.pop(HELD_BYTES + name, None)  # who counts on must count anew
            elif HELD_BYTES + name not in now:
                now[HELD_BYTES + name] = size_of(session, name)
        if self._is_debug:
            session = metered = MeteredSession(
                session, [store.name for store in self._sub_topology.stores], self._fused
            )
        elif self._is_profiled:
            session = MeteredSession(session, (), ())
        if self._looked_into:
            session = BatchSession(session, self._looked_into)
        epoch = Epoch(
            session=session,
            clocks=now,
            now_ms=now_ms,
            counts=Counter(),
            clocks_before=clocks,
            task=f"{self._sub_topology.index}_{partition}",
            instances={} if instances is None else instances,
            passes_wall_clock=passes_wall_clock,
            begins_time=begins_time,
            late_records=[] if self._is_debug else None,
        )
        for store, slices in self._of_windows:
            make_whole(store, slices, epoch)
        inputs, causes = self._in_turn(turns, epoch)
        epoch.metadata_of = partial(self._metadata_of, turns, causes)
        if self._sub_topology.edges_out and len(turns):
            epoch.clocks.update(zip(LAST_KEY, (int(turns.merge_ms[-1]), int(turns.origins[-1])), strict=True))
        placed = partial(_placed, sources=self._sub_topology.sources, given=turns.frames, in_turn=inputs, causes=causes)
        calls.placed = placed
        try:
            output = self._run(
                inputs, epoch, lets_idle=lets_idle, end_time_ms=end_time_ms, moves_clocks=moves_clocks, stops=stops
            )
        except ExpectationError as error:
            self._find_turns(error, causes)
            raise
        except UserFunctionError as error:
            raise placed(error) from error.__cause__
        finally:
            calls.placed = None
        edges = {
            edge.name: picked(
                sent(output.edges[edge.name], turns, causes, partition, last_key(epoch.clocks)),
                (*edge.schema, MERGE, ORIGIN),
            )
            for edge in self._sub_topology.edges_out
            if edge.name in output.edges
        }
        return replace(output, edges=edges, metrics=self._measured(output.metrics, epoch, metered))

    def _measured(self, metrics: EpochMetrics, epoch: Epoch, metered: MeteredSession | None) -> EpochMetrics:
        """``metrics`` with what the operators have noted, and if asked for, what stores hold and were asked."""
        metrics = replace(
            metrics,
            expired_of=dict(epoch.expired),
            overtime_ms_of={self._buffers[store]: values for store, values in epoch.overtimes.items()},
        )
        if metered is None:
            return metrics
        for name, grown in metered.grown.items():
            epoch.clocks[HELD_BYTES + name] += grown
        return replace(
            metrics,
            buffers={
                name: (metered.count(name), epoch.clocks.get(HELD_BYTES + name, 0))
                for name in (*self._buffers, *self._fused)
            },
            calls={store: dict(calls) for store, calls in metered.calls.items() if calls},
            call_ms={store: dict(took) for store, took in metered.took_ms.items() if took},
            late=tuple(epoch.late_records or ()),
        )

    def _run(
        self,
        inputs: Mapping[str, pl.DataFrame],
        epoch: Epoch,
        *,
        lets_idle: bool,
        end_time_ms: int | None,
        moves_clocks: bool,
        stops: bool,
    ) -> EpochOutput:
        """``run`` with rows that have turns; what it gives to edges is not yet in the form in which it is sent."""
        session = epoch.session
        moments = Moments(inputs.values(), epoch.clocks)
        given = _Given(inputs)
        calls = NodeCalls(
            process=lambda node, arrived, epoch: self._process(node, arrived, None, epoch),
            while_idle=lambda node, epoch: self._while_idle(node, end_time_ms, epoch, lets_idle=lets_idle),
            end=lambda node, epoch: self._end(node, end_time_ms, epoch),
            processes=self._processes,
            looked_into=self._looked_into,
        )
        for node in self._before:
            with given.measured((node,)):
                self._pass(node, given, calls, epoch, end_time_ms=end_time_ms, stops=stops)
        if self._part is not None:
            with given.measured(self._part.nodes):
                walk = Walk(self._part, calls, epoch)
                for node, rows in walk.run(feeds(self._part, inputs, given.forwarded), stops=stops).items():
                    given.forward(node, rows, walk.counts[node], epoch)
        for node in self._after:
            with given.measured((node,)):
                self._pass(node, given, calls, epoch, end_time_ms=end_time_ms, stops=stops)
        if moves_clocks and end_time_ms is not None:
            times = {name: time_ms for name, time_ms in epoch.clocks.items() if not name.startswith("_")}
            epoch.clocks.update({name: max(time_ms, end_time_ms) for name, time_ms in times.items()})
        due_ms = [
            *self._forget(epoch),
            *(due for each in self._idleness.values() if (due := each.due_ms(epoch)) is not None),
            *(due for each in self._processes.values() if not stops and (due := each.due_ms(epoch)) is not None),
        ]
        return EpochOutput(
            sinks=given.sinks,
            edges=given.edges,
            counts=dict(epoch.counts),
            clocks=epoch.clocks,
            gauges={"open_windows": sum(session.count(store) for store in self._window_stores)},
            next_punctuation_ms=min(due_ms, default=None),
            wants_commit=epoch.wants_commit,
            metrics=EpochMetrics(
                records=sum(rows.height for rows in inputs.values()),
                lateness_ms=moments.lateness_ms,
                nodes={name: dict(counts) for name, counts in given.counts.items() if counts},
                lateness_ms_of={
                    node.name: behind
                    for node in (self._sub_topology.nodes if self._is_debug else ())
                    if (behind := moments.behind(self._arrived(node, given, epoch))).count
                },
            ),
        )

    @_at_node
    def _pass(
        self, node: Node, given: _Given, calls: NodeCalls, epoch: Epoch, *, end_time_ms: int | None, stops: bool
    ) -> None:
        """Run one node over all rows."""
        before = epoch.counts.copy()
        arrived = self._arrived(node, given, epoch)
        if not arrived:
            rows = calls.while_idle(node, epoch)
        elif isinstance(node, TableSinkNode):
            arrived = self._with_headers(node, arrived)
            given.sinks[node.table] = sink_rows(node, self._merged(node, arrived, epoch))
            epoch.counts["rows_out"] += given.sinks[node.table].height
            return
        elif isinstance(node, RepartitionNode):
            key = list(node.record.key.columns)
            arrived = self._with_headers(node, arrived)
            kept = arrived[0] if node.keeps_null_keys else has_key(arrived[0], key, epoch)
            if kept.height:
                given.edges[node.name] = kept
            return
        else:
            rows = self._process(node, arrived, end_time_ms, epoch)
        if stops and node in self._processes:
            rows = _both(rows, self._processes[node].stop(epoch))
        if rows is not None:
            given.forward(node, rows, epoch.counts - before, epoch)

    def _arrived(self, node: Node, given: _Given, epoch: Epoch) -> list[pl.DataFrame]:
        """The rows of each of the node's parents, or of its topic; an empty list if there are none at all."""
        if node in given.arrived:
            return given.arrived[node]
        match node:
            case SourceNode():
                found = [given.inputs.get(node.topic)]
            case LateRecordsNode():
                found = [epoch.late.get(node.name)]
            case _:
                found = [
                    given.inputs.get(parent.name)
                    if isinstance(parent, RepartitionNode)
                    else meant_for(node, given.forwarded.get(parent), parent)
                    for parent in node.parents
                ]
        if all(rows is None or rows.is_empty() for rows in found):
            given.arrived[node] = []
        else:
            given.arrived[node] = [
                rows if rows is not None and rows.height else self._nothing_of(parent)
                for rows, parent in zip(found, node.parents or (node,), strict=True)
            ]
        return given.arrived[node]

    def _nothing_of(self, node: Node) -> pl.DataFrame:
        """No rows of the node."""
        if node not in self._nothing:
            self._nothing[node] = pl.DataFrame(schema=source_schema(node.record.columns))
        return self._nothing[node]

    def _merged(self, node: Node, arrived: list[pl.DataFrame], epoch: Epoch) -> pl.DataFrame:
        """The rows of all parents of a node to which it does not matter what comes from which."""
        return self._merges[node].process_all(arrived, epoch) if node in self._merges else arrived[0]

    @_at_node
    def _process(
        self, node: Node, arrived: list[pl.DataFrame], end_time_ms: int | None, epoch: Epoch
    ) -> pl.DataFrame | None:
        """What a node forwards for the rows of its parents or its topic."""
        epoch.node = node.name
        taken = self._with_headers(node, arrived)
        if node in self._joins:
            forwarded = self._joins[node].process_all(taken, epoch)
        else:
            operator = self._operators[node]
            rows = self._merged(node, taken, epoch)
            forwarded = operator.process(rows, epoch) if operator else rows
        if node in self._has_headers and node in self._drops_headers:
            causes = [rows for rows in arrived if HEADERS in rows.columns]
            forwarded = headers_of_causes(forwarded, causes)
            for late in node.children:
                if isinstance(late, LateRecordsNode) and late.name in epoch.late:
                    epoch.late[late.name] = headers_of_causes(epoch.late[late.name], causes)
        if idleness := self._idleness.get(node):
            idleness.hear(pl.concat([rows.get_column("_ts") for rows in arrived]), epoch)
        return _both(forwarded, self._end(node, end_time_ms, epoch))

    def _with_headers(self, node: Node, arrived: list[pl.DataFrame]) -> list[pl.DataFrame]:
        """The rows in the form in which a node takes them: all with headers, or all without."""
        if node in self._drops_headers:
            return [without(rows, HEADERS) for rows in arrived]
        if node not in self._has_headers:
            return arrived
        return [
            without(rows, HEADERS) if parent in node.looked_up else with_headers(rows)
            for parent, rows in zip(node.parents or (None,), arrived, strict=True)
        ]

    @_at_node
    def _while_idle(self, node: Node, end_time_ms: int | None, epoch: Epoch, *, lets_idle: bool) -> pl.DataFrame | None:
        """What a node without input forwards; None for nothing."""
        if node in self._processes:
            return _both(self._processes[node].pass_time(epoch), self._end(node, end_time_ms, epoch))
        idleness = self._idleness.get(node)
        return idleness.pass_time(epoch) if idleness and lets_idle else self._end(node, end_time_ms, epoch)

    @_at_node
    def _end(self, node: Node, end_time_ms: int | None, epoch: Epoch) -> pl.DataFrame | None:
        """What a node forwards when its stream time advances to the end of the input; None for nothing."""
        operator = self._closing.get(node)
        if end_time_ms is None or operator is None:
            return None
        before_ms = epoch.clocks.get(operator.clock)
        if before_ms is None and epoch.begins_time and node in self._processes:
            before_ms = end_time_ms - 1
        if before_ms is None or before_ms >= end_time_ms:
            return None
        epoch.clocks[operator.clock] = end_time_ms
        return operator.close(before_ms, epoch)

    def _forget(self, epoch: Epoch) -> list[int]:
        """Remove expired rows; returns when, in wall-clock ms, rows expire next in stores that use the wall clock.

        Windows expire when stream time has moved: under another retention, an open one has its final result before.
        """
        due_ms = []
        for spec in self._expiring:
            is_windowed = spec.kind in (StoreKind.WINDOW, StoreKind.SESSION)
            if is_windowed and epoch.clocks.get(spec.name) == epoch.clocks_before.get(spec.name):
                continue
            store = store_of(spec, epoch.session, StoreTime(clocks=epoch.clocks, now_ms=epoch.now_ms))
            if isinstance(store, (SessionStore, KeyValueStore)):
                store.forget_expired()
            else:
                store.expire()
            if isinstance(store, KeyValueStore) and spec.expires_by is StoreClock.WALL_CLOCK:
                due_ms += [due for due in (store.next_expiry_ms(),) if due is not None]
        return due_ms

    def _metadata_of(self, turns: Turns, causes: np.ndarray, partition: int, offset: int) -> RecordMetadata | None:
        """Where the record with this place, as ``_in_turn`` gives it, was read; None behind a repartition."""
        turn = int(np.searchsorted(causes, offset))
        if turn == len(causes) or causes[turn] != offset:
            return None
        for source in self._sub_topology.sources:
            places = turns.places.get(source.topic)
            if places is None:
                continue
            row = int(np.searchsorted(places, turn))
            if row < len(places) and places[row] == turn:
                frame = turns.frames[source.topic]
                return RecordMetadata(source.topic, frame["_partition"][row], frame["_offset"][row])
        return None

    def _find_turns(self, error: ExpectationError, causes: np.ndarray) -> None:
        """Note which turns caused the rows that violate an expectation: the first, and all if no other record can
        change what is judged."""
        offsets = np.unique(np.asarray(error.offsets))
        turns = np.searchsorted(causes, offsets)
        if not len(causes) or turns[-1] == len(causes) or (causes[turns] != offsets).any():
            return  # time made some of them
        error.turn = int(turns[0])
        if error.node in self._row_by_row:
            error.turns = tuple(turns.tolist())

    def _in_turn(self, turns: Turns, epoch: Epoch) -> tuple[Mapping[str, pl.DataFrame], np.ndarray]:
        """The frames with each row's turn as its offset, if they have no such order of their own, as one topic has;
        and the offsets by turn."""
        sub_topology = self._sub_topology
        if len(sub_topology.inputs) == 1 and sub_topology.sources:
            frame = turns.frames.get(sub_topology.inputs[0])
            return turns.frames, np.empty(0, np.int64) if frame is None else frame.get_column("_offset").to_numpy()
        first = epoch.clocks.get(TURNS, 0)
        if len(turns):
            epoch.clocks[TURNS] = first + len(turns)
        return {
            name: with_series(frame, pl.Series("_offset", first + turns.places[name]))
            for name, frame in turns.frames.items()
        }, first + np.arange(len(turns))


def headers_of_causes(rows: pl.DataFrame, causes: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """``rows`` with the headers of the ones of ``causes`` with their ``_offset``, of several the last; without any if
    there are no causes."""
    if not causes:
        return with_headers(rows)
    known = pl.concat([cause.select_seq("_offset", HEADERS) for cause in causes])
    known = known.unique("_offset", keep="last", maintain_order=True)
    return with_headers(rows.join(known, on="_offset", how="left", maintain_order="left"))


def _both(first: pl.DataFrame | None, then: pl.DataFrame | None) -> pl.DataFrame | None:
    """The rows of both; None for nothing."""
    found = [rows for rows in (first, then) if rows is not None and rows.height]
    return pl.concat(found, how="diagonal") if found else first


def _placed(
    error: UserFunctionError,
    sources: Iterable[SourceNode],
    given: Mapping[str, pl.DataFrame],
    in_turn: Mapping[str, pl.DataFrame],
    causes: np.ndarray,
) -> UserFunctionError:
    """``error`` with its turn, and with topic and offset of its record, if that is one of the records ``given``."""
    record = error.record
    if record is None:
        return error
    turn = int(np.searchsorted(causes, record.offset))
    if turn < len(causes) and causes[turn] == record.offset:
        error.turn = turn
    for topic in [source.topic for source in sources if source.topic in in_turn]:
        rows = in_turn[topic]
        at = (
            (rows.get_column("_partition") == record.partition) & (rows.get_column("_offset") == record.offset)
        ).arg_true()
        if at.len():
            offset = given[topic].get_column("_offset")[at[0]]
            placed = type(error)(error.function, error.node, error.reason, replace(record, topic=topic, offset=offset))
            placed.turn, placed.stage = error.turn, error.stage
            return placed
    return error
