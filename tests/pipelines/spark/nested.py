"""A program whose values are structs in structs, lists and dictionaries, in versions; and a plain count over its
records."""

from __future__ import annotations

import dataclasses
import json
import typing
from dataclasses import dataclass, make_dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any

import polars as pl

from tests.pipelines.spark.inline import Place
from weir import Application, Json, StreamsBuilder, String
from weir.state.changelog.as_of import state_as_of
from weir.state.commit.protocol import newest_commit

DECIMALS = {"": pl.Decimal(10, 2), "wider": pl.Decimal(14, 4)}


@dataclass(frozen=True)
class Version:
    """A version of the program; the stores are the same in all, as are outputs of one name."""

    adds: bool = False
    """Whether structs have more fields, all of which may be null."""
    leaves_out: bool = False
    """Whether structs lack some."""
    price: pl.DataType = DECIMALS[""]
    is_reversed: bool = False
    """Whether all fields are declared the other way round."""
    ref: type = str
    zip_name: str = "zip"
    outputs: str = "out"
    """What the names of the outputs begin with."""

    def made(self, name: str, fields: dict[str, Any], added: dict[str, Any], left_out: str = "") -> Any:
        kept = {**fields, **(added if self.adds else {})}
        if self.leaves_out:
            kept.pop(left_out, None)
        ordered = list(kept.items())
        return make_dataclass(name, ordered[::-1] if self.is_reversed else ordered, frozen=True)

    @property
    def order(self) -> Any:
        geo = self.made("Geo", {"lat": float}, {"lng": float | None})
        fields = {"city": str, "geo": geo, self.zip_name: str}
        place = self.made("Place", fields, {"floor": int | None}, self.zip_name)
        line = self.made(
            "Line", {"sku": str, "price": Annotated[Decimal, self.price]}, {"note": str | None, "made": geo | None}
        )
        visit = self.made("Visit", {"page": str, "seconds": int}, {"country": str | None}, "seconds")
        last = self.made("Last", {"ref": self.ref, "at": place | None}, {})
        fields = {"last": last, "lines": list[line], "visits": dict[str, visit]}
        return self.made("Order", fields, {"channel": str | None})

    def application(self) -> Application:
        order = self.order
        visits = typing.get_type_hints(order)["visits"]
        totals = self.made("Totals", {"n": int, "newest": order | None, "visits": visits}, {})

        def nothing():
            return totals(n=0, newest=None, visits={})

        def add(user, value, before):
            return totals(n=before.n + 1, newest=value, visits={**before.visits, **value.visits})

        nothing.__annotations__ = add.__annotations__ = {"return": totals}
        builder = StreamsBuilder()
        stream = builder.stream("orders", key=String("user"), value=Json(order))
        stream.to_delta(f"{self.outputs}_facts")
        stream.group_by_key().aggregate("totals", nothing, add).to_delta(f"{self.outputs}_totals")
        table = stream.to_table("newest")
        table.to_delta(f"{self.outputs}_newest", mode="upsert")
        stream.repartition(name="again").to_table("again")
        return Application("orders", builder, commit_interval=timedelta(milliseconds=1))


def orders(first: int, count: int, **more: Any) -> list:
    """Records of seven users; ``more`` are the fields of later versions, by the name of their struct."""
    return [
        (
            b"user-%d" % (number % 7),
            json.dumps(
                {
                    "last": {
                        "ref": str(number),
                        "at": {
                            "city": f"city-{number % 3}",
                            "geo": {"lat": number / 4, **more.get("geo", {})},
                            "zip": f"{number:05}",
                            **more.get("place", {}),
                        }
                        if number % 5
                        else None,
                    },
                    "lines": [
                        {"sku": f"sku-{line}", "price": f"{number}.{line}5", **more.get("line", {})}
                        for line in range(number % 3)
                    ],
                    "visits": {
                        f"day-{number % 4}": {"page": f"page-{number}", "seconds": number, **more.get("visit", {})}
                    },
                    **more.get("order", {}),
                }
            ).encode(),
            number * 1_000,
        )
        for number in range(first, first + count)
    ]


MORE = {
    "geo": {"lng": 1.5},
    "place": {"floor": 3},
    "line": {"note": "fragile", "made": {"lat": 2.5, "lng": 3.5}},
    "visit": {"country": "NO"},
    "order": {"channel": "web"},
}


def shown(value: Any, annotation: Any) -> Any:
    """A JSON value as its column shows it: every field of a dataclass, null where it is missing."""
    if value is None:
        return None
    if annotation is Decimal or typing.get_origin(annotation) is typing.Annotated:
        return Decimal(value)
    arguments = [each for each in typing.get_args(annotation) if each is not type(None)]
    if len(arguments) == 1 and typing.get_origin(annotation) is not list:
        return shown(value, arguments[0])
    if typing.get_origin(annotation) is list:
        return [shown(each, arguments[0]) for each in value]
    if typing.get_origin(annotation) is dict:
        return [{"key": key, "value": shown(each, arguments[1])} for key, each in value.items()]
    if dataclasses.is_dataclass(annotation):
        hints = typing.get_type_hints(annotation, include_extras=True)
        return {name: shown(value.get(name), hint) for name, hint in hints.items()}
    return value


def newest_counted(place: Place, version: Version) -> dict[str, Any]:
    """By user, the newest order."""
    return {key.decode(): shown(json.loads(value), version.order) for key, value, _ in place.topics.rows["orders", 0]}


def totals_counted(place: Place, version: Version) -> dict[str, Any]:
    """By user, what the aggregation has."""
    hints = typing.get_type_hints(version.order, include_extras=True)
    found: dict[str, Any] = {}
    for key, value, _ in place.topics.rows["orders", 0]:
        before, order = found.get(key, {"n": 0, "visits": {}}), json.loads(value)
        found[key] = {"n": before["n"] + 1, "newest": order, "visits": {**before["visits"], **order["visits"]}}
    return {
        key.decode(): {
            "n": each["n"],
            "newest": shown(each["newest"], version.order),
            "visits": shown(each["visits"], hints["visits"]),
        }
        for key, each in found.items()
    }


def held(place: Place, store: str) -> dict[str, Any]:
    """By user, the other columns of a store as of the newest commit."""
    committed = newest_commit(place.warehouse, "orders")
    stores = (each for sub_topology in place.application.topology.sub_topologies for each in sub_topology.stores)
    spec = next(each for each in stores if each.name == store)
    return by_user(state_as_of(place.warehouse / "orders", spec, committed.epoch).drop("task"))


def by_user(rows: pl.DataFrame) -> dict[str, Any]:
    """By user, the other columns without those that Weir adds."""
    assert rows["user"].is_unique().all()
    return {
        row["user"]: {name: value for name, value in row.items() if name != "user" and not name.startswith("_")}
        for row in rows.to_dicts()
    }
