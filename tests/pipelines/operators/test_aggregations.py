"""Aggregations and tables, record by record (Kafka Streams features, sections 2, 3 and 7)."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from polars import col

from tests.pipelines.operators.programs import Click, driven
from weir import (
    Application,
    Count,
    First,
    Json,
    Last,
    Max,
    Mean,
    Min,
    OperatorError,
    StreamsBuilder,
    String,
    Sum,
    UserFunctionError,
)
from weir.pipelines.operators import fold
from weir.testing import TopologyTestDriver


@dataclass(frozen=True)
class Visits:
    pages: str
    n: int


@dataclass(frozen=True, kw_only=True)
class Page:
    name: str


def at(ms):
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def test_null_keys_and_null_values_are_dropped_and_counted():
    with driven(lambda s: s.group_by_key().count("c").to_delta("out")) as (topic, out, driver):
        topic.pipe_input(None, Click("x"), timestamp_ms=1)
        topic.pipe_input("a", None, timestamp_ms=1)
        topic.pipe_input("a", Click("x"), timestamp_ms=1)
        assert out.read_rows() == [dict(user="a", count=1)]
        assert (driver.counts["null_keys"], driver.counts["null_values"]) == (1, 1)


def test_json_null_is_a_tombstone_like_no_bytes():
    with driven(lambda s: s.to_table("t").to_delta("out")) as (topic, out, _):
        topic.pipe_input("a", Click("x"), timestamp_ms=1)
        topic.pipe_input("a", b"null", timestamp_ms=2)
        topic.pipe_input("b", None, timestamp_ms=3)  # forwarded even for an unknown key
        assert [(r.row["user"], r.row["page"], r.is_deleted) for r in out.read_records()] == [
            ("a", "x", False),
            ("a", None, True),
            ("b", None, True),
        ]


def test_the_first_value_is_the_first_result_of_reduce():
    def longer(one: Click, other: Click) -> Click:
        calls.append((one, other))
        return max(one, other, key=lambda click: len(click.page))

    calls = []
    with driven(lambda s: s.group_by_key().reduce("longest", longer).to_delta("out")) as (topic, out, driver):
        topic.pipe_input("a", Click("xx"), timestamp_ms=1)
        assert not calls
        topic.pipe_input("a", Click("y", 5), timestamp_ms=2)
        assert [row["page"] for row in out.read_rows()] == ["xx", "xx"]
        assert driver.get_key_value_store("longest").get("a") == dict(page="xx", ms=None)


def test_none_from_an_aggregator_deletes_the_row_and_the_next_record_starts_over():
    def add(key: str, click: Click, visits: Visits) -> Visits | None:
        return None if click.page == "logout" else Visits(visits.pages + click.page, visits.n + 1)

    program = lambda s: s.group_by_key().aggregate("v", lambda: Visits("", 0), add).to_delta("out")
    with driven(program) as (topic, out, driver):
        for page, ms in (("x", 5), ("y", 3), ("logout", 4), ("z", 1)):
            topic.pipe_input("a", Click(page), timestamp_ms=ms)
        records = out.read_records()
        assert [(r.row["pages"], r.row["n"], r.is_deleted) for r in records] == [
            ("x", 1, False),
            ("xy", 2, False),
            (None, None, True),
            ("z", 1, False),
        ]
        assert [r.timestamp for r in records] == [at(5), at(5), at(5), at(1)]
        assert driver.get_key_value_store("v").all() == [("a", dict(pages="z", n=1))]


def test_the_time_of_a_result_never_goes_back():
    with driven(lambda s: s.group_by_key().count("c").to_delta("out")) as (topic, out, _):
        for ms in (9, 4, 12):
            topic.pipe_input("a", Click("x"), timestamp_ms=ms)
        assert [record.timestamp for record in out.read_records()] == [at(9), at(9), at(12)]


def test_every_aggregate_ignores_nulls_and_has_a_result_for_nothing():
    def program(clicks):
        clicks.group_by_key().agg(
            "all",
            n=Count(),
            total=Sum("ms"),
            slow=Sum(col("ms") > 4),
            low=Min("ms"),
            high=Max("ms"),
            mean=Mean("ms"),
            first=First("ms"),
            last=Last("ms"),
            page=Max("page"),
        ).to_delta("out")

    with driven(program) as (topic, out, driver):
        topic.pipe_input("a", Click("x", None), timestamp_ms=1)
        nothing = dict(user="a", n=1, total=0, slow=0, low=None, high=None, mean=None, first=None, last=None, page="x")
        assert out.read_row() == nothing
        for page, ms in (("z", 7), ("y", 4), ("y", None)):
            topic.pipe_input("a", Click(page, ms), timestamp_ms=1)
        everything = dict(n=4, total=11, slow=1, low=4, high=7, mean=5.5, first=7, last=4, page="z")
        assert out.read_rows()[-1] == dict(user="a", **everything)
        assert driver.get_key_value_store("all").get("a") == everything


def test_every_update_of_an_aggregation_is_a_record_of_its_stream():
    with driven(lambda s: s.group_by_key().count("c").to_stream().filter(col("count") % 2 == 1).to_delta("out")) as (
        topic,
        out,
        _,
    ):
        for _ in range(5):
            topic.pipe_input("a", Click("x"), timestamp_ms=1)
        assert [row["count"] for row in out.read_rows()] == [1, 3, 5]


def test_a_row_that_no_longer_passes_becomes_a_tombstone_and_the_predicate_sees_none():
    seen = []

    def few(key: str, count: int) -> bool:
        seen.append(count)
        return count < 2

    with driven(lambda s: s.group_by_key().count("c").filter(few).filter(few).to_delta("out")) as (topic, out, _):
        topic.pipe_input("a", Click("x"), timestamp_ms=1)
        topic.pipe_input("a", Click("x"), timestamp_ms=2)
        assert [(r.row["count"], r.is_deleted) for r in out.read_records()] == [(1, False), (None, True)]
        assert seen == [1, 1, 2]


def length(click: Click) -> int:
    return len(click.page)


def test_a_table_maps_values_but_not_tombstones():
    with driven(lambda s: s.to_table("t").map_values(length).to_delta("out")) as (topic, out, _):
        topic.pipe_input("a", Click("xyz"), timestamp_ms=1)
        topic.pipe_input("a", None, timestamp_ms=2)
        assert [(r.row, r.is_deleted) for r in out.read_records()] == [
            (dict(user="a", value=3), False),
            (dict(user="a", value=None), True),
        ]


def test_arrival_decides_in_a_table_not_the_timestamp():
    builder = StreamsBuilder()
    builder.table("pages", key=String("user"), value=Json(Click), store="pages").to_delta("out")
    with TopologyTestDriver(Application("test", builder)) as driver:
        topic = driver.create_input_topic("pages")
        topic.pipe_records([("a", Click("new"), 9), ("a", Click("old"), 3), (None, Click("x"), 4)])
        assert driver.get_key_value_store("pages").get("a") == dict(page="old", ms=None)
        assert driver.counts["null_keys"] == 1
        topic.pipe_input("a", None, timestamp_ms=10)
        assert driver.get_key_value_store("pages").all() == []


def test_stateless_operators_see_null_keys_and_values():
    seen = []

    def look(key: str | None, click: Click | None) -> bool:
        seen.append((key, click))
        return True

    def page(click: Click | None) -> str:
        return "nothing" if click is None else click.page

    with driven(lambda s: s.filter(look).map_values(page).to_delta("out")) as (topic, out, _):
        topic.pipe_input(None, Click("x"), timestamp_ms=1)
        topic.pipe_input("a", None, timestamp_ms=1)
        assert seen == [(None, Click("x")), ("a", None)]
        assert out.read_rows() == [dict(user=None, value="x"), dict(user="a", value="nothing")]


def test_grouping_by_a_value_column_keeps_it_as_the_key():
    with driven(lambda s: s.group_by("page").agg("pages", n=Count(), ms=Sum("ms")).to_delta("out")) as (topic, out, d):
        topic.pipe_input("a", Click("x", 3), timestamp_ms=1)
        topic.pipe_input("b", Click("x", 4), timestamp_ms=1)
        assert out.read_rows() == [dict(page="x", n=1, ms=3), dict(page="x", n=2, ms=7)]
        assert d.get_key_value_store("pages").get("x") == dict(n=2, ms=7)


def test_a_function_can_choose_the_key():
    @dataclass(frozen=True)
    class Initial:
        letter: str

    def initial(key: str | None, click: Click | None) -> Initial | None:
        return Initial(click.page[:1]) if click else None

    initial.__annotations__ = {"return": Initial | None}
    with driven(lambda s: s.select_key(initial).group_by_key().count("c").to_delta("out")) as (topic, out, driver):
        topic.pipe_records([("a", Click("xy"), 1), ("b", Click("xz"), 1), ("b", None, 1)])
        assert out.read_rows() == [dict(letter="x", count=1), dict(letter="x", count=2)]
        assert driver.counts["null_keys"] == 1


def test_a_function_gets_keyword_only_dataclasses_too():
    def longest(key: str, click: Click, longest: Page | None) -> Page:
        return max(longest, Page(name=click.page), key=lambda page: len(page.name))

    with driven(lambda s: s.group_by_key().aggregate("longest", lambda: Page(name=""), longest).to_delta("out")) as (
        topic,
        out,
        _,
    ):
        topic.pipe_records([("a", Click("xyz"), 1), ("a", Click("x"), 2)])
        assert [row["name"] for row in out.read_rows()] == ["xyz", "xyz"]


@dataclass(frozen=True)
class Known:
    """A value that may not be made."""

    page: str

    def __post_init__(self):
        if self.page == "unknown":
            raise ValueError("no such page")


def test_a_function_gets_each_record_however_many_values_are_objects_at_a_time(monkeypatch):
    monkeypatch.setattr(fold, "OBJECTS", 3)
    given = [(f"u{number * 7 % 5}", Click(f"{number},"), number) for number in range(20)]
    seen = {}
    results = [seen.setdefault(user, []).append(click.page) or "".join(seen[user]) for user, click, _ in given]

    def add(key: str, click: Click, text: str) -> str:
        return text + click.page

    aggregated = lambda s: s.group_by_key().aggregate("v", str, add)
    with driven(lambda s: aggregated(s).to_stream().to_delta("out")) as (topic, out, _):
        topic.pipe_records(given)
        assert [row["value"] for row in out.read_rows()] == results
    with driven(lambda s: aggregated(s).to_delta("out")) as (topic, _, driver):
        topic.pipe_records(given)
        assert driver.get_key_value_store("v").all() == sorted((user, "".join(pages)) for user, pages in seen.items())


def test_a_value_that_cannot_be_made_is_not_blamed_on_the_function_or_the_record_before(monkeypatch):
    monkeypatch.setattr(fold, "OBJECTS", 1)
    called = []

    def add(key: str, value: Known, pages: str) -> str:
        called.append(value.page)
        return pages + value.page

    builder = StreamsBuilder()
    grouped = builder.stream("in", key=String("user"), value=Json(Known)).group_by_key()
    grouped.aggregate("v", str, add).to_delta("out")
    with TopologyTestDriver(Application("known", builder)) as driver, pytest.raises(OperatorError) as raised:
        driver.create_input_topic("in").pipe_records([("a", Known("x"), 1), ("a", dict(page="unknown"), 2)])
    assert "no such page" in str(raised.value)
    assert not isinstance(raised.value, UserFunctionError)
    assert called == ["x"]


def test_a_function_that_fails_or_breaks_its_promise_is_named():
    def broken(click: Click) -> int:
        return click.ms + 1

    def liar(click: Click) -> int:
        return "three"

    for function, reason in ((broken, "TypeError"), (liar, "annotation")):
        with (
            driven(lambda s, f=function: s.map_values(f).to_delta("out")) as (topic, _, _),
            pytest.raises(UserFunctionError, match=f"{function.__name__}.*{reason}"),
        ):
            topic.pipe_input("a", Click("x", None), timestamp_ms=1)


def test_the_sum_of_nulls_alone_is_0_unlike_in_sql_and_the_documented_count_tells_it_from_a_sum_of_numbers():
    aggregates = dict(late=Sum("ms"), numbers=Sum(col("ms").is_not_null()), usual=Mean("ms"), least=Min("ms"))
    with driven(lambda s: s.group_by_key().agg("a", n=Count(), **aggregates).to_delta("out")) as (topic, out, _):
        topic.pipe_input("a", Click("x"), timestamp_ms=1)
        assert out.read_row() == dict(user="a", n=1, late=0, numbers=0, usual=None, least=None)
        topic.pipe_input("a", Click("x", 0), timestamp_ms=2)
        assert out.read_row() == dict(user="a", n=2, late=0, numbers=1, usual=0.0, least=0)
