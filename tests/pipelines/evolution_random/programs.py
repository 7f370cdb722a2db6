"""Programs of several independent pieces as plain data, and the Weir program of each, through the public DSL.

A piece reads one or two of the topics ``clicks``, ``views``, ``users`` (all by user; a user's record may be a
tombstone) and ``words`` (by word), keeps stores named after itself, and writes one output.
"""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass, replace
from datetime import timedelta
from typing import Any, Literal

import polars as pl
from polars import col

from weir import (
    Application,
    BufferConfig,
    Count,
    JoinWindows,
    Json,
    Max,
    Min,
    SessionWindows,
    StreamsBuilder,
    String,
    Sum,
    Suppressed,
    TimeWindows,
)

TOPICS = ("clicks", "views", "users", "words")
GAP, SIZE, APART = 8, 20, 12
"""The sessions' inactivity gap, the size of windows, and how far apart joined records may be, in ms."""
AGGREGATES: dict[str, Any] = {"n": Count(), "total": Sum("num"), "least": Min("num"), "most": Max("num")}
FIELDS: dict[str, Any] = {"num": int, "word": str, "more": int | None, "tag": str | None}
Kind = Literal["aggregate", "chain", "table", "lookup", "tables", "streams", "foreign"]


@dataclass(frozen=True)
class Piece:
    name: str
    kind: Kind
    by: str = "user"
    """Of an aggregation, its key: "user" or "word"."""
    aggregates: tuple[str, ...] = ("n",)
    windows: str = ""
    """Of an aggregation: "", "tumbling", "wide" (windows twice as long) or "sessions"."""
    grace: int = 0
    """Of windows, and of a join of streams."""
    is_final: bool = False
    """Whether a suppression holds results until windows close."""
    is_left: bool = False
    """Whether a join keeps rows without a match."""
    is_upsert: bool = False
    front: str = ""
    """What stands between topic and piece: "", "some" (a filter) or "all" (operators that keep every record)."""
    is_moved: bool = False
    """Whether a repartition stands in front, which makes it a sub-topology of its own."""
    is_mapped_behind: bool = False
    """Whether something that changes nothing stands before the output."""
    version: int = 0
    """Of the output."""

    @property
    def output(self) -> str:
        return f"{self.name}_out{self.version}"


@dataclass(frozen=True)
class Program:
    pieces: tuple[Piece, ...]
    fields: tuple[str, ...] = ("num", "word")
    """Of every topic's values."""
    class_name: str = "Value"

    def piece(self, name: str) -> Piece | None:
        return next((piece for piece in self.pieces if piece.name == name), None)

    def with_piece(self, piece: Piece) -> Program:
        return replace(self, pieces=tuple(piece if each.name == piece.name else each for each in self.pieces))

    @property
    def value(self) -> type:
        required = [(name, FIELDS[name]) for name in self.fields if name in ("num", "word")]
        optional = [(name, FIELDS[name], field(default=None)) for name in self.fields if name in ("more", "tag")]
        return make_dataclass(self.class_name, [*required, *optional], frozen=True)


@dataclass(frozen=True)
class Pair:
    num: int
    other: int


def join(one: Any, other: Any) -> Pair:
    return Pair(one.num, -1 if other is None else other.num)


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def application(program: Program) -> Application:
    builder = StreamsBuilder()
    value = Json(program.value)
    topics: dict[str, Any] = {}

    def stream(topic: str) -> Any:
        if topic not in topics:
            key = String("word_key" if topic == "words" else "user")
            topics[topic] = builder.stream(topic, key=key, value=value)
        return topics[topic]

    for piece in program.pieces:
        made = _made(piece, stream)
        if piece.is_mapped_behind:
            made = made.filter(lambda key, value: True)
        made.to_delta(piece.output, **({"mode": "upsert"} if piece.is_upsert else {}))
    return Application("evolving", builder, commit_interval=ms(20))


def _made(piece: Piece, stream: Any) -> Any:
    name = piece.name
    clicks = _in_front(piece, stream("users" if piece.kind in ("table", "tables", "foreign") else "clicks"))
    match piece.kind:
        case "aggregate":
            return _aggregated(piece, clicks)
        case "chain":
            counted = clicks.group_by("word").agg(f"{name}_1", n=Count())
            by_bucket = counted.to_stream().group_by(bucket=(col("n") % 3).cast(pl.String()))
            return by_bucket.agg(f"{name}_2", m=Count(), total=Sum("n"))
        case "table":
            return clicks.to_table(name)
        case "lookup":
            table = stream("users").to_table(f"{name}_t")
            return (clicks.left_join if piece.is_left else clicks.join)(table, join, name=f"{name}_join")
        case "tables":
            left, right = clicks.to_table(f"{name}_l"), stream("views").to_table(f"{name}_r")
            return (left.left_join if piece.is_left else left.join)(right, join)
        case "streams":
            windows = JoinWindows.of_time_difference_and_grace(ms(APART), ms(piece.grace))
            return clicks.join(stream("views"), join, windows=windows, store=name)
        case "foreign":
            left, right = clicks.to_table(f"{name}_l"), stream("words").to_table(f"{name}_r")
            call = left.left_join if piece.is_left else left.join
            return call(right, join, foreign_key=col("word"), store=name)


def _in_front(piece: Piece, stream: Any) -> Any:
    match piece.front:
        case "some":
            stream = stream.filter(col("num") % 3 != 0)
        case "all":
            stream = stream.filter(lambda key, value: True).peek(lambda key, value: None)
    return stream.repartition(name=f"{piece.name}_moved") if piece.is_moved else stream


def _aggregated(piece: Piece, clicks: Any) -> Any:
    grouped = clicks.group_by_key() if piece.by == "user" else clicks.group_by("word")
    match piece.windows:
        case "tumbling":
            grouped = grouped.windowed_by(TimeWindows.of_size_and_grace(ms(SIZE), ms(piece.grace)))
        case "wide":
            grouped = grouped.windowed_by(TimeWindows.of_size_and_grace(ms(2 * SIZE), ms(piece.grace)))
        case "sessions":
            grouped = grouped.windowed_by(SessionWindows.of_inactivity_gap_and_grace(ms(GAP), ms(piece.grace)))
    made = grouped.agg(piece.name, **{name: AGGREGATES[name] for name in piece.aggregates})
    if piece.is_final:
        made = made.suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
    return made
