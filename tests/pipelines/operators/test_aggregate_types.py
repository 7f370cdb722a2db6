"""What aggregates choose and rank may be of any type, and what decides of any type that has an order."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID

import polars as pl
import pytest
from polars import col

from tests.pipelines.operators.programs import Click, driven
from weir import (
    Application,
    BottomK,
    Collect,
    Count,
    First,
    Json,
    Last,
    MaxBy,
    MinBy,
    StreamsBuilder,
    String,
    StringAgg,
    Sum,
    TopK,
    ValueCounts,
)
from weir.testing import TopologyTestDriver


@dataclass(frozen=True)
class Place:
    city: str
    zip: int | None


@dataclass(frozen=True)
class Every:
    """One field for each type; those in front of ``place`` have an order."""

    whole: int
    real: float
    text: str
    raw: bytes
    flag: bool
    price: Decimal
    day: date
    hour: time
    at: datetime
    id: UUID
    place: Place
    tags: list[str]


def every(number: int) -> Every:
    """Each field is greater the greater the number is."""
    return Every(
        number,
        number / 4,
        f"{number}",
        bytes([number]),
        number > 1,
        Decimal(number) / 8,
        date(2024, 1, number),
        time(number),
        datetime(2024, 1, number, tzinfo=UTC),
        UUID(int=number),
        Place(f"{number}", None),
        [f"{number}"],
    )


FIELDS = list(Every.__annotations__)
ORDERED = FIELDS[: FIELDS.index("place")]


def last_row(aggregates, numbers):
    """The row after records with these numbers, in one epoch and one epoch each."""
    rows = []
    for in_one in (True, False):
        builder = StreamsBuilder()
        builder.stream("in", key=String("user"), value=Json(Every)).group_by_key().agg("s", **aggregates).to_delta(
            "out"
        )
        with TopologyTestDriver(Application("test", builder)) as driver:
            topic = driver.create_input_topic("in")
            if in_one:
                with driver.one_epoch():
                    topic.pipe_records([("a", every(number), number) for number in numbers])
            else:
                topic.pipe_records([("a", every(number), number) for number in numbers])
            rows.append(driver.create_output_table("out").read_rows()[-1])
    assert rows[0] == rows[1]
    return rows[0]


@pytest.mark.parametrize("field", FIELDS)
def test_a_value_of_any_type_is_chosen(field):
    aggregates = dict(
        least=MinBy(field, by="whole"),
        most=MaxBy(field, by="whole"),
        earliest=First(field, by_time=True),
        latest=Last(field, by_time=True),
        again=Last(field),
    )
    row = last_row(aggregates, [2, 1, 3, 2])
    low, high, again = (last_row(dict(v=Last(field)), [number])["v"] for number in (1, 3, 2))
    assert row == dict(user="a", least=low, most=high, earliest=low, latest=high, again=again)


@pytest.mark.parametrize("field", ORDERED)
def test_a_value_of_any_type_with_an_order_decides_and_is_ranked(field):
    aggregates = dict(
        least=MinBy("whole", by=field),
        most=MaxBy("text", by=field),
        top=TopK(field, 2),
        bottom=BottomK(field, 2),
        best=TopK("place", 1, by=field),
    )
    row = last_row(aggregates, [2, 1, 3])
    one, two, three = (last_row(dict(v=Last(field)), [number])["v"] for number in (1, 2, 3))
    first_greatest = "2" if field == "flag" else "3"
    assert row == dict(
        user="a", least=1, most=first_greatest, top=[three, two], bottom=[one, two],
        best=[dict(city=first_greatest, zip=None)],
    )  # fmt: skip


def test_counts_are_a_dictionary_and_ranked_values_a_list_for_functions():
    def named(value) -> str:
        return f"{value.pages} {value.slow}"

    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=Json(Click))
    shown = clicks.group_by_key().agg("s", pages=ValueCounts("page", 9), slow=TopK("ms", 2)).to_stream()
    shown.map_values(named).to_delta("out")
    with TopologyTestDriver(Application("test", builder)) as driver:
        driver.create_input_topic("clicks").pipe_records([("a", Click("x", 3), 1), ("a", Click("x", 7), 2)])
        assert driver.create_output_table("out").read_rows()[-1]["value"] == "{'x': 2} [7, 3]"


def test_a_joined_text_is_cut_and_stays_as_it_is_then():
    program = lambda s: s.group_by_key().agg("s", path=StringAgg("page", "", max_chars=5)).to_delta("out")
    with driven(program) as (topic, out, _):
        topic.pipe_records([("a", Click(page), 1) for page in ("ab", "", "cdé", "xyz", "q")])
        assert [row["path"] for row in out.read_rows()] == ["ab", "ab", "abcdé", "abcdé", "abcdé"]


def test_nulls_alone_give_nulls_and_empty_lists():
    aggregates = dict(
        least=MinBy("page", by="ms"),
        most=MaxBy("ms", by="page"),
        top=TopK("ms", 3),
        best=TopK("page", 3, by="ms"),
        earliest=First("ms", by_time=True),
        texts=StringAgg(col("ms").cast(pl.String), ",", 9),
        counts=ValueCounts(col("ms").cast(pl.String), 9),
    )
    with driven(lambda s: s.group_by_key().agg("s", **aggregates).to_delta("out")) as (topic, out, driver):
        topic.pipe_input("a", Click("x", None), timestamp_ms=1)
        nothing = dict(least=None, most=None, top=[], best=[], earliest=None, texts=None, counts=[])
        assert out.read_row() == dict(user="a", **nothing)
        assert driver.get_key_value_store("s").get("a") == nothing


def test_cogrouped_streams_have_what_decides_beside_what_is_chosen():
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=Json(Click)).group_by_key()
    views = builder.stream("views", key=String("user"), value=Json(Click)).group_by_key()
    slowest, first = MaxBy("page", by=col("ms") % 10), First("page", by_time=True)
    both = clicks.cogroup(n=Count(), slowest=slowest, pages=Collect("page", 9)).cogroup(
        views, seen=slowest, first=first, top=TopK("page", 2, by="ms"), took=Sum("ms")
    )
    both.agg("s").to_delta("out")
    with TopologyTestDriver(Application("test", builder)) as driver:
        one, other = driver.create_input_topic("clicks"), driver.create_input_topic("views")
        for topic, page, ms, at in ((one, "a", 19, 5), (other, "b", 4, 9), (one, "c", 27, 6), (other, "d", 33, 3)):
            topic.pipe_input("ann", Click(page, ms), timestamp_ms=at)
        assert driver.get_key_value_store("s").get("ann") == dict(
            n=2, slowest="a", pages=["a", "c"], seen="b", first="d", top=["d", "b"], took=37
        )


@pytest.mark.parametrize(
    ("make", "argument"), [(TopK, "k"), (BottomK, "k"), (MinBy, "by"), (MaxBy, "by"), (ValueCounts, "limit")]
)
def test_an_argument_that_is_missing_is_said_with_the_name_of_the_aggregate(make, argument):
    with pytest.raises(TypeError, match=f"^{make.__name__}.*missing 1 required positional argument: '{argument}'"):
        make("amount")
