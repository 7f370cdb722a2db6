"""The examples of docs/types.md run, and its table says what the serdes and stores do."""

import re
from dataclasses import make_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal
from uuid import UUID

import polars as pl
import pytest
from deltalake import Schema

from weir import Avro, Json
from weir.state.commit.files import stored_schema
from weir.state.stores.codec import KeyCodec
from weir.state.types import TableSpec

PAGE = Path(__file__).resolve().parent.parent / "docs" / "types.md"
TEXT = PAGE.read_text(encoding="utf-8")


class Word(Enum):
    YES = "yes"


class Number(Enum):
    ONE = 1


Nested = make_dataclass("Nested", [("x", int)], frozen=True)
ROWS = {
    "`int`": int,
    "`float`": float,
    "`bool`": bool,
    "`str`": str,
    "`bytes`": bytes,
    "`datetime`": datetime,
    "`date`": date,
    "`time`": time,
    "`Decimal`": Decimal,
    "`Annotated[Decimal, pl.Decimal(12, 2)]`": Annotated[Decimal, pl.Decimal(12, 2)],
    "`UUID`": UUID,
    "`Enum` or `Literal` of text": Literal["a"],
    "`Enum` or `Literal` of integers": Number,
    "a frozen dataclass": Nested,
    "`list[X]`, `tuple[X, ...]`": tuple[int, ...],
    "`dict[str, X]`": dict[str, int],
}
POLARS = {
    "Struct": pl.Struct({"x": pl.Int64()}),
    "List": pl.List(pl.Int64()),
    "List(Struct(key, value))": pl.List(pl.Struct({"key": pl.String(), "value": pl.Int64()})),
    'Datetime("ms", "UTC")': pl.Datetime("ms", "UTC"),
    "Decimal(38, 9)": pl.Decimal(38, 9),
    "Decimal(12, 2)": pl.Decimal(12, 2),
}
DELTA = {"bigint": "long", "array of struct of key and value": "array"}


def cells():
    """Annotation to the other cells of its row."""
    lines = re.findall(r"^\| (.*) \|$", TEXT, re.MULTILINE)[2:]
    return {line[0]: line[1:] for line in (re.split(r" (?<!\\)\| ", line) for line in lines)}


def test_the_pages_examples_run_in_order():
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) > 6
    names = {"__name__": "types_page"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)


def test_the_table_has_a_row_for_every_type():
    assert list(cells()) == [*ROWS, r"`X \| None`"]


@pytest.mark.parametrize("shown", ROWS)
def test_the_table_shows_the_types_that_polars_delta_and_avro_have(shown):
    cls = make_dataclass("Made", [("f", ROWS[shown])], frozen=True)
    _, _, avro, polars, delta, is_key = cells()[shown]
    dtype = Json(cls).row_type("value").columns["f"]
    name = polars.split(",", 1)[0] if polars.startswith("`String`") else polars
    assert dtype == POLARS.get(name.strip("`"), getattr(pl, name.strip("`"), None))

    spec = TableSpec(name="t", schema=pl.Schema({"f": dtype}))
    (field,) = Schema.from_arrow(pl.DataFrame(schema=stored_schema(spec)).to_arrow().schema).fields
    word = delta.split(", nano")[0]
    stored = getattr(field.type, "type", field.type)
    assert stored == DELTA.get(word, word)

    written = Avro(cls)._schema["fields"][0]["type"]
    kind = written.get("logicalType", written["type"]) if isinstance(written, dict) else written
    allowed = [each.strip("`") for each in avro.split(", ")]
    assert kind in (allowed if shown.startswith("`Enum`") else allowed[:1])

    if is_key == "yes":
        KeyCodec(pl.Schema({"f": dtype}))
    else:
        with pytest.raises(TypeError, match="key column 'f'"):
            KeyCodec(pl.Schema({"f": dtype}))
