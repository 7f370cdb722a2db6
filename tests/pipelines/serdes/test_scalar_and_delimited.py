"""Scalars and delimited keys: what is read, what is bad, and that a producer's bytes come back."""

from dataclasses import dataclass

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir import Bytes, Delimited, Int64, String, TopologyError


@dataclass(frozen=True)
class Route:
    carrier: str
    number: int


def rows(serde, items):
    columns = serde.decode(pl.Series(items, dtype=pl.Binary()), serde.row_type("value"))
    return list(zip(*[column.to_list() for column in columns.columns], strict=True)), columns.absent, set(columns.bad)


@given(st.lists(st.one_of(st.none(), st.text(max_size=5)), max_size=5))
def test_text_is_read_as_it_was_written(items):
    serde = String()
    found, absent, bad = rows(serde, [serde.encode(item) for item in items])
    assert [row[0] for row in found] == items
    assert (absent, bad) == ([index for index, item in enumerate(items) if item is None], set())


@given(st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), max_size=5))
def test_integers_are_eight_bytes_and_read_as_they_were_written(items):
    serde = Int64()
    assert [row[0] for row in rows(serde, [serde.encode(item) for item in items])[0]] == items


def test_integers_are_big_endian_like_those_of_kafkas_long_serializer():
    assert Int64().encode(258) == b"\x00\x00\x00\x00\x00\x00\x01\x02"
    assert rows(Int64(), [b"\x00" * 7, b"\xff" * 8]) == ([(None,), (-1,)], [], {0})


def test_bytes_are_passed_on_as_they_are():
    assert rows(Bytes(), [b"\xff\x00", None, b""]) == ([(b"\xff\x00",), (None,), (b"",)], [1], set())


def test_text_that_is_not_utf8_is_bad_and_spoils_no_other_record():
    assert rows(String(), [b"a", b"\xff", None, b"\xc3\xa9"]) == ([("a",), (None,), (None,), ("é",)], [2], {1})


def test_a_delimited_key_splits_into_its_typed_parts():
    found, absent, bad = rows(Delimited(Route, sep="-"), [b"UA-12", None, b"-7"])
    assert (found, absent, bad) == ([("UA", 12), (None, None), ("", 7)], [1], set())


@pytest.mark.parametrize("item", [b"UA", b"UA-1-2", b"", b"UA-x", b"UA-", b"UA-99999999999999999999", b"\xff-1"])
def test_a_delimited_key_with_wrong_parts_is_bad(item):
    assert rows(Delimited(Route, sep="-"), [b"UA-1", item])[2] == {1}


def test_a_part_that_contains_the_separator_is_refused():
    with pytest.raises(ValueError, match="separator"):
        Delimited(Route, sep="-").encode(Route("U-A", 1))


def test_a_part_that_makes_a_separator_with_what_is_beside_it_is_refused():
    serde = Delimited(Route, sep="--")
    assert serde.encode(Route("UA", -1)) == b"UA---1"
    with pytest.raises(ValueError, match="'UA---1' could not be read back"):
        serde.encode(Route("UA-", 1))


def test_a_part_of_another_type_is_refused():
    with pytest.raises(TypeError, match=r"takes int for number, found '1' \(str\)"):
        Delimited(Route, sep="-").encode(Route("UA", "1"))


def test_delimited_parts_are_text_or_integers():
    @dataclass(frozen=True)
    class Odd:
        name: str | None

    with pytest.raises(TopologyError, match="str or int"):
        Delimited(Odd, sep="-")
    with pytest.raises(TopologyError, match="empty separator"):
        Delimited(Route, sep="")
