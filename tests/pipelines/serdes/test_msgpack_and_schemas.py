"""msgpack under the rules of JSON, and schemas declared in Arrow or polars instead of a dataclass."""

import pickle
from dataclasses import dataclass
from datetime import UTC, date, datetime

import msgspec
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir import Json, Msgpack, TopologyError


@dataclass(frozen=True)
class Visit:
    name: str
    amount: int | None
    at: datetime | None = None
    tags: list[str] | None = None
    raw: bytes | None = None


def decoded(serde, items):
    row_type = serde.row_type("value")
    columns = serde.decode(pl.Series(items, dtype=pl.Binary()), row_type)
    return pl.DataFrame(columns.columns).rows(), columns.absent, columns.bad


def test_msgpack_objects_are_read_as_they_were_written():
    visit = Visit("a", 3, datetime(2024, 2, 29, 12, 30, 1, 250_000, tzinfo=UTC), ["x"], b"\xff")
    serde = Msgpack(Visit)
    assert decoded(serde, [serde.encode(visit), None]) == ([("a", 3, visit.at, ["x"], b"\xff"), (None,) * 5], [1], {})
    assert pickle.loads(pickle.dumps(serde)).encode(visit) == serde.encode(visit)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"amount": 3}, "missing required field `name`"),
        ({"name": 3}, "Expected `str`, got `int`"),
        ({"name": "a", "amount": 1.5}, "Expected `int | null`, got `float`"),
        ({"name": "a", "amount": 2**63}, "does not fit into 64 bits"),
        ([1], "Expected `object"),
    ],
)
def test_a_bad_msgpack_value_says_what_is_wrong_and_spoils_no_other(value, reason):
    good = msgspec.msgpack.encode({"name": "a", "unknown": [{}], "amount": 1})
    rows, absent, bad = decoded(Msgpack(Visit), [good, msgspec.msgpack.encode(value), good, b"\xc0", b"\xc1", None])
    assert [row[0] for row in rows] == ["a", None, "a", None, None, None]
    assert (absent, list(bad)) == ([3, 5], [1, 4]), "nil is a tombstone"
    assert reason in bad[1]


VALUES = st.lists(
    st.one_of(
        st.none(),
        st.fixed_dictionaries(
            {"name": st.text(max_size=3), "amount": st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))}
        ),
    ),
    max_size=6,
)


@pytest.mark.slow
@given(VALUES)
def test_msgpack_and_json_of_the_same_values_decode_alike(values):
    @dataclass(frozen=True)
    class Plain:
        name: str
        amount: int | None

    json = decoded(Json(Plain), [msgspec.json.encode(value) for value in values])
    assert decoded(Msgpack(Plain), [msgspec.msgpack.encode(value) for value in values]) == json


SCHEMA = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("small", pa.int16()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("day", pa.date32()),
        pa.field("rates", pa.list_(pa.float32())),
    ]
)


@pytest.mark.parametrize("serde", [Json, Msgpack])
def test_a_schema_may_be_declared_in_arrow(serde):
    made = serde(SCHEMA)
    assert dict(made.row_type("value").columns) == {
        "name": pl.String,
        "small": pl.Int64,
        "at": pl.Datetime("ms", "UTC"),
        "day": pl.Date,
        "rates": pl.List(pl.Float64),
    }
    item = made.cls(name="a", small=3, at=None, day=date(2024, 1, 2), rates=[0.5])
    empty = (msgspec.json if serde is Json else msgspec.msgpack).encode({})
    rows, _, bad = decoded(made, [made.encode(item), empty])
    assert rows[0] == ("a", 3, None, date(2024, 1, 2), [0.5])
    assert "missing required field `name`" in bad[1], "a field that is not nullable must be there"
    assert pickle.loads(pickle.dumps(made)).row_type("value").columns == made.row_type("value").columns


def test_the_fields_of_a_polars_schema_may_be_missing():
    serde = Json(pl.Schema({"name": pl.String(), "n": pl.Int32()}))
    assert decoded(serde, [b'{"n": 3}', b'{"n": "x"}'])[0] == [(None, 3), (None, None)]
    with pytest.raises(TopologyError, match="'x' has type Duration"):
        Json(pl.Schema({"x": pl.Duration("ms")}))
    with pytest.raises(TopologyError, match="not a dataclass"):
        Json({"name": str})
