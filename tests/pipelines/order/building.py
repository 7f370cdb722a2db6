"""The Weir program of a description, through the public DSL, and its topics as a place for runs has them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import polars as pl
from polars import col

from tests.pipelines.order import model
from tests.pipelines.order.description import (
    Aggregate,
    Cogroup,
    Data,
    Filter,
    ForeignJoin,
    GroupTable,
    Hopping,
    JoinWithin,
    MapValues,
    Merge,
    Process,
    Program,
    Repartition,
    SelectKey,
    Sessions,
    Sink,
    Sliding,
    Source,
    StreamJoin,
    StreamTableJoin,
    Suppress,
    TableJoin,
    ToStream,
    ToTable,
    Tumbling,
    Windows,
)
from tests.pipelines.spark.inline import Row, Topics
from weir import (
    Application,
    BufferConfig,
    Count,
    EmitStrategy,
    First,
    FixedKeyProcessor,
    FixedKeyRecord,
    JoinWindows,
    Json,
    KeyValueStore,
    Last,
    Max,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    String,
    Sum,
    Suppressed,
    TimeWindows,
)


@dataclass(frozen=True)
class Value:
    num: int
    word: str


def text(expression: pl.Expr) -> pl.Expr:
    return expression.cast(pl.String())


PREDICATES = {
    "even": col("num") % 2 == 0,
    "not thirds": col("num") % 3 != 0,
    "not a": col("word") != "a",
}
MAPPERS: dict[str, dict[str, str | pl.Expr]] = {
    "more": dict(num=col("num") + 1, word="word"),
    "rest": dict(num=col("num") % 7, word="word"),
    "reworded": dict(num="num", word=pl.lit("w") + text(col("num") % 5)),
}
KEYS: dict[str, pl.Expr] = {
    "word": col("word"),
    "number": pl.lit("n") + text(col("num") % 4),
    "both": col("word") + text(col("num") % 3),
}
FOLDS = {
    "sum and last": dict(num=Sum("num"), word=Last("word")),
    "first and greatest": dict(num=First("num"), word=Max("word")),
    "count and greatest": dict(num=Count(), word=Max("word")),
}


def _of(call: Callable[..., model.Value], *values: Value | None) -> Value:
    return Value(*call(*(value and model.Value(value.num, value.word) for value in values)))


def chain(key: Any, value: Value, state: Value) -> Value:
    return _of(model.chained, state, value)


def chain_otherwise(key: Any, value: Value, state: Value) -> Value:
    return _of(model.chained_otherwise, state, value)


def unchain(key: Any, value: Value, state: Value) -> Value:
    return _of(model.unchained, state, value)


def join_chains(key: Any, one: Value, other: Value) -> Value:
    return _of(model.chains_joined, one, other)


def join(one: Value | None, other: Value | None) -> Value:
    return _of(model.joined, one, other)


def nothing() -> Value:
    return Value(0, "")


def gathering(name: str, wait: int) -> type[FixedKeyProcessor[str, Value, Value]]:
    """The processor of a step ``Process``."""

    class Gathering(FixedKeyProcessor[str, Value, Value]):
        stores = (KeyValueStore(f"{name}-open", key=str, value=Value),)

        def init(self, context: Any) -> None:
            self.context, self.open = context, context.state_store(f"{name}-open")

        def process(self, record: FixedKeyRecord[str, Value]) -> None:
            chained = chain(record.key, record.value, self.open.get(record.key) or nothing())
            if chained.num % 3 == 0:
                self.context.cancel_timer(record.key)
                self._send(record, chained)
            else:
                self.open.put(record.key, chained)
                self.context.timer(record.key, record.timestamp + ms(wait))

        def on_timer(self, record: FixedKeyRecord[str, None]) -> None:
            self._send(record, self.open.get(record.key))

        def _send(self, record: Any, chained: Value) -> None:
            self.open.delete(record.key)
            self.context.forward(record.with_value(chained))

    return Gathering


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def application(
    program: Program, beside: Callable[[int, Any], None] = lambda place, output: None, **settings: Any
) -> Application:
    """``beside`` gets each output: the place of its step, and the stream or table that it writes."""
    builder = StreamsBuilder()
    built: list[Any] = []
    for place, step in enumerate(program.steps):
        parents = [built[parent] for parent in program.parents(place)]
        built.append(_built(builder, program, place, step, parents))
        if isinstance(step, Sink):
            beside(place, *parents)
    return Application("order", builder, **settings)


def _built(builder: StreamsBuilder, program: Program, place: int, step: Any, parents: list[Any]) -> Any:
    name = f"s{place}"
    match step:
        case Source(is_table=True):
            return builder.table(step.topic, key=String("key"), value=Json(Value), store=name)
        case Source():
            return builder.stream(step.topic, key=String("key"), value=Json(Value))
        case Filter():
            return parents[0].filter(PREDICATES[step.how])
        case MapValues():
            return parents[0].map_values(**MAPPERS[step.how])
        case SelectKey():
            return parents[0].select_key(key=KEYS[step.how])
        case Repartition():
            return parents[0].repartition(name, partitions=step.partitions)
        case Merge():
            return parents[0].merge(parents[1])
        case ToTable():
            return parents[0].to_table(name)
        case ToStream():
            return parents[0].to_stream().filter(col("num").is_not_null())
        case Aggregate():
            return _aggregated(step, name, parents[0].group_by_key())
        case Cogroup():
            left, right = (parent.group_by_key() for parent in parents)
            return left.cogroup(chain).cogroup(right, chain_otherwise).aggregate(name, nothing)
        case Suppress():
            limits = BufferConfig.max_records(step.records) if step.records else BufferConfig.unbounded()
            return parents[0].suppress(Suppressed.until_time_limit(ms(step.limit), limits).with_name(name))
        case Process():
            return parents[0].process_values(gathering(name, step.wait), name=name)
        case GroupTable():
            grouped = parents[0].group_by(key=KEYS[step.key])
            match step.fold:
                case "sum":
                    return grouped.agg(name, num=Sum("num")).map_values(num="num", word=pl.lit("sum"))
                case "count":
                    return grouped.agg(name, num=Count()).map_values(num="num", word=pl.lit("count"))
                case _:
                    return grouped.aggregate(name, nothing, chain, unchain)
        case StreamTableJoin():
            stream, table = parents
            return (stream.left_join if step.is_left else stream.join)(table, join, name=name)
        case StreamJoin():
            left, right = parents
            call = {"inner": left.join, "left": left.left_join, "outer": left.outer_join}[step.kind]
            return call(right, join, windows=_join_windows(step.windows), store=name)
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


def _aggregated(step: Aggregate, name: str, grouped: Any) -> Any:
    if step.windows is not None:
        grouped = grouped.windowed_by(_windows(step.windows))
    if step.emits == "on close":
        grouped = grouped.emit_strategy(EmitStrategy.on_window_close())
    if step.fold == "chain":
        mergers = (join_chains,) if isinstance(step.windows, Sessions) else ()
        table = grouped.aggregate(name, nothing, chain, *mergers)
    else:
        table = grouped.agg(name, **FOLDS[step.fold])
    return (
        table.suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
        if step.emits == "suppressed"
        else table
    )


def _windows(windows: Windows) -> TimeWindows | SessionWindows | SlidingWindows:
    match windows:
        case Tumbling():
            return TimeWindows.of_size_and_grace(ms(windows.size), ms(windows.grace))
        case Hopping():
            return TimeWindows.of_size_and_grace(ms(windows.size), ms(windows.grace)).advance_by(ms(windows.advance))
        case Sliding():
            return SlidingWindows.of_time_difference_and_grace(ms(windows.difference), ms(windows.grace))
        case Sessions():
            return SessionWindows.of_inactivity_gap_and_grace(ms(windows.gap), ms(windows.grace))


def _join_windows(windows: JoinWithin) -> JoinWindows:
    found = JoinWindows.of_time_difference_and_grace(ms(max(windows.before, windows.after)), ms(windows.grace))
    return found.before(ms(windows.before)).after(ms(windows.after))


def topics(data: Data) -> Topics:
    def row(key: str, value: model.Value | None, ts: int) -> Row:
        return key.encode(), None if value is None else json.dumps(value._asdict()).encode(), ts

    return Topics({name: [row(*record) for record in records] for name, records in data.items()})
