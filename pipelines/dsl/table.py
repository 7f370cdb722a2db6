"""Tables: the newest value of each key, and the updates that lead there."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

import polars as pl

from weir.pipelines.arguments import positive_ms
from weir.pipelines.dsl.foreign_key import ForeignKey, add_foreign_key_join
from weir.pipelines.dsl.graph import Graph, check_name, store_spec
from weir.pipelines.dsl.joins import JoinFunction, add_table_table_join
from weir.pipelines.dsl.stateless import add_filter, add_map_values
from weir.pipelines.dsl.suppressed import StrictBufferConfig, Suppressed
from weir.pipelines.errors import TopologyError
from weir.pipelines.operators.suppression_order import BufferLimits
from weir.pipelines.operators.table_table_join import JoinKind
from weir.pipelines.topology.joins import NewestToStreamNode, versioned_store
from weir.pipelines.topology.nodes import Node, SuppressNode, TableNode, TableSinkNode, ToStreamNode, Windows
from weir.state.stores.specs import VALID_FROM, buffer_spec, key_value_spec, versioned_spec
from weir.state.types import StoreClock

if TYPE_CHECKING:
    from weir.pipelines.dsl.stream import KStream
    from weir.pipelines.dsl.table_grouped import KGroupedTable

TtlClock = Literal["stream_time", "wall_clock"]


class KTable:
    """A table; methods add a node and return what comes out of it."""

    def __init__(self, graph: Graph, node: Node, *, windows: Windows | None = None, is_final: bool = False) -> None:
        self._graph, self._node = graph, node
        self._windows = windows
        self._is_final = is_final
        """Each row comes once and is never updated: it is a fact."""

    def filter(self, predicate: pl.Expr | Callable[[Any, Any], bool]) -> KTable:
        """The rows for which the predicate is true; one that no longer passes becomes a tombstone.

        The predicate, an expression or a function of ``(key, value)``, never sees a tombstone.
        """
        return self._then(add_filter(self._graph, self._node, predicate, "KTABLE-FILTER-", is_table=True))

    def filter_not(self, predicate: pl.Expr | Callable[[Any, Any], bool]) -> KTable:
        """The rows for which the predicate is false or null, as ``filter``."""
        return self._then(
            add_filter(self._graph, self._node, predicate, "KTABLE-FILTER-", is_table=True, is_negated=True)
        )

    def map_values(self, mapper: Callable[[Any], Any] | None = None, /, **columns: str | pl.Expr) -> KTable:
        """The whole new value, as for a stream; tombstones pass unmapped."""
        return self._then(add_map_values(self._graph, self._node, mapper, columns, "KTABLE-MAPVALUES-", is_table=True))

    def join(
        self,
        other: KTable,
        joiner: JoinFunction | None = None,
        /,
        *,
        foreign_key: ForeignKey | None = None,
        store: str | None = None,
    ) -> KTable:
        """The keys that both tables have, with the columns of both values, those of the other table with ``_right``
        behind a name that this one has too, or what ``joiner(value, other)`` or ``joiner(key, value, other)`` returns.

        An update of either table brings one of the result, with the greater time of the two rows.

        With ``foreign_key`` a row meets the other table's row that it names: by a column, an expression, several
        columns by name, or a function of ``(value)`` or ``(key, value)``. The result has this table's keys, the tables
        may differ in their partitions, and ``store`` names what is kept: who has named which key. A row that names
        nothing has no result; while rows are on their way between the tables, a result may be one that was right
        before.
        """
        return self._join(other, joiner, "inner", foreign_key, store)

    def left_join(
        self,
        other: KTable,
        joiner: JoinFunction | None = None,
        /,
        *,
        foreign_key: ForeignKey | None = None,
        store: str | None = None,
    ) -> KTable:
        """The keys of this table, with nulls where the other one has no row; else as ``join``."""
        return self._join(other, joiner, "left", foreign_key, store)

    def outer_join(self, other: KTable, joiner: JoinFunction | None = None, /) -> KTable:
        """The keys that either table has, with nulls for a row that is missing; else as ``join``."""
        return self._join(other, joiner, "outer")

    def _join(
        self,
        other: KTable,
        joiner: JoinFunction | None,
        kind: JoinKind,
        foreign_key: ForeignKey | None = None,
        store: str | None = None,
    ) -> KTable:
        if not isinstance(other, KTable):
            raise TopologyError(
                f"a table cannot join a {type(other).__name__}; pass a table, as builder.table(...) or "
                'stream.to_table("name")'
            )
        self._graph.check_meets(other._graph)
        if foreign_key is not None:
            return KTable(
                self._graph,
                add_foreign_key_join(self._graph, self._node, other._node, joiner, kind, foreign_key, store),
            )
        if store is not None:
            raise TopologyError(
                f"store={store!r} names what a join by foreign key keeps, and one by equal keys keeps "
                "nothing; leave it out, or pass foreign_key="
            )
        return KTable(self._graph, add_table_table_join(self._graph, self._node, other._node, joiner, kind))

    def group_by(self, *selector: str | pl.Expr | Callable[[Any, Any], Any], **columns: str | pl.Expr) -> KGroupedTable:
        """The rows by a new key, as ``KStream.group_by``. A row whose new key is null is in no group."""
        from weir.pipelines.dsl.table_grouped import add_table_group

        return add_table_group(self._graph, self._node, selector, columns)

    def suppress(self, suppressed: Suppressed) -> KTable:
        """Hold updates back; what comes out of a suppression until the window closes is final (KIP-328).

        A versioned table cannot be suppressed.
        """
        if not isinstance(suppressed, Suppressed):
            raise TopologyError(
                f"suppress got {suppressed!r}; pass Suppressed.until_window_closes(...) or "
                "Suppressed.until_time_limit(...)"
            )
        if (versions := versioned_store(self._node)) is not None:
            raise TopologyError(
                f"the table {versions.name!r} is versioned, and a suppression cannot hold back updates "
                "that may come out of order; suppress a table without history_retention=, as "
                '.to_stream().to_table("name") makes one'
            )
        records, size = suppressed.buffer.limits
        limits = BufferLimits(records=records, bytes=size, is_strict=isinstance(suppressed.buffer, StrictBufferConfig))
        delay_ms = suppressed.limit_ms if suppressed.limit_ms is not None else self._closes_after_ms()
        name = suppressed.name or self._graph.new_name("KTABLE-SUPPRESS-")
        store_name = f"{name}-store" if suppressed.name else self._graph.new_name("KTABLE-SUPPRESS-STATE-STORE-")
        record = self._node.record
        spec = store_spec(name, store_name, record, record.beside_key)
        is_final = suppressed.limit_ms is None
        node = SuppressNode(
            name=name,
            parent=self._node,
            record=record,
            delay_ms=delay_ms,
            is_final=is_final,
            limits=limits,
            windows=self._windows if is_final else None,
            idle_after_ms=suppressed.idle_after_ms,
            store=buffer_spec(spec.name, spec.key, spec.value),
        )
        return KTable(
            self._graph,
            self._graph.add(node),
            windows=None if is_final else self._windows,
            is_final=is_final or self._is_final,
        )

    def _closes_after_ms(self) -> int:
        """How long after their end the table's windows close; raises ``TopologyError`` when they do not."""
        if self._is_final:
            raise TopologyError("the results are final already; leave the suppression out")
        if self._windows is None:
            raise TopologyError(
                "suppress until the window closes needs a windowed table; put .windowed_by(...) before the aggregation"
            )
        if self._windows.closes_after_ms is None:
            raise TopologyError("unlimited windows never close; use Suppressed.until_time_limit(...)")
        return self._windows.closes_after_ms

    def to_stream(self) -> KStream:
        """Every update as a record of a stream, in the order of arrival; a tombstone becomes one with a null value."""
        from weir.pipelines.dsl.stream import KStream

        return KStream(self._graph, self._add_to_stream(), has_new_key=False)

    def to_delta(self, table: str, *, emit: Literal["newest", "record"] = "newest") -> None:
        """Append the updates to the Delta table ``table``, the newest a key and epoch; final results each once.

        With ``emit="record"`` every update is a row, as evaluating one record after another gives them. An update of a
        versioned table that is older than the newest row of its key is none of what the table is now, and left out.
        """
        if emit not in ("newest", "record"):
            raise TopologyError(f'emit is {emit!r}; it must be "newest" or "record"')
        parent = self._add_to_stream(ToStreamNode if versioned_store(self._node) is None else NewestToStreamNode)
        name = self._graph.new_name("KSTREAM-SINK-")
        self._graph.add(
            TableSinkNode(
                name=name,
                parent=parent,
                record=self._node.record,
                table=check_name("table", table),
                is_updates=not self._is_final,
                keeps_all=emit == "record",
            )
        )

    def _add_to_stream(self, kind: type[ToStreamNode] = ToStreamNode) -> Node:
        name = self._graph.new_name("KTABLE-TOSTREAM-")
        return self._graph.add(kind(name=name, parent=self._node, record=self._node.record))

    def _then(self, node: Node) -> KTable:
        return KTable(self._graph, node, windows=self._windows, is_final=self._is_final)


