"""Programs whose operators have no names of their own, in any order and among any others, and plain models of what
they write and hold back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta

from polars import col

from tests.pipelines.spark.inline import Place, Topics
from weir import Application, BufferConfig, Int64, Json, StreamsBuilder, String, Suppressed
from weir.state.commit.tables import read_rows

HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Order:
    item: str
    pieces: int


@dataclass(frozen=True)
class Held:
    """A suppression of a table of pieces for a time."""

    topic: str
    output: str
    hours: int = 1
    at_least: int = 0
    """What the table is filtered by, so that the expression tells it from others."""
    name: str = ""
    """Its own; "" for none."""
    restarts: bool = False
    """Whether each update restarts the wait."""


@dataclass(frozen=True)
class Priced:
    """Orders of a topic joined with a table of prices by item, which is a foreign key."""

    topic: str
    prices: str
    output: str
    store: str = ""
    """Its own name; "" for none."""


@dataclass(frozen=True)
class Looked:
    """Orders by item, which moves them to other tasks, joined with a table of prices."""

    topic: str
    prices: str
    output: str


@dataclass(frozen=True)
class Program:
    operators: tuple[Held | Priced | Looked, ...]
    filters: int = 0
    """Operators before all others, which use up running numbers."""
    beside: int = 0
    """Operators between them, which do too."""
    declared: tuple[Looked, ...] = ()
    """Operators whose topics are declared before all others, in this order."""

    def application(self) -> Application:
        builder = StreamsBuilder()
        first = builder.stream("first", key=String("user"), value=Int64("n"))
        for _ in range(self.filters):
            first = first.filter(col("n") > 0)
        first.to_delta("first_out")
        tables, streams = {}, {}

        def declare(each: Looked) -> None:
            if each.topic not in streams:
                streams[each.topic] = builder.stream(each.topic, key=String("order"), value=Json(Order))
            if each.prices not in tables:
                tables[each.prices] = builder.table(
                    each.prices, key=String("item"), value=Int64("cents"), store=f"of_{each.prices}"
                )

        for each in self.declared:
            declare(each)
        for each in self.operators:
            for _ in range(self.beside):
                first.filter(col("n") > 1)
            match each:
                case Held():
                    if each.topic not in tables:
                        tables[each.topic] = builder.table(
                            each.topic, key=String("item"), value=Int64("pieces"), store=f"of_{each.topic}"
                        )
                    table = tables[each.topic]
                    if each.at_least:
                        table = table.filter(col("pieces") >= each.at_least)
                    how = Suppressed.until_time_limit(
                        timedelta(hours=each.hours), BufferConfig.unbounded(), restart_on_update=each.restarts
                    )
                    table.suppress(how.with_name(each.name) if each.name else how).to_stream().to_delta(each.output)
                case Priced():
                    if each.topic not in tables:
                        tables[each.topic] = builder.table(
                            each.topic, key=String("order"), value=Json(Order), store=f"of_{each.topic}"
                        )
                    if each.prices not in tables:
                        tables[each.prices] = builder.table(
                            each.prices, key=String("item_id"), value=Int64("cents"), store=f"of_{each.prices}"
                        )
                    tables[each.topic].join(tables[each.prices], foreign_key="item", store=each.store or None).to_delta(
                        each.output
                    )
                case Looked():
                    declare(each)
                    by_item = streams[each.topic].map_values(sold="item", pieces="pieces").select_key(item="sold")
                    by_item.join(tables[each.prices]).to_delta(each.output)
        return Application("shop", builder, commit_interval=timedelta(milliseconds=1))


def pieces(first: int, count: int, prefix: str = "") -> list:
    """Records of seven items, ten minutes apart."""
    return [
        (f"{prefix}item-{n % 7}".encode(), n.to_bytes(8, "big", signed=True), n * 600_000)
        for n in range(first, first + count)
    ]


def orders(first: int, count: int, prefix: str = "", pieces: int = 0) -> list:
    """Orders of five items, a second apart, of so many more pieces each."""
    return [
        (f"{prefix}{n}".encode(), json.dumps({"item": f"item-{n % 5}", "pieces": pieces + n}).encode(), n * 1_000)
        for n in range(first, first + count)
    ]


def prices(first: int, count: int, cents: int) -> list:
    return [
        (b"item-%d" % (n % 5), (cents + n).to_bytes(8, "big", signed=True), n * 1_000)
        for n in range(first, first + count)
    ]


def topics() -> Topics:
    return Topics(
        {
            ("first", 0): [(b"u", (5).to_bytes(8, "big"), 0)],
            ("left", 0): pieces(1, 20, "l-"),
            ("right", 0): pieces(1, 20, "r-"),
        }
    )


def released(
    records: list, hours: int, at_least: int = 0, *, restarts_from: int | None = None, restarts_to: int | None = None
) -> list[tuple[str, int]]:
    """What a suppression forwards of these records, by a loop over them, sorted; the records with these numbers restart
    the wait."""
    held: dict[str, tuple[int, int]] = {}
    left, stream_ms = [], 0
    restarting = range(0)
    if restarts_from is not None:
        restarting = range(restarts_from, len(records) if restarts_to is None else restarts_to)
    for place, (key, value, time_ms) in enumerate(records):
        name, number = key.decode(), int.from_bytes(value, "big", signed=True)
        if number < at_least:
            continue
        stream_ms = max(stream_ms, time_ms)
        restarts = place in restarting
        held[name] = (held[name][0] if name in held and not restarts else time_ms, number)
        for due in [each for each, (since, _) in held.items() if since + hours * HOUR_MS <= stream_ms]:
            left.append((due, held.pop(due)[1]))
    return sorted(left)


def written(place: Place, output: str) -> list[tuple[str, int]]:
    """The updates that were written, sorted."""
    rows = read_rows(place.warehouse / "shop" / output)
    return sorted(rows.select("item", "pieces").rows())
