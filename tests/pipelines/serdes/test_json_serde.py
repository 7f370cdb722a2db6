"""JSON decoding against a slow reference over ``json.loads``, and the rules one by one."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from unittest import mock

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from weir import Json, TopologyError
from weir.pipelines.serdes import json_serde


@dataclass(frozen=True)
class Event:
    name: str
    amount: int | None
    rate: float | None
    ok: bool | None


SERDE = Json(Event)
TYPE = SERDE.row_type("value")
WANTED = {"name": (str, True), "amount": (int, False), "rate": (float, False), "ok": (bool, False)}


def refuse_constant(text):
    raise ValueError(text)


def reference(item: bytes | None):
    """``("row", fields)``, ``("absent",)`` or ``("bad",)``."""
    if item is None:
        return ("absent",)
    try:
        value = json.loads(item.decode(), parse_constant=refuse_constant)
    except ValueError:
        return ("bad",)
    if value is None:
        return ("absent",)
    if not isinstance(value, dict):
        return ("bad",)
    row = []
    for name, (kind, is_required) in WANTED.items():
        field = value.get(name)
        if field is None:
            if is_required:
                return ("bad",)
        elif kind is float and type(field) is int:
            field = float(field)
        elif type(field) is not kind or (kind is int and not -(2**63) <= field < 2**63):
            return ("bad",)
        row.append(field)
    return ("row", tuple(row))


def decoded(items, together=json_serde.TOGETHER, few=0):
    with mock.patch.multiple(json_serde, TOGETHER=together, FEW=few):
        columns = SERDE.decode(pl.Series(items, dtype=pl.Binary()), TYPE)
    rows = list(zip(*[column.to_list() for column in columns.columns], strict=True))
    return [
        ("bad",) if index in columns.bad else ("absent",) if index in set(columns.absent) else ("row", row)
        for index, row in enumerate(rows)
    ]


FIELD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(0, 9),
    st.floats(-1e6, 1e6),
    st.text(max_size=4),
    st.lists(st.integers(), max_size=1),
)
OBJECT = st.dictionaries(st.sampled_from([*WANTED, "other", "née"]), FIELD)
GOOD = st.fixed_dictionaries({"name": st.text(max_size=5), "amount": st.one_of(st.none(), st.integers(0, 99))})
TEXT = st.one_of(
    GOOD.map(json.dumps),
    GOOD.map(json.dumps),
    OBJECT.map(json.dumps),
    GOOD.map(lambda value: json.dumps(value, indent=1)),
    GOOD.map(lambda value: f" {json.dumps(value)}\n"),
    GOOD.map(lambda value: json.dumps(value) + "\n" + json.dumps(value)),
    st.sampled_from(
        [
            "null",
            " null ",
            "",
            "{}",
            "[]",
            "1",
            "{",
            "}",
            "}\n{",
            '{"name": "a"} x',
            '{"name": "a"',
            '{"name": "a", "amount": 1.0}',
            '{"name": "a", "rate": 1e3}',
            '{"name": "a", "rate": NaN}',
        ]
    ),
)
ITEM = st.one_of(st.none(), TEXT.map(str.encode), TEXT.map(str.encode), st.binary(max_size=6))


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(st.lists(ITEM, max_size=6))
@example([b'{"name": "a"', b"}"])
@example([b'{"name": "a"}\n{"name": "b"}', b'{"name": "c"', b"}"])
@example([b'{"name": "a"} {"name": "b"}', b'{"name":', b'"c"}'])
@example([b'{"name": "a", "amount": 9223372036854775808}', b'{"name": "b", "amount": 9223372036854775807}'])
@example([b'{"name": "\xff"}', b'{"name": "a"}'])
def test_decoding_agrees_with_a_plain_reference(items):
    wanted = [reference(item) for item in items]
    assert decoded(items) == decoded(items, together=2) == decoded(items, few=json_serde.FEW) == wanted


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(st.lists(GOOD.map(json.dumps).map(str.encode), min_size=1, max_size=8), st.data())
def test_a_bad_record_spoils_no_good_one(items, data):
    at = data.draw(st.integers(0, len(items)))
    items.insert(at, data.draw(st.sampled_from([b'{"name": 1}', b"{", b"}\n{", b'{"amount": 1}', b"\xff", b""])))
    with mock.patch.object(json_serde, "FEW", 0):
        columns = SERDE.decode(pl.Series(items, dtype=pl.Binary()), TYPE)
    assert list(columns.bad) == [at]
    assert decoded(items) == [reference(item) for item in items]


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (b'{"name": "a", "amount": "3"}', "Expected `int | null`, got `str` - at `$.amount`"),
        (b'{"amount": 3}', "missing required field `name`"),
        (b'{"name": "a", "amount": 3.5}', "Expected `int | null`, got `float` - at `$.amount`"),
        (b'{"name": "a"', "truncated"),
    ],
)
def test_a_bad_record_says_what_is_wrong_and_where(item, reason):
    assert reason in SERDE.decode(pl.Series([item]), TYPE).bad[0]


def test_objects_are_read_as_they_were_written():
    @dataclass(frozen=True)
    class Visit:
        at: datetime
        tags: list[str]

    serde = Json(Visit)
    visit = Visit(datetime(2024, 2, 29, 12, 30, 1, 250_000, tzinfo=UTC), ["a", "b"])
    row_type = serde.row_type("value")
    items = pl.Series([serde.encode(visit), None, b'{"at": "2024-01-01T00:00:00", "tags": []}'])
    columns = serde.decode(items, row_type)
    assert [column.to_list()[0] for column in columns.columns] == [visit.at, visit.tags]
    assert columns.absent == [1]
    assert "timezone" in columns.bad[2]


def test_a_schema_is_a_frozen_dataclass_with_known_types():
    @dataclass
    class Loose:
        name: str

    @dataclass(frozen=True)
    class Odd:
        name: complex

    for schema, reason in ((Loose, "not frozen"), (Odd, "Odd.name is annotated"), (dict, "not a dataclass")):
        with pytest.raises(TopologyError, match=reason):
            Json(schema)