def add_table(
    graph: Graph,
    parent: Node,
    store: str,
    prefix: str = "",
    *,
    name: str = "",
    ttl: timedelta | None = None,
    ttl_by: TtlClock = "stream_time",
    history_retention: timedelta | None = None,
) -> KTable:
    """A table of the records of ``parent``, under ``name`` or the next number behind ``prefix``."""
    name = name or graph.new_name(prefix)
    record = parent.record
    spec = store_spec(name, check_name("store", store), record, record.beside_key)
    if history_retention is not None:
        if ttl is not None:
            raise TopologyError(
                f"the table {store!r} got both ttl= and history_retention=; rows of a versioned table "
                "go when their history is over, leave ttl= out"
            )
        if VALID_FROM in record.columns:
            raise TopologyError(
                f"the table {store!r} is versioned, and {VALID_FROM!r} is where its store keeps the "
                "time from which a row holds; rename the column"
            )
        spec = versioned_spec(
            spec.name, spec.key, spec.value, history_ms=positive_ms(history_retention, "history_retention")
        )
    elif ttl is not None:
        if ttl_by not in get_args(TtlClock):
            raise TopologyError(f"ttl_by is {ttl_by!r}; it must be one of {', '.join(get_args(TtlClock))}")
        spec = key_value_spec(
            spec.name, spec.key, spec.value, ttl_ms=positive_ms(ttl, "ttl"), expires_by=StoreClock(ttl_by)
        )
    return KTable(graph, graph.add(TableNode(name=name, parent=parent, record=record, store=spec)))
