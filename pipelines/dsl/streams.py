"""Streams, tables and what they are grouped into, and how each of these kinds leads to the other kinds.

They refer to each other, so one module defines them all. What a kind can do without the others is in its base class:
``stream_operations``, ``table_operations``, ``grouped``, ``cogrouped``, ``table_grouped``, ``branching``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Literal, overload

import polars as pl

from weir.pipelines.arguments import what_it_is
from weir.pipelines.dsl.batching import add_batch
from weir.pipelines.dsl.branching import Branches
from weir.pipelines.dsl.cogrouped import (
    Aggregator,
    CogroupedByFunction,
    CogroupedBySession,
    CogroupedByWindow,
)
from weir.pipelines.dsl.global_table import GlobalKTable, KeySelector, add_global_join
from weir.pipelines.dsl.graph import Materialized, check_name, check_store
from weir.pipelines.dsl.grouped import (
    Aggregating,
    GroupedByFunction,
    GroupedBySession,
    GroupedByWindow,
    repartition,
)
from weir.pipelines.dsl.joins import (
    JoinFunction,
    JoinStores,
    add_stream_join,
    add_stream_table_join,
    repartition_names,
)
from weir.pipelines.dsl.processing import add_processor
from weir.pipelines.dsl.stream_operations import StreamOperations
from weir.pipelines.dsl.table_grouped import GroupedTable, add_table_group
from weir.pipelines.dsl.table_operations import TableOperations, TtlClock, add_table
from weir.pipelines.dsl.windowing import Windowing
from weir.pipelines.errors import TopologyError
from weir.pipelines.operators.aggregates import Aggregate, Count
from weir.pipelines.operators.join_windows import JoinWindows
from weir.pipelines.operators.session_windows import SessionWindows
from weir.pipelines.operators.sliding_windows import SlidingWindows
from weir.pipelines.operators.table_table_join import JoinKind
from weir.pipelines.operators.windows import TimeWindows, UnlimitedWindows
from weir.pipelines.processors.stores import StoreDeclaration
from weir.pipelines.topology.nodes import AggregateNode, Windows


class KTable(TableOperations):
    """A table: the newest value of each key, and the updates that lead there."""

    def to_stream(self) -> KStream:
        """Every update as a record of a stream, in the order of arrival; a tombstone becomes a null value.

        Examples:
            >>> builder = StreamsBuilder()
            >>> stock = builder.table("stock", key=String("item"), value=Int64("pieces"), store="stock")
            >>> stock.to_stream().filter(col("pieces") == 0).to_delta("sold_out")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("stock").pipe_key_value_list([("tea", 2), ("tea", 0)])
            >>> driver.create_output_table("sold_out").read_rows()
            [{'item': 'tea', 'pieces': 0}]
        """
        return KStream(self._graph, self._add_to_stream(), has_new_key=False)

    def process(
        self, supplier: Callable[[], Any], *, stores: Sequence[StoreDeclaration | str] = (), name: str | None = None
    ) -> KStream:
        """Pass every update to a processor, as ``to_stream().process(...)``; the value of a tombstone is None.

        Examples:
            >>> class Changes(Processor[str, int, str, int]):
            ...     stores = (KeyValueStore("before", key=str, value=int),)
            ...     def init(self, context):
            ...         self.context, self.before = context, context.state_store("before")
            ...     def process(self, record):
            ...         change = (record.value or 0) - (self.before.get(record.key) or 0)
            ...         self.before.put(record.key, record.value)
            ...         self.context.forward(record.with_value(change))
            >>> builder = StreamsBuilder()
            >>> stock = builder.table("stock", key=String("item"), value=Int64("pieces"), store="stock")
            >>> stock.process(Changes).to_delta("changes")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("stock").pipe_key_value_list([("tea", 2), ("tea", 5), ("tea", None)])
            >>> driver.create_output_table("changes").read_key_values_to_list()
            [('tea', 2), ('tea', 3), ('tea', -5)]
        """
        return self.to_stream().process(supplier, stores=stores, name=name)

    def process_values(
        self, supplier: Callable[[], Any], *, stores: Sequence[StoreDeclaration | str] = (), name: str | None = None
    ) -> KStream:
        """Like ``process``, with a ``weir.FixedKeyProcessor``: what follows needs no repartition.

        Examples:
            >>> class IsThere(FixedKeyProcessor[str, int, bool]):
            ...     def init(self, context):
            ...         self.context = context
            ...     def process(self, record):
            ...         self.context.forward(record.with_value(record.value is not None))
            >>> builder = StreamsBuilder()
            >>> stock = builder.table("stock", key=String("item"), value=Int64("pieces"), store="stock")
            >>> stock.process_values(IsThere).to_delta("there")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("stock").pipe_key_value_list([("tea", 2), ("tea", None)])
            >>> driver.create_output_table("there").read_key_values_to_list()
            [('tea', True), ('tea', False)]
        """
        return self.to_stream().process_values(supplier, stores=stores, name=name)

    def group_by(self, *selector: str | pl.Expr | Callable[[Any, Any], Any], **columns: str | pl.Expr) -> KGroupedTable:
        """Group the rows by a new key, given as for ``KStream.group_by``. A row whose new key is null is in no group.

        Examples:
            >>> builder = StreamsBuilder()
            >>> homes = builder.table("homes", key=String("person"), value=String("town"), store="homes")
            >>> homes.group_by("town").count("people").to_delta("people_now")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("homes").pipe_key_value_list([("ann", "Oslo"), ("ann", "Bergen")])
            >>> driver.create_output_table("people_now").read_key_values_to_list()
            [('Oslo', 1), ('Oslo', 0), ('Bergen', 1)]
        """
        return KGroupedTable(self._graph, add_table_group(self._graph, self._looked_up(), selector, columns))


class _MakesKTables(Aggregating[KTable]):
    def _table(self, node: AggregateNode) -> KTable:
        return KTable(self._graph, node, windows=node.windows, is_final=node.is_final)


class KGroupedTable(_MakesKTables, GroupedTable[KTable]):
    """Rows of a table by another key. An update takes the old row out of its group and puts the new one in."""


class TimeWindowedKStream(_MakesKTables, GroupedByWindow[KTable], GroupedByFunction[KTable]):
    """Records by key and time window. Aggregating drops null keys; null values are folded, and counted by ``count``.

    Sliding windows drop null values too.
    """


class SessionWindowedKStream(_MakesKTables, GroupedBySession[KTable]):
    """Records by key and session. Aggregating drops null keys; null values are folded, and counted by ``count``.

    When a record changes the bounds of sessions or merges them, a tombstone for each of them precedes the new session.
    """


class KGroupedStream(_MakesKTables, GroupedByFunction[KTable]):
    """Records by key. Aggregating drops null keys and null values, and counts what it drops."""

    @overload
    def windowed_by(
        self,
        windows: SessionWindows,
        *,
        retention: timedelta | None = None,
        late_to: Callable[[KStream], object] | None = None,
        idle_after: timedelta | None = None,
    ) -> SessionWindowedKStream: ...

    @overload
    def windowed_by(
        self,
        windows: TimeWindows | UnlimitedWindows | SlidingWindows,
        *,
        retention: timedelta | None = None,
        late_to: Callable[[KStream], object] | None = None,
        idle_after: timedelta | None = None,
    ) -> TimeWindowedKStream: ...

    def windowed_by(
        self,
        windows: Windows,
        *,
        retention: timedelta | None = None,
        late_to: Callable[[KStream], object] | None = None,
        idle_after: timedelta | None = None,
    ) -> TimeWindowedKStream | SessionWindowedKStream:
        """Group the records by window too.

        ``retention`` keeps windows in the store after they close, so that they can be queried: it counts from their
        start, for sessions and sliding windows from their end. ``late_to`` is called with the stream of the late
        records, each once per closed window that it belongs to, with that window's bounds.

        With ``idle_after`` the wall clock closes windows while nothing arrives: after that much idle time, stream time
        advances with the clock, and later arrivals may be late. This happens neither while a run catches up nor in a
        backfill.

        Raises:
            TopologyError: The retention is shorter than the windows are open.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page")).group_by_key()
            >>> minute = TimeWindows.of_size_with_no_grace(timedelta(minutes=1))
            >>> minutes = clicks.windowed_by(minute, late_to=lambda late: late.to_delta("late_clicks"))
            >>> minutes.count("by_minute").to_delta("counts")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> for seconds in (0, 60, 30):
            ...     driver.create_input_topic("clicks").pipe_input("ann", "/", timestamp_ms=seconds * 1000)
            >>> driver.create_output_table("counts").read_values_to_list()
            [1, 1]
            >>> driver.create_output_table("late_clicks").read_values_to_list()
            ['/']
        """
        if late_to is not None and not callable(late_to):
            raise TopologyError(
                f"late_to is {late_to!r}; pass a function of the stream of late records, for example "
                'lambda late: late.to_delta("late")'
            )
        late = None if late_to is None else lambda node: late_to(KStream(self._graph, node, has_new_key=False))
        windowing = Windowing.of(windows, self._node.record, retention, idle_after, late)
        if isinstance(windows, SessionWindows):
            return SessionWindowedKStream(self._graph, self._node, self._needs_repartition, windowing)
        return TimeWindowedKStream(self._graph, self._node, self._needs_repartition, windowing)

    def cogroup(self, aggregator: Aggregator | None = None, /, **aggregates: Aggregate | Count) -> CogroupedKStream:
        """Begin an aggregation of several grouped streams that share one store and one result per key.

        This stream's records are folded by ``aggregator(key, value, aggregate)``, a function with a return type, or by
        vectorized aggregates of its columns. ``CogroupedKStream.cogroup`` adds further streams.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page")).group_by_key()
            >>> clicks.cogroup(clicks=Count()).agg("users").to_delta("users_now")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("clicks").pipe_input("ann", "/docs")
            >>> driver.create_output_table("users_now").read_rows()
            [{'user': 'ann', 'clicks': 1}]
        """
        return CogroupedKStream(self._graph, ()).cogroup(self, aggregator, **aggregates)


class TimeWindowedCogroupedKStream(_MakesKTables, CogroupedByWindow[KTable], CogroupedByFunction[KTable]):
    """Several grouped streams by key and time window; null keys and values as in ``TimeWindowedKStream``."""


class SessionWindowedCogroupedKStream(_MakesKTables, CogroupedBySession[KTable]):
    """Several grouped streams by key and session, which the records of all of them form together.

    Null keys, null values and tombstones are as in ``SessionWindowedKStream``.
    """


class CogroupedKStream(_MakesKTables, CogroupedByFunction[KTable]):
    """Several grouped streams. Aggregating drops null keys and null values, and counts what it drops."""

    def cogroup(
        self, grouped: KGroupedStream, aggregator: Aggregator | None = None, /, **aggregates: Aggregate | Count
    ) -> CogroupedKStream:
        """Add a stream, whose records are folded by ``aggregator`` or ``aggregates`` as for ``KGroupedStream``.

        Its key columns match those of the first stream by position and type.

        Raises:
            TopologyError: The keys differ in type, two aggregates have one name, or both or neither of an aggregator
                and aggregates are given.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page")).group_by_key()
            >>> orders = builder.stream("orders", key=String("user"), value=Int64("cents")).group_by_key()
            >>> clicks.cogroup(clicks=Count()).cogroup(orders, orders=Count()).agg("users").to_delta("users_now")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("orders").pipe_input("ann", 350)
            >>> driver.create_output_table("users_now").read_rows()
            [{'user': 'ann', 'clicks': 0, 'orders': 1}]
        """
        if not isinstance(grouped, KGroupedStream):
            raise TopologyError(
                f"cogroup got {what_it_is(grouped)}; pass a grouped stream, for example stream.group_by_key()"
            )
        return CogroupedKStream(self._graph, self._with(grouped, aggregator, aggregates))

    @overload
    def windowed_by(
        self, windows: SessionWindows, *, retention: timedelta | None = None, idle_after: timedelta | None = None
    ) -> SessionWindowedCogroupedKStream: ...

    @overload
    def windowed_by(
        self,
        windows: TimeWindows | UnlimitedWindows | SlidingWindows,
        *,
        retention: timedelta | None = None,
        idle_after: timedelta | None = None,
    ) -> TimeWindowedCogroupedKStream: ...

    def windowed_by(
        self,
        windows: Windows,
        *,
        retention: timedelta | None = None,
        idle_after: timedelta | None = None,
    ) -> TimeWindowedCogroupedKStream | SessionWindowedCogroupedKStream:
        """Group the records by window too, as ``KGroupedStream.windowed_by``; the streams share one stream time.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page")).group_by_key()
            >>> orders = builder.stream("orders", key=String("user"), value=Int64("cents")).group_by_key()
            >>> both = clicks.cogroup(clicks=Count()).cogroup(orders, orders=Count())
            >>> minute = TimeWindows.of_size_with_no_grace(timedelta(minutes=1))
            >>> both.windowed_by(minute).agg("by_minute").to_delta("counts")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("clicks").pipe_input("ann", "/docs", timestamp_ms=0)
            >>> driver.create_input_topic("orders").pipe_input("ann", 350, timestamp_ms=30_000)
            >>> driver.create_output_table("counts").read_values_to_list()
            [{'clicks': 1, 'orders': 0}, {'clicks': 1, 'orders': 1}]
        """
        windowing = Windowing.of(windows, self._inputs[0].node.record, retention, idle_after)
        if isinstance(windows, SessionWindows):
            return SessionWindowedCogroupedKStream(self._graph, self._inputs, windowing)
        return TimeWindowedCogroupedKStream(self._graph, self._inputs, windowing)


class BranchedKStream(Branches["KStream"]):
    """What ``KStream.split`` returns: add branches, then end with ``default_branch`` or ``no_default_branch``.

    Both return the branches by name: the split's name followed by the branch's. A branch without a name is numbered,
    from 1; the default branch is 0.
    """


class KStream(StreamOperations):
    """A stream of records, each an independent fact."""

    def split(self, name: str | None = None) -> BranchedKStream:
        """Split the stream into branches, each with the records that no earlier branch has taken.

        ``name`` begins the names of the branches; without it they begin with the node's running number.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("order"), value=Int64("cents"))
            >>> branches = orders.split("by-size-").branch(col("cents") > 10_000, "large").default_branch("small")
            >>> branches["by-size-large"].to_delta("large_orders")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("orders").pipe_key_value_list([("1", 20_000), ("2", 300)])
            >>> driver.create_output_table("large_orders").read_rows()
            [{'order': '1', 'cents': 20000}]
        """
        return BranchedKStream(self._graph, self._node, name, self._then)

    def process(
        self, supplier: Callable[[], Any], *, stores: Sequence[StoreDeclaration | str] = (), name: str | None = None
    ) -> KStream:
        """Pass the records to a processor, which forwards any others: see ``weir.Processor``.

        ``supplier`` is its class, or a function that makes a new one at each call. ``stores`` are kept beside those
        that the class declares; one that is given by name is shared: see ``StreamsBuilder.add_state_store``. ``name``
        names the node, and begins the names of the stores of its timers.

        Raises:
            TopologyError: It is no processor, or its types do not fit the records.

        Examples:
            >>> class Twice(Processor[str, int, str, int]):
            ...     def init(self, context):
            ...         self.context = context
            ...     def process(self, record):
            ...         self.context.forward(record)
            ...         self.context.forward(record.with_key(record.key.upper()))
            >>> builder = StreamsBuilder()
            >>> builder.stream("orders", key=String("user"), value=Int64("cents")).process(Twice).to_delta("twice")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("orders").pipe_input("ann", 5)
            >>> driver.create_output_table("twice").read_key_values_to_list()
            [('ann', 5), ('ANN', 5)]
        """
        node = add_processor(self._graph, [self._node], supplier, stores=stores, name=name, is_fixed_key=False)
        return KStream(self._graph, node, has_new_key=True)

    def process_values(
        self, supplier: Callable[[], Any], *, stores: Sequence[StoreDeclaration | str] = (), name: str | None = None
    ) -> KStream:
        """Like ``process``, with a ``weir.FixedKeyProcessor``: what follows needs no repartition.

        Examples:
            >>> class Length(FixedKeyProcessor[str, str, int]):
            ...     def init(self, context):
            ...         self.context = context
            ...     def process(self, record):
            ...         self.context.forward(record.with_value(len(record.value)))
            >>> builder = StreamsBuilder()
            >>> words = builder.stream("words", key=String("author"), value=String("word"))
            >>> words.process_values(Length).to_delta("lengths")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("words").pipe_input("ann", "tea")
            >>> driver.create_output_table("lengths").read_key_values_to_list()
            [('ann', 3)]
        """
        node = add_processor(self._graph, [self._node], supplier, stores=stores, name=name, is_fixed_key=True)
        return self._then(node)

    def batch(
        self,
        *,
        max_records: int | None = None,
        max_bytes: int | None = None,
        max_wait: timedelta | None = None,
        on_stop: Literal["keep", "flush"] = "keep",
        name: str | Materialized | None = None,
    ) -> KStream:
        """Gather the records of each key, and forward them together: ``records``, the list of their values in order,
        ``count``, and ``first_time`` and ``last_time``, the least and the greatest of their times.

        A batch leaves once it has ``max_records``, or its values have ``max_bytes``; before a record with which they
        would have more; or when its first record has waited for ``max_wait`` by the wall clock. Whichever comes first
        counts, and the next record of the key begins another batch. A larger record is a batch of its own. A value has
        the bytes of its texts (in UTF-8) and binaries, and eight for each number, time and boolean; nulls have none.

        A batch has its ``last_time`` for its own time. Null keys and null values are dropped and counted. If the key
        has changed, the records move to the task that owns it.

        Open batches are state, under ``name``; it may be a ``Materialized`` with ``in_memory``, or without a changelog
        (``logging=False, on_loss="empty"``). With ``on_stop="keep"`` they wait for the next run, and leave at its
        beginning if they are due by then; with ``"flush"`` they leave with the last commit of a run that is stopped.
        The limits may change from run to run.

        Raises:
            TopologyError: There is no name or no limit, or a limit is out of range, or an option of the store does not
                fit.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
            >>> batches = clicks.batch(max_records=2, max_wait=timedelta(seconds=30), name="pairs")
            >>> batches.map_values(pages="records").to_delta("pages")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> topic, table = driver.create_input_topic("clicks"), driver.create_output_table("pages")
            >>> topic.pipe_key_value_list([("ann", "/"), ("bob", "/"), ("ann", "/docs")])
            >>> table.read_rows()
            [{'user': 'ann', 'pages': ['/', '/docs']}]
            >>> driver.advance_wall_clock_time(timedelta(seconds=30))
            >>> table.read_rows()
            [{'user': 'bob', 'pages': ['/']}]
        """
        node = add_batch(
            self._graph,
            self._node,
            max_records=max_records,
            max_bytes=max_bytes,
            max_wait=max_wait,
            on_stop=on_stop,
            name=name,
            needs_repartition=self._has_new_key,
        )
        return self._then(node, has_new_key=False)

    @overload
    def join(
        self,
        other: KStream,
        joiner: JoinFunction | None = None,
        /,
        *,
        windows: JoinWindows,
        store: JoinStores,
        name: str | None = None,
        retention: timedelta | None = None,
    ) -> KStream: ...

    @overload
    def join(self, other: KTable, joiner: JoinFunction | None = None, /, *, name: str | None = None) -> KStream: ...

    @overload
    def join(
        self,
        other: KTable,
        joiner: JoinFunction | None = None,
        /,
        *,
        grace: timedelta,
        store: str | Materialized,
        name: str | None = None,
    ) -> KStream: ...

    @overload
    def join(self, other: GlobalKTable, joiner: JoinFunction | None = None, /, *, key: KeySelector) -> KStream: ...

    def join(
        self,
        other: KTable | KStream | GlobalKTable,
        joiner: JoinFunction | None = None,
        /,
        *,
        windows: JoinWindows | None = None,
        store: JoinStores | None = None,
        name: str | None = None,
        key: KeySelector | None = None,
        grace: timedelta | None = None,
        retention: timedelta | None = None,
    ) -> KStream:
        """Join each record with what its key has on the other side; records that find nothing there are dropped.

        With a table, each record is joined with the current row of its key; updates of the table produce no results.
        With a stream, records are joined that are as close in time as ``windows`` says, each pair once, with the later
        of the two times; ``store`` names the state that keeps both sides. With a global table, each record is joined
        with the row that ``key`` names: a column, an expression, several by name, or a function of ``(key, value)``.

        Of a join with a stream, ``store`` begins the names of the stores of both sides, or has the names of the two:
        ``store=("ads", "clicks")``. Each may be a ``Materialized``, in memory or without a changelog; where unmatched
        records wait for their window to end, they are kept as the left side is. ``name`` names the operators, and the
        repartitions if a key has changed. Each side is kept for before + after + grace of its own stream time, or for
        ``retention``, which cannot be shorter: the longer, the later a record may be and still find a record of the
        other side.

        With a versioned table, each record is joined with the row that was valid at its own time. With ``grace``,
        records wait in ``store`` until stream time is that far past theirs, and are joined in the order of their times;
        a record that is already older or has no key is joined at once (KIP-923).

        The result has the columns of both values, or what ``joiner(value, other)`` or ``joiner(key, value, other)``
        returns. Where both sides have a column of the same name, the other side's gets the suffix ``_right``. Null
        values and null keys are dropped. If the key has changed, the records move to the task that owns it; ``name``
        names that repartition.

        Raises:
            TopologyError: The keys differ in type, the options do not go with what is joined, or the retention is
                shorter than the windows need.

        Examples:
            A table:

            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("item"), value=Int64("pieces"))
            >>> prices = builder.table("prices", key=String("item"), value=Int64("cents"), store="prices")
            >>> orders.join(prices).map_values(total=col("pieces") * col("cents")).to_delta("totals")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("prices").pipe_input("tea", 350)
            >>> driver.create_input_topic("orders").pipe_key_value_list([("tea", 2), ("salt", 1)])
            >>> driver.create_output_table("totals").read_rows()
            [{'item': 'tea', 'total': 700}]

            A stream:

            >>> builder = StreamsBuilder()
            >>> ads = builder.stream("ads", key=String("user"), value=String("ad"))
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
            >>> soon = JoinWindows.of_time_difference_with_no_grace(timedelta(seconds=10))
            >>> ads.join(clicks, windows=soon, store="ads_and_clicks").to_delta("followed")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("ads").pipe_input("ann", "shoes", timestamp_ms=0)
            >>> driver.create_input_topic("clicks").pipe_input("ann", "/shoes", timestamp_ms=4_000)
            >>> driver.create_output_table("followed").read_rows()
            [{'user': 'ann', 'ad': 'shoes', 'page': '/shoes'}]
        """
        return self._join(
            "inner",
            other,
            joiner,
            windows=windows,
            store=store,
            name=name,
            key=key,
            grace=grace,
            retention=retention,
        )

    @overload
    def left_join(
        self,
        other: KStream,
        joiner: JoinFunction | None = None,
        /,
        *,
        windows: JoinWindows,
        store: JoinStores,
        name: str | None = None,
        retention: timedelta | None = None,
    ) -> KStream: ...

    @overload
    def left_join(
        self, other: KTable, joiner: JoinFunction | None = None, /, *, name: str | None = None
    ) -> KStream: ...

    @overload
    def left_join(
        self,
        other: KTable,
        joiner: JoinFunction | None = None,
        /,
        *,
        grace: timedelta,
        store: str | Materialized,
        name: str | None = None,
    ) -> KStream: ...

    @overload
    def left_join(self, other: GlobalKTable, joiner: JoinFunction | None = None, /, *, key: KeySelector) -> KStream: ...

    def left_join(
        self,
        other: KTable | KStream | GlobalKTable,
        joiner: JoinFunction | None = None,
        /,
        *,
        windows: JoinWindows | None = None,
        store: JoinStores | None = None,
        name: str | None = None,
        key: KeySelector | None = None,
        grace: timedelta | None = None,
        retention: timedelta | None = None,
    ) -> KStream:
        """Like ``join``, but a record that finds nothing on the other side, or has no key, gets nulls for it.

        With a stream, it does so once its window and the grace period are over, by the stream time of both sides.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("order"), value=String("item"))
            >>> prices = builder.global_table("prices", key=String("item_id"), value=Int64("cents"), store="prices")
            >>> orders.left_join(prices, key="item").to_delta("priced")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("prices").pipe_input("tea", 350)
            >>> driver.create_input_topic("orders").pipe_key_value_list([("1", "tea"), ("2", "salt")])
            >>> driver.create_output_table("priced").read_rows()
            [{'order': '1', 'item': 'tea', 'cents': 350}, {'order': '2', 'item': 'salt', 'cents': None}]
        """
        return self._join(
            "left",
            other,
            joiner,
            windows=windows,
            store=store,
            name=name,
            key=key,
            grace=grace,
            retention=retention,
        )

    @overload
    def outer_join(
        self,
        other: KStream,
        /,
        *,
        windows: JoinWindows,
        store: JoinStores,
        name: str | None = None,
        retention: timedelta | None = None,
    ) -> KStream: ...

    @overload
    def outer_join(
        self,
        other: KStream,
        joiner: JoinFunction | None,
        /,
        *,
        windows: JoinWindows,
        store: JoinStores,
        name: str | None = None,
        retention: timedelta | None = None,
    ) -> KStream: ...

    def outer_join(
        self,
        other: KStream,
        joiner: JoinFunction | None = None,
        /,
        *,
        windows: JoinWindows | None = None,
        store: JoinStores | None = None,
        name: str | None = None,
        retention: timedelta | None = None,
    ) -> KStream:
        """Like ``left_join`` with a stream, but for the records of both sides.

        Examples:
            >>> builder = StreamsBuilder()
            >>> ads = builder.stream("ads", key=String("user"), value=String("ad"))
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
            >>> soon = JoinWindows.of_time_difference_with_no_grace(timedelta(seconds=10))
            >>> ads.outer_join(clicks, windows=soon, store="ads_and_clicks").to_delta("both")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("clicks").pipe_input("ann", "/shoes", timestamp_ms=0)
            >>> driver.create_input_topic("ads").pipe_input("bob", "hats", timestamp_ms=20_000)
            >>> driver.create_output_table("both").read_rows()
            [{'user': 'ann', 'ad': None, 'page': '/shoes'}]
        """
        return self._join("outer", other, joiner, windows=windows, store=store, name=name, retention=retention)

    def _join(
        self,
        kind: JoinKind,
        other: KTable | KStream | GlobalKTable,
        joiner: JoinFunction | None,
        *,
        windows: JoinWindows | None,
        store: JoinStores | None,
        name: str | None = None,
        key: KeySelector | None = None,
        grace: timedelta | None = None,
        retention: timedelta | None = None,
    ) -> KStream:
        graph = self._graph
        options = dict(windows=windows, store=store, name=name, key=key, grace=grace, retention=retention)
        given = {option for option, argument in options.items() if argument is not None}
        if isinstance(other, (KStream, KTable, GlobalKTable)):
            graph.check_meets(self._node, other._graph, other._node)
        if kind == "outer" and not isinstance(other, KStream):
            raise TopologyError(
                f"outer_join joins two streams, and got {what_it_is(other)}; use left_join: an unmatched table "
                "row is not a stream event"
            )
        if isinstance(other, GlobalKTable) and given <= {"key"}:
            return self._then(add_global_join(graph, self._node, other._node, joiner, key, is_left=kind == "left"))
        if isinstance(other, KStream) and given <= {"windows", "store", "name", "retention"}:
            if name is not None:
                check_name("join", name)
            left, right = (
                repartition(graph, stream._node, edge, after=stream._node.name if name is None else "")
                if stream._has_new_key
                else stream._node
                for stream, edge in zip((self, other), repartition_names(store, name), strict=True)
            )
            node = add_stream_join(graph, left, right, joiner, windows, store, kind, name=name, retention=retention)
        elif isinstance(other, KTable) and given <= {"name", "store", "grace"} and (store is None) == (grace is None):
            left = repartition(graph, self._node, name or self._node.name) if self._has_new_key else self._node
            node = add_stream_table_join(
                graph, left, other._looked_up(), joiner, name=name, is_left=kind == "left", grace=grace, store=store
            )
        else:
            raise TopologyError(
                f"a stream cannot join {what_it_is(other)} this way; pass a stream with windows= and store=, "
                "a table without them, a versioned table with grace= and store=, or a global table with key=; "
                "name= is for streams, and for tables that are not global, retention= for streams"
            )
        return self._then(node, has_new_key=False)

    def group_by_key(self) -> KGroupedStream:
        """Group the records by their key; they move only if the key has changed.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
            >>> clicks.group_by_key().count("clicks_by_user").to_delta("counts")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("clicks").pipe_key_value_list([("ann", "/"), ("ann", "/docs")])
            >>> driver.create_output_table("counts").read_rows()
            [{'user': 'ann', 'count': 1}, {'user': 'ann', 'count': 2}]
        """
        return KGroupedStream(self._graph, self._node, needs_repartition=self._has_new_key)

    def group_by(
        self, *selector: str | pl.Expr | Callable[[Any, Any], Any], **columns: str | pl.Expr
    ) -> KGroupedStream:
        """Group the records by a new key: ``select_key`` followed by ``group_by_key``.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
            >>> clicks.group_by(section=col("page").str.slice(0, 5)).count("sections").to_delta("counts")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("clicks").pipe_input("ann", "/docs/joins")
            >>> driver.create_output_table("counts").read_rows()
            [{'section': '/docs', 'count': 1}]
        """
        return self.select_key(*selector, **columns).group_by_key()

    def to_table(
        self,
        store: str | Materialized,
        *,
        ttl: timedelta | None = None,
        ttl_by: TtlClock = "stream_time",
        history_retention: timedelta | None = None,
    ) -> KTable:
        """Make a table of the newest value of each key; a null value deletes the row, null keys are dropped.

        ``ttl``, ``ttl_by`` and ``history_retention`` work as for ``StreamsBuilder.table``.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
            >>> clicks.to_table("last_pages").to_delta("last_pages_now")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("clicks").pipe_key_value_list([("ann", "/"), ("ann", "/docs")])
            >>> driver.get_key_value_store("last_pages").get("ann")
            '/docs'
        """
        store_name = check_store(store)
        node_name = self._graph.new_name("KSTREAM-TOTABLE-")
        parent = repartition(self._graph, self._node, store_name, after=node_name) if self._has_new_key else self._node
        return KTable(
            self._graph,
            add_table(
                self._graph, parent, store, name=node_name, ttl=ttl, ttl_by=ttl_by, history_retention=history_retention
            ),
        )
