"""Streams: each record is a fact of its own. Tables are in ``table``, grouped and windowed streams in ``grouped``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

import polars as pl

from weir.pipelines.arguments import whole_number
from weir.pipelines.dsl.branching import BranchedKStream
from weir.pipelines.dsl.global_table import GlobalKTable, KeySelector, add_global_join
from weir.pipelines.dsl.graph import Graph, check_name
from weir.pipelines.dsl.grouped import KGroupedStream, repartition
from weir.pipelines.dsl.joins import JoinFunction, JoinKind, add_stream_join, add_stream_table_join
from weir.pipelines.dsl.mapping import add_flat_map, add_flat_map_values, add_map, add_select_key
from weir.pipelines.dsl.merging import add_merge
from weir.pipelines.dsl.stateless import add_filter, add_map_values, add_peek
from weir.pipelines.dsl.table import KTable, TtlClock, add_table
from weir.pipelines.errors import TopologyError
from weir.pipelines.operators.join_windows import JoinWindows
from weir.pipelines.topology.nodes import Node, TableSinkNode


class KStream:
    """A stream of records; methods add a node and return what comes out of it."""

    def __init__(self, graph: Graph, node: Node, *, has_new_key: bool) -> None:
        self._graph, self._node = graph, node
        self._has_new_key = has_new_key
        """The key was chosen anew, so the next grouping moves the records to the task that owns it."""

    def filter(self, predicate: pl.Expr | Callable[[Any, Any], bool]) -> KStream:
        """The records for which the predicate is true: an expression, or a function of ``(key, value)``."""
        return KStream(
            self._graph,
            add_filter(self._graph, self._node, predicate, "KSTREAM-FILTER-", is_table=False),
            has_new_key=self._has_new_key,
        )

    def filter_not(self, predicate: pl.Expr | Callable[[Any, Any], bool]) -> KStream:
        """The records that ``filter`` with the same predicate would drop: where it is false, or null."""
        return KStream(
            self._graph,
            add_filter(self._graph, self._node, predicate, "KSTREAM-FILTER-", is_table=False, is_negated=True),
            has_new_key=self._has_new_key,
        )

    def map(
        self,
        mapper: Callable[[Any, Any], tuple[Any, Any]] | None = None,
        /,
        *,
        key: str | Mapping[str, str | pl.Expr] | None = None,
        value: str | Mapping[str, str | pl.Expr] | None = None,
    ) -> KStream:
        """A new key and a new value: columns, as ``key="page", value={"ms": col("seconds") * 1000}``, or one function
        of ``(key, value)`` that returns the two, annotated ``tuple[Key, Value]``.

        The key counts as changed, as for ``select_key``. A value None is a null value.
        """
        return KStream(self._graph, add_map(self._graph, self._node, mapper, key, value), has_new_key=True)

    def flat_map(self, mapper: Callable[[Any, Any], Iterable[tuple[Any, Any]]], /) -> KStream:
        """Any number of records a record, of a function of ``(key, value)`` annotated ``list[tuple[Key, Value]]`` or
        ``Iterator[...]``; they keep the record's time and place. The key counts as changed."""
        return KStream(self._graph, add_flat_map(self._graph, self._node, mapper), has_new_key=True)

    def flat_map_values(
        self, mapper: Callable[[Any], Iterable[Any]] | None = None, /, **columns: str | pl.Expr
    ) -> KStream:
        """Any number of values a record under its key: of a function of the value annotated ``list[Value]`` or
        ``Iterator[...]``, or of columns, exactly one of them a list: ``word=col("text").str.split(" ")``.

        Each element of the list makes a record; a null value, no list or an empty one makes none.
        """
        return KStream(
            self._graph, add_flat_map_values(self._graph, self._node, mapper, columns), has_new_key=self._has_new_key
        )

    def map_values(self, mapper: Callable[[Any], Any] | None = None, /, **columns: str | pl.Expr) -> KStream:
        """The whole new value: columns by name and expression, or a function of the value with a return type."""
        return KStream(
            self._graph,
            add_map_values(self._graph, self._node, mapper, columns, "KSTREAM-MAPVALUES-", is_table=False),
            has_new_key=self._has_new_key,
        )

    def select_key(self, *selector: str | pl.Expr | Callable[[Any, Any], Any], **columns: str | pl.Expr) -> KStream:
        """A new key: columns by name and expression, or one function of ``(key, value)`` with a return type.

        The key counts as changed even if it stays equal, so the next grouping repartitions.
        """
        return KStream(self._graph, add_select_key(self._graph, self._node, selector, columns), has_new_key=True)

    def peek(self, action: Callable[[Any, Any], Any], /) -> KStream:
        """Show each record to ``action(key, value)`` and pass it on as it is.

        At least once: an epoch that is rolled back runs again, and shows its records again.
        """
        return KStream(
            self._graph, add_peek(self._graph, self._node, action, "KSTREAM-PEEK-"), has_new_key=self._has_new_key
        )

    def for_each(self, action: Callable[[Any, Any], Any], /) -> None:
        """Call ``action(key, value)`` for each record, at least once, as ``peek`` does; ends the stream.

        What it writes elsewhere is not part of a commit. A Delta table (``to_delta``) is.
        """
        add_peek(self._graph, self._node, action, "KSTREAM-FOREACH-")

    def split(self, name: str | None = None) -> BranchedKStream:
        """Branches, each with the records that no earlier one has taken: ``split("by-size-").branch(...)``.

        ``name`` begins the names of the branches; without it they have the node's running number.
        """
        return BranchedKStream(
            self._graph, self._node, name, lambda node: KStream(self._graph, node, has_new_key=self._has_new_key)
        )

    def repartition(self, name: str, *, partitions: int | None = None) -> KStream:
        """Move each record to the task that owns its key, whether the key was chosen anew or not.

        What follows runs in as many tasks as before, or in ``partitions``. Records with a null key pass too.
        """
        if partitions is not None:
            whole_number(partitions, f"repartition({name!r}): partitions", 1)
        node = repartition(
            self._graph, self._node, check_name("repartition", name), is_explicit=True, partitions=partitions
        )
        return KStream(self._graph, node, has_new_key=False)

    def merge(self, other: KStream) -> KStream:
        """The records of both streams, which have the same columns; those of one topic partition stay in order.

        Where several topics meet in a task, the oldest of the next records is taken first.
        """
        if not isinstance(other, KStream):
            raise TopologyError(
                f"merge got a {type(other).__name__}; pass a stream, as builder.stream(...) or table.to_stream()"
            )
        self._graph.check_meets(other._graph)
        return KStream(
            self._graph,
            add_merge(self._graph, self._node, other._node),
            has_new_key=self._has_new_key or other._has_new_key,
        )

    def join(
        self,
        other: KTable | KStream | GlobalKTable,
        joiner: JoinFunction | None = None,
        /,
        *,
        windows: JoinWindows | None = None,
        store: str | None = None,
        name: str | None = None,
        key: KeySelector | None = None,
        grace: timedelta | None = None,
    ) -> KStream:
        """Records with what their key has on the other side; what has nothing there is dropped.

        With a table: each record meets the row of that moment; updates of the table bring nothing. With a stream:
        records meet that are close in time as ``windows`` says, each pair once, with the greater time of the two;
        ``store`` names what is kept of both sides. With a global table: each record meets the row that ``key`` names, a
        column, an expression, several by name or a function of ``(key, value)``.

        With a versioned table each record meets the row that held at its own time. With ``grace`` records wait in
        ``store`` until stream time is so far beyond theirs, and join in the order of their time; one that is older
        already joins at once, and so does one without a key (KIP-923).

        The result has the columns of both values, those of the other side with ``_right`` behind a name that this one
        has too, or what ``joiner(value, other)`` or ``joiner(key, value, other)`` returns. Null values are dropped,
        and null keys. If the key was chosen anew, the records move to the task that owns it: with a table, ``name``
        names that repartition.
        """
        return self._join(other, joiner, windows, store, name, "inner", key, grace)

    def left_join(
        self,
        other: KTable | KStream | GlobalKTable,
        joiner: JoinFunction | None = None,
        /,
        *,
        windows: JoinWindows | None = None,
        store: str | None = None,
        name: str | None = None,
        key: KeySelector | None = None,
        grace: timedelta | None = None,
    ) -> KStream:
        """As ``join``, but a record with nothing on the other side, or without a key, goes on with nulls for that.

        With a stream that is when its window and the grace are over, by the stream time of both sides.
        """
        return self._join(other, joiner, windows, store, name, "left", key, grace)

    def outer_join(
        self,
        other: KStream,
        joiner: JoinFunction | None = None,
        /,
        *,
        windows: JoinWindows | None = None,
        store: str | None = None,
    ) -> KStream:
        """As ``left_join`` with a stream, for the records of both sides."""
        return self._join(other, joiner, windows, store, None, "outer")

    def _join(
        self,
        other: KTable | KStream | GlobalKTable,
        joiner: JoinFunction | None,
        windows: JoinWindows | None,
        store: str | None,
        name: str | None,
        kind: JoinKind,
        key: KeySelector | None = None,
        grace: timedelta | None = None,
    ) -> KStream:
        graph = self._graph
        if isinstance(other, (KStream, KTable, GlobalKTable)):
            graph.check_meets(other._graph)
        if kind == "outer" and not isinstance(other, KStream):
            raise TopologyError(
                f"outer_join joins two streams, and got a {type(other).__name__}; use left_join, for "
                "a table's row that no record meets is no event of a stream"
            )
        if isinstance(other, GlobalKTable) and windows is store is grace is name is None:
            node = add_global_join(graph, self._node, other._node, joiner, key, is_left=kind == "left")
            return KStream(graph, node, has_new_key=self._has_new_key)
        if isinstance(other, KStream) and key is grace is name is None:
            left, right = (
                repartition(graph, stream._node, f"{store}-{side}") if stream._has_new_key else stream._node
                for stream, side in ((self, "left"), (other, "right"))
            )
            node = add_stream_join(graph, left, right, joiner, windows, store, kind)
        elif isinstance(other, KTable) and windows is key is None and (store is None) == (grace is None):
            left = repartition(graph, self._node, name or self._node.name) if self._has_new_key else self._node
            node = add_stream_table_join(
                graph, left, other._node, joiner, name=name, is_left=kind == "left", grace=grace, store=store
            )
        else:
            raise TopologyError(
                f"a stream cannot join a {type(other).__name__} this way; pass a stream with "
                "windows= and store=, a table without them, a versioned table with grace= and store=, "
                "or a global table with key=; name= goes with the two tables that are not global"
            )
        return KStream(graph, node, has_new_key=False)

    def group_by_key(self) -> KGroupedStream:
        """Records by their key; moves them only if the key was chosen anew."""
        return KGroupedStream(self._graph, self._node, needs_repartition=self._has_new_key)

    def group_by(
        self, *selector: str | pl.Expr | Callable[[Any, Any], Any], **columns: str | pl.Expr
    ) -> KGroupedStream:
        """Records by a new key, as ``select_key`` and ``group_by_key`` after another."""
        return self.select_key(*selector, **columns).group_by_key()

    def to_table(
        self,
        store: str,
        *,
        ttl: timedelta | None = None,
        ttl_by: TtlClock = "stream_time",
        history_retention: timedelta | None = None,
    ) -> KTable:
        """The newest value of each key; a null value deletes the row, null keys are dropped.

        ``ttl``, ``ttl_by`` and ``history_retention`` as for ``StreamsBuilder.table``.
        """
        check_name("store", store)
        name = self._graph.new_name("KSTREAM-TOTABLE-")
        parent = repartition(self._graph, self._node, store) if self._has_new_key else self._node
        return add_table(
            self._graph, parent, store, name=name, ttl=ttl, ttl_by=ttl_by, history_retention=history_retention
        )

    def to_delta(self, table: str) -> None:
        """Append every record to the Delta table ``table``: key columns, value columns, ``_ts`` and the rest."""
        name = self._graph.new_name("KSTREAM-SINK-")
        self._graph.add(
            TableSinkNode(
                name=name,
                parent=self._node,
                record=self._node.record,
                table=check_name("table", table),
                is_updates=False,
            )
        )
