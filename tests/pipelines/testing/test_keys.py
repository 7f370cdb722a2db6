"""Keys of several columns and of expressions: one class of objects, equal by value, and found in every store."""

import pickle
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from weir import Application, Json, Msgpack, SessionWindows, StreamsBuilder, String, TimeWindows, Windowed
from weir.pipelines.serdes.row_type import RowType
from weir.testing import TopologyTestDriver


@dataclass(frozen=True)
class Click:
    page: str
    n: int


START = datetime(2024, 1, 1, tzinfo=UTC)


def counted(*keys, **expressions):
    """A program that counts clicks by a key, and the keys that its function was given."""
    seen = []

    def add(key: object, click: Click, total: int) -> int:
        seen.append(key)
        return total + 1

    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=Json(Click)).group_by(*keys, **expressions)
    clicks.aggregate("counts", lambda: 0, add).to_delta("counts")
    hourly = clicks.windowed_by(TimeWindows.of_size_with_no_grace(timedelta(hours=1))).count("hourly")
    hourly.to_delta("hourly")
    clicks.windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(timedelta(hours=1))).count("visits")
    return Application("test", builder), seen


@pytest.mark.parametrize(
    ("program", "ways"),
    [
        (counted("page", "n"), [("p", 1), {"page": "p", "n": 1}, Click("p", 1)]),
        (counted(g=pl.col("page")), ["p", {"g": "p"}]),
    ],
)
def test_a_key_given_to_a_function_is_equal_each_time_and_found_in_every_store(program, ways):
    application, seen = program
    with TopologyTestDriver(application) as driver:
        topic = driver.create_input_topic("clicks", start=START)
        topic.pipe_value_list([Click("p", 1)] * 2)
        assert (seen[0] == seen[1], type(seen[0]) is type(seen[1])) == (True, True)
        assert driver.create_output_table("counts").read_key_values_to_map() == {seen[0]: 2}
        window = Windowed(seen[0], START, START + timedelta(hours=1))
        for key in (seen[0], *ways):
            assert driver.get_key_value_store("counts").get(key) == 2
            assert driver.get_key_value_store("counts").get_with_timestamp(key) == (2, START)
            assert driver.get_window_store("hourly").fetch(key, START) == 2
            assert driver.get_window_store("hourly").fetch_all(key) == [(window, 2)]
            assert driver.get_window_store("hourly").get(Windowed(key, START, window.window_end)) == 2
            assert driver.get_session_store("visits").fetch(key) == [(Windowed(seen[0], START, START), 2)]
            assert driver.get_session_store("visits").fetch_session(key, START, START) == 2


@pytest.mark.parametrize(
    "key", ["p", 5, ("p",), ("p", 1, 2), (1, "p"), ("p", True), {"page": "p"}, String("page"), ("p", 1 << 70)]
)
def test_a_key_of_another_shape_or_type_is_refused_naming_the_columns(key):
    with TopologyTestDriver(counted("page", "n")[0]) as driver:
        for look in (
            driver.get_key_value_store("counts").get,
            driver.get_window_store("hourly").fetch_all,
            driver.get_session_store("visits").fetch,
        ):
            with pytest.raises(TypeError, match=r"does not fit the key, which has the columns page \(str\), n \(int\)"):
                look(key)
        with pytest.raises(TypeError, match="is not a Windowed"):
            driver.get_window_store("hourly").get(key)


def test_rows_of_equal_columns_are_equal_whatever_row_type_made_them_and_they_pickle():
    columns = pl.Schema({"page": pl.String(), "times": pl.Int64()})
    (one, other), (third,) = (
        RowType(columns).to_objects(pl.DataFrame(rows, schema=columns, orient="row"))
        for rows in ([("p", 1), ("p", 2)], [("p", 1)])
    )
    assert (one == third, hash(one) == hash(third), one == other) == (True, True, False)
    assert pickle.loads(pickle.dumps(one)) == one


KINDS = {
    pl.Int64(): st.integers(-(1 << 63), (1 << 63) - 1),
    pl.Float64(): st.floats(),
    pl.Boolean(): st.booleans(),
    pl.String(): st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
    pl.Binary(): st.binary(max_size=4),
    pl.Date(): st.dates(date(1, 1, 1)),
    pl.Datetime("ms", "UTC"): st.datetimes(timezones=st.just(UTC)).map(
        lambda time: time.replace(microsecond=time.microsecond // 1000 * 1000)
    ),
}


@st.composite
def keyed(draw):
    """Columns and a few keys for them, none of which is all null."""
    kinds = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=3))
    values = st.tuples(*(KINDS[kind] | st.none() for kind in kinds)).filter(
        lambda key: any(value is not None for value in key)
    )
    return {f"k{place}": kind for place, kind in enumerate(kinds)}, draw(st.lists(values, min_size=1, max_size=4))


@pytest.mark.slow
@settings(max_examples=examples(40), derandomize=True)
@given(keyed())
def test_a_value_put_under_a_key_is_found_under_it(example):
    columns, keys = example
    builder = StreamsBuilder()
    serde = Msgpack(pl.Schema(columns))
    builder.stream("x", key=String("user"), value=serde).group_by(*columns).count("counts")
    with TopologyTestDriver(Application("test", builder)) as driver:
        topic = driver.create_input_topic("x")
        for key in keys:
            topic.pipe_input(None, serde.cls(*key))
        store = driver.get_key_value_store("counts")
        assert sum(count for _, count in store.all()) == len(keys)
        for key, count in store.all():
            assert store.get(key) == count
        for key in keys:
            given_key = key if len(columns) > 1 else key[0]
            assert store.get(given_key) == store.get(dict(zip(columns, key, strict=True))) >= 1
