"""The Weir program of a description, through the public DSL, and its topics as a place for runs has them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import polars as pl
from polars import col

from tests.pipelines.order import description
from tests.pipelines.order.description import (
    Aggregate,
    Batch,
    Branch,
    Cogroup,
    Data,
    Expect,
    Filter,
    FlatMap,
    FlatMapValues,
    ForeignJoin,
    FromHeader,
    GlobalJoin,
    GroupTable,
    Hopping,
    JoinWithin,
    Late,
    Loose,
    MapValues,
    Merge,
    Process,
    Program,
    Repartition,
    SelectKey,
    Sessions,
    Shared,
    Sink,
    Sliding,
    Source,
    StreamJoin,
    StreamTableJoin,
    Suppress,
    TableJoin,
    ToStream,
    ToTable,
    Totals,
    Tumbling,
    Unlimited,
    Windows,
    WithTime,
)
from tests.pipelines.order.functions import header_of
from tests.pipelines.order.processors import (
    HEADER,
    LOOSE_FOR,
    FromHeaders,
    gathering,
    holding,
    sharing,
    totalling,
    totalling_by_columns,
)
from tests.pipelines.order.renderings import (
    COUNTED,
    EACH,
    FOLDS,
    KEYS,
    MAPPERS,
    OF_BOTH,
    PREDICATES,
    SHOWN,
    TIME_IN,
    TIME_OF,
    TIMES,
    Value,
    both_ways,
    chain,
    chain_otherwise,
    folded,
    halved,
    join,
    join_chains,
    ms,
    nothing,
    odd_one,
    reduce,
    unchain,
    unreduce,
    without_deletions,
)
from tests.pipelines.spark.inline import Topics
from tests.pipelines.spark.log_consumer import Headers, Row
from weir import (
    Application,
    BufferConfig,
    Count,
    EmitStrategy,
    FailOnInvalidTimestamp,
    GlobalKTable,
    JoinWindows,
    Json,
    KeyValueStore,
    Materialized,
    Max,
    Mean,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    String,
    Sum,
    Suppressed,
    TimeWindows,
    UnlimitedWindows,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def application(
    program: Program, beside: Callable[[int, Any], None] = lambda place, output: None, **settings: Any
) -> Application:
    """``beside`` gets each output: the place of its step, and the stream or table that it writes."""
    builder = StreamsBuilder()
    options = dict(key=String("key"), value=Json(Value))
    tables = {topic: builder.global_table(topic, **options, store=topic) for topic in program.global_topics}
    built, late = list[Any](), dict[int, Any]()
    for place, step in enumerate(program.steps):
        parents = [built[parent] for parent in program.parents(place)]
        built.append(_built(builder, program, tables, place, step, parents, late))
        if isinstance(step, Sink):
            beside(place, *parents)
    return Application("order", builder, **settings)


def _built(
    builder: StreamsBuilder,
    program: Program,
    tables: dict[str, GlobalKTable],
    place: int,
    step: Any,
    parents: list[Any],
    late: dict[int, Any],
) -> Any:
    name = f"s{place}"
    match step:
        case Source(is_table=True):
            options = dict(history_retention=_maybe_ms(step.history))
            serdes = dict(key=String("key"), value=Json(Value))
            return builder.table(step.topic, **serdes, store=name, headers=step.has_headers, **options)
        case Source():
            time = {"timestamp": FailOnInvalidTimestamp(TIME_IN)} if step.is_timed else {}
            topic = re.compile(f"{step.topic}|nowhere") if step.by_pattern else step.topic
            return builder.stream(topic, key=String("key"), value=Json(Value), headers=step.has_headers, **time)
        case Filter():
            call = parents[0].filter_not if step.is_not else parents[0].filter
            return call(PREDICATES[step.how], **({"store": name} if step.is_kept else {}))
        case MapValues():
            kept, mapper = {"store": name} if step.is_kept else {}, MAPPERS[step.how]
            return (
                parents[0].map_values(mapper, **kept) if callable(mapper) else parents[0].map_values(**mapper, **kept)
            )
        case Expect():
            kept = {"store": name} if program.is_table(step.parent) else {}
            return parents[0].expect(name, PREDICATES[step.how], on_violation="drop", **kept)
        case FromHeader():
            return parents[0].process_values(FromHeaders, name=name)
        case SelectKey():
            return parents[0].select_key(key=KEYS[step.how])
        case FlatMap(how="both ways"):
            return parents[0].flat_map(both_ways)
        case FlatMap(how="by columns"):
            return parents[0].map(key={"key": KEYS["number"]}, value=MAPPERS["more"])
        case FlatMap():
            return parents[0].map(odd_one)
        case FlatMapValues(how="counted"):
            return parents[0].flat_map_values(**COUNTED)
        case FlatMapValues():
            return parents[0].flat_map_values(halved)
        case WithTime():
            return parents[0].with_timestamp(TIMES[step.how])
        case Branch():
            split = parents[0].split(f"{name}-")
            for how in step.hows:
                split = split.branch(PREDICATES[how])
            return list(split.default_branch().values())[step.which]
        case Repartition():
            return parents[0].repartition(name, partitions=step.partitions)
        case Merge():
            return parents[0].merge(parents[1])
        case ToTable():
            stream = parents[0].map_values(without_deletions) if step.deletes else parents[0]
            return stream.to_table(name, history_retention=_maybe_ms(step.history), ttl=_maybe_ms(step.ttl))
        case ToStream():
            return parents[0].to_stream().filter(col("num").is_not_null())
        case Aggregate():
            has_late = any(isinstance(each, Late) and each.parent == place for each in program.steps)
            return _aggregated(step, place, name, parents[0].group_by_key(), late if has_late else None)
        case Late():
            return late[step.parent]
        case Cogroup():
            left, right = (parent.group_by_key() for parent in parents)
            if step.by_columns:
                return _aggregated(step, place, name, left.cogroup(num=Sum("num")).cogroup(right, word=Max("word")))
            return _aggregated(step, place, name, left.cogroup(chain).cogroup(right, chain_otherwise))
        case Suppress():
            limits = BufferConfig.max_records(step.records) if step.records else BufferConfig.unbounded()
            limited = Suppressed.until_time_limit(ms(step.limit), limits, restart_on_update=step.restarts)
            return parents[0].suppress(limited.with_name(name))
        case Process():
            return parents[0].process_values(gathering(name, step.wait), name=name)
        case Totals():
            supplier = totalling_by_columns if step.by_columns else totalling
            return parents[0].process(supplier(name, step), name=name)
        case Shared():
            builder.add_state_store(KeyValueStore(name, key=str, value=Value))
            one, other = (
                parent.process_values(sharing(name, fold), stores=[name])
                for parent, fold in zip(parents, (chain, chain_otherwise), strict=True)
            )
            return one.merge(other)
        case Batch():
            batches = parents[0].batch(max_records=step.records, max_bytes=step.size, name=name)
            return batches.map_values(folded)
        case Loose(how="batch"):
            batches = parents[0].batch(max_records=3, max_wait=LOOSE_FOR, on_stop="flush", name=name)
            return batches.flat_map_values(record="records").map_values(**EACH).with_timestamp(TIME_OF)
        case Loose():
            return parents[0].process(holding(name), name=name)
        case GroupTable():
            grouped = parents[0].group_by(key=KEYS[step.key])
            match step.fold:
                case "sum":
                    return grouped.agg(name, num=Sum("num")).map_values(num="num", word=pl.lit("sum"))
                case "count":
                    return grouped.agg(name, num=Count()).map_values(num="num", word=pl.lit("count"))
                case "mean":
                    mean = grouped.agg(name, num=Mean("num"))
                    return mean.map_values(num=col("num").cast(pl.Int64).fill_null(-1), word=pl.lit("mean"))
                case "reduced":
                    return grouped.reduce(name, reduce, unreduce)
                case _:
                    return grouped.aggregate(name, nothing, chain, unchain)
        case StreamTableJoin():
            stream, table = parents
            call = stream.left_join if step.is_left else stream.join
            waits = {} if step.grace is None else dict(grace=ms(step.grace), store=f"{name}-waiting")
            return call(table, join, name=name, **waits)
        case GlobalJoin():
            call = parents[0].left_join if step.is_left else parents[0].join
            selector = {"key": "key" if step.key == "own" else KEYS[step.key]}
            return call(tables[step.topic], join, key=selector)
        case StreamJoin():
            left, right = parents
            call = {"inner": left.join, "left": left.left_join, "outer": left.outer_join}[step.kind]
            retention = _maybe_ms(step.retention or None)
            return call(right, join, windows=_join_windows(step.windows), store=name, retention=retention)
        case TableJoin():
            left, right = parents
            return {"inner": left.join, "left": left.left_join, "outer": left.outer_join}[step.kind](right, join)
        case ForeignJoin():
            left, right = parents
            call = left.left_join if step.is_left else left.join
            return call(right, join, foreign_key=KEYS[step.key], store=name)
        case Sink():
            return parents[0].to_delta(f"out{place}")
    raise NotImplementedError(step)


def _aggregated(
    step: Aggregate | Cogroup, place: int, name: str, grouped: Any, late: dict[int, Any] | None = None
) -> Any:
    """``late`` is to hold the records that are late."""
    store: Any = name
    if isinstance(step, Aggregate):
        store = Materialized(name, logging=not step.is_unlogged, in_memory=step.is_in_memory)
    if step.windows is not None:
        options: dict[str, Any] = {}
        if isinstance(step, Aggregate) and step.retention:
            options["retention"] = ms(_least_retention(step.windows) + step.retention)
        if late is not None:
            options["late_to"] = partial(late.__setitem__, place)
        grouped = grouped.windowed_by(_windows(step.windows), **options)
    if step.emits == "on close":
        grouped = grouped.emit_strategy(EmitStrategy.on_window_close())
    mergers = (join_chains,) if isinstance(step.windows, Sessions) else ()
    shown: dict[str, Any] = OF_BOTH if isinstance(step, Cogroup) and step.by_columns else {}
    if shown:
        table = grouped.agg(store)
    elif isinstance(step, Cogroup):
        table = grouped.aggregate(store, nothing, *mergers)
    elif step.fold == "chain":
        table = grouped.aggregate(store, nothing, chain, *mergers)
    elif step.fold == "reduced":
        table = grouped.reduce(store, reduce)
    else:
        table, shown = grouped.agg(store, **FOLDS[step.fold]), SHOWN.get(step.fold, {})
    if step.emits == "suppressed":
        table = table.suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
    return table.map_values(**shown) if shown else table


def _least_retention(windows: Windows) -> int:
    """The shortest that a store may have."""
    match windows:
        case Tumbling() | Hopping():
            return windows.size + windows.grace
        case Sliding():
            return 2 * windows.difference + windows.grace
        case Sessions():
            return windows.gap + windows.grace
        case Unlimited():
            return 0


def _maybe_ms(count: int | None) -> timedelta | None:
    return None if count is None else ms(count)


def _windows(windows: Windows) -> TimeWindows | SessionWindows | SlidingWindows | UnlimitedWindows:
    match windows:
        case Tumbling():
            return TimeWindows.of_size_and_grace(ms(windows.size), ms(windows.grace))
        case Hopping():
            return TimeWindows.of_size_and_grace(ms(windows.size), ms(windows.grace)).advance_by(ms(windows.advance))
        case Sliding():
            return SlidingWindows.of_time_difference_and_grace(ms(windows.difference), ms(windows.grace))
        case Unlimited():
            return UnlimitedWindows.start_on(EPOCH + ms(windows.start))
        case Sessions():
            return SessionWindows.of_inactivity_gap_and_grace(ms(windows.gap), ms(windows.grace))


def _join_windows(windows: JoinWithin) -> JoinWindows:
    found = JoinWindows.of_time_difference_and_grace(ms(max(windows.before, windows.after)), ms(windows.grace))
    return found.before(ms(windows.before)).after(ms(windows.after))


def topics(data: Data, with_headers: Collection[str] = ()) -> Topics:
    """``with_headers`` are the topics whose records have headers."""

    def row(record: description.Record, topic: str) -> Row:
        key, value, ts, _ = record
        plain = key and key.encode(), None if value is None else json.dumps(value._asdict()).encode(), ts
        return (*plain, headers_of(value)) if topic in with_headers else plain

    rows = {name: [row(record, name[0]) for record in records] for name, records in data.items()}
    return Topics(rows, with_headers=set(with_headers))


def headers_of(value: description.Value | None) -> Headers:
    """Those of a record of a topic that has some."""
    return [] if value is None else [(HEADER, header_of(value).encode())]
