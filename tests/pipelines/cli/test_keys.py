"""Keys on the command line: plain values, values with dashes, JSON objects, and what is wrong with others."""

import re
from datetime import UTC, date, datetime, time
from decimal import Decimal

import polars as pl
import pytest

from weir.pipelines.cli.keys import parse_key, parse_prefix
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.serdes.shapes import TIME

ROUTE = pl.Schema({"carrier": pl.String(), "origin": pl.String()})
TEN = datetime(2013, 1, 1, 10, tzinfo=UTC)
DTYPES = {"str": pl.String(), "int": pl.Int64(), "float": pl.Float64(), "bool": pl.Boolean(), "bytes": pl.Binary()}
DTYPES |= {"datetime": TIME, "date": pl.Date(), "time": pl.Time(), "Decimal": pl.Decimal(10, 2)}


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("UA-EWR", {"carrier": "UA", "origin": "EWR"}),
        ("UA-EWR-2", {"carrier": "UA", "origin": "EWR-2"}),
        ('{"origin": "E-R", "carrier": "U-A"}', {"carrier": "U-A", "origin": "E-R"}),
        ('{"origin": null, "carrier": "UA"}', {"carrier": "UA", "origin": None}),
    ],
)
def test_several_key_columns_take_a_dash_or_json(text, key):
    assert list(parse_key(text, ROUTE).items()) == list(key.items())


@pytest.mark.parametrize(
    ("kind", "text", "json", "value"),
    [
        ("str", "a-b", '"a-b"', "a-b"),
        ("str", "7", '"7"', "7"),
        ("int", "-7", "-7", -7),
        ("float", "1.5", "1.5", 1.5),
        ("float", "1", "1", 1.0),
        ("bool", "True", "true", True),
        ("bytes", "a-b", '"a-b"', b"a-b"),
        ("date", "2013-01-01", '"2013-01-01"', date(2013, 1, 1)),
        ("time", "10:30", '"10:30:00"', time(10, 30)),
        ("Decimal", "-1.50", '"-1.5"', Decimal("-1.5")),
        ("datetime", "2013-01-01T10:00", '"2013-01-01T12:00+02:00"', TEN),
    ],
)
def test_a_single_key_column_takes_the_text_itself_or_a_json_object(kind, text, json, value):
    columns = {"k": DTYPES[kind]}
    assert parse_key(text, columns) == parse_key(f'{{"k": {json}}}', columns) == {"k": value}


def test_a_key_that_itself_begins_with_a_brace_is_given_as_json():
    assert parse_key('{"k": "{7}"}', {"k": pl.String()}) == {"k": "{7}"}


@pytest.mark.parametrize(
    ("kind", "json"),
    [
        ("str", "7"),
        ("str", "null"),
        ("str", '["a"]'),
        ("str", '{"a": 1}'),
        ("int", '"7"'),
        ("int", "true"),
        ("int", "7.0"),
        ("float", '"1.5"'),
        ("bool", "1"),
        ("bool", '"true"'),
        ("bytes", "7"),
        ("date", '"someday"'),
        ("date", "20130101"),
        ("datetime", "0"),
        ("time", '"noon"'),
        ("Decimal", '"much"'),
        ("Decimal", "1.5"),
    ],
)
def test_a_json_value_of_another_type_is_refused(kind, json):
    with pytest.raises(OperationError, match=rf"^KEY: .*; the key has the column k \({kind}\), for example '{{\"k\": "):
        parse_key(f'{{"k": {json}}}', {"k": DTYPES[kind]})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("UA", "'UA' has 1 of 2 values"),
        ('{"carrier": "UA"}', "'origin' is missing"),
        ('{"carrier": "UA", "origin": "EWR", "dest": "IAH"}', "'dest' is not one of its columns"),
        ('{"carrier": "UA", "origin": "EWR", "carrier": "AA"}', "'carrier' is given twice"),
        ('{"carrier": null, "origin": null}', "is null"),
        ("{carrier", "is not JSON"),
        ('{"carrier": "UA", "origin": "EWR"} x', "is not JSON"),
        ("{}", "'carrier' is missing, 'origin' is missing"),
    ],
)
def test_the_error_for_a_wrong_key_names_the_columns_and_shows_a_key(text, reason):
    shown = 'the key has the columns carrier (str), origin (str), for example \'{"carrier": "abc", "origin": "abc"}\''
    with pytest.raises(OperationError, match=f"^KEY: .*{re.escape(reason)}.*; {re.escape(shown)}$"):
        parse_key(text, ROUTE)


def test_text_that_is_no_value_of_a_single_column_is_refused():
    with pytest.raises(OperationError, match=r"^--from: 'seven' is not a value of the column 'id'; .* id \(int\)"):
        parse_key("seven", {"id": pl.Int64()}, "--from")


def test_a_prefix_is_the_first_column_or_a_json_object_of_the_first_columns():
    assert parse_prefix("U-A", ROUTE) == parse_prefix('{"carrier": "U-A"}', ROUTE) == ("U-A",)
    assert parse_prefix('{"origin": "E", "carrier": "UA"}', ROUTE) == ("UA", "E")
    assert parse_prefix("7", {"id": pl.Int64(), "name": pl.String()}) == (7,)
    with pytest.raises(OperationError, match=r"^--prefix: .*'carrier' is missing"):
        parse_prefix('{"origin": "E"}', ROUTE)
