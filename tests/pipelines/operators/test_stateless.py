"""The stateless operators, record by record (Kafka Streams features, section 2)."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from polars import col

from tests.pipelines.operators.programs import Click, driven
from weir import Application, Int64, Json, StreamsBuilder, String, TopologyError, UserFunctionError
from weir.testing import TopologyTestDriver


@dataclass(frozen=True)
class Word:
    word: str
    size: int


def by_page(user: str | None, click: Click | None) -> tuple[str | None, int | None]:
    return (click.page, click.ms) if click else (user, None)


def words(user: str | None, click: Click | None) -> Iterator[tuple[str, Word]]:
    for word in click.page.split() if click else ():
        yield word, Word(word.upper(), len(word))


def letters(click: Click | None) -> list[str | None]:
    return list(click.page) if click else [None]


def starts_with_x(user: str | None, click: Click | None) -> bool:
    return click is not None and click.page.startswith("x")


def pipe(topic, *records):
    topic.pipe_records(
        [(key, Click(*value) if isinstance(value, tuple) else value, time) for time, (key, value) in enumerate(records)]
    )


def values(out, *names):
    return [tuple(record.row[name] for name in names) for record in out.read_records()]


@pytest.mark.parametrize("predicate", [col("ms") > 3, lambda user, click: click is not None and (click.ms or 0) > 3])
def test_filter_not_keeps_what_filter_drops_nulls_included(predicate):
    def program(clicks):
        clicks.filter(predicate).to_delta("out")
        clicks.filter_not(predicate).to_delta("rest")

    with driven(program) as (topic, out, driver):
        pipe(topic, ("a", ("x", 5)), ("b", ("x", 3)), ("c", ("x", None)), ("d", None), (None, ("x", 9)))
        assert values(out, "user") == [("a",), (None,)]
        assert values(driver.create_output_table("rest"), "user") == [("b",), ("c",), ("d",)]


def test_filter_not_of_a_table_makes_tombstones_of_rows_that_pass_its_predicate():
    with driven(lambda s: s.to_table("t").filter_not(col("ms") > 3).to_delta("out")) as (topic, out, _):
        pipe(topic, ("a", ("x", 1)), ("a", ("y", 5)), ("a", ("z", None)), ("a", None))
        assert [(r.row["page"], r.is_deleted) for r in out.read_records()] == [
            ("x", False),
            (None, True),
            ("z", False),
            (None, True),
        ]


def test_map_gives_a_new_key_and_value_and_null_keys_and_values_reach_the_function():
    with driven(lambda s: s.map(by_page).to_delta("out")) as (topic, out, _):
        pipe(topic, ("a", ("x", 5)), (None, ("y", 6)), ("b", None), (None, None))
        assert [(*record.row.values(), record.is_deleted) for record in out.read_records()] == [
            ("x", 5, False),
            ("y", 6, False),
            ("b", None, True),
            (None, None, True),
        ]


def test_map_by_columns_keeps_null_values_null():
    program = lambda s: s.map(key="page", value={"page": "page", "twice": col("ms") * 2}).to_delta("out")
    with driven(program) as (topic, out, _):
        pipe(topic, ("a", ("x", 5)), ("b", None))
        assert [(record.row, record.is_deleted) for record in out.read_records()] == [
            (dict(page="x", twice=10), False),
            (dict(page=None, twice=None), True),
        ]


def test_a_function_may_give_any_number_of_records_at_the_time_of_its_record():
    with driven(lambda s: s.flat_map(words).to_delta("out")) as (topic, out, _):
        pipe(topic, ("a", ("x yy",)), ("b", None), ("c", ("",)), ("d", ("zzz",)))
        assert [(*record.row.values(), record.timestamp.microsecond // 1000) for record in out.read_records()] == [
            ("x", "X", 1, 0),
            ("yy", "YY", 2, 0),
            ("zzz", "ZZZ", 3, 3),
        ]


def test_any_number_of_values_keep_their_key():
    with driven(lambda s: s.flat_map_values(letters).to_delta("out")) as (topic, out, _):
        pipe(topic, ("a", ("xy",)), ("b", ("",)), ("c", None))
        assert [(*record.row.values(), record.is_deleted) for record in out.read_records()] == [
            ("a", "x", False),
            ("a", "y", False),
            ("c", None, True),
        ]


def test_the_elements_of_a_list_column_become_records_beside_the_other_columns():
    program = lambda s: s.flat_map_values(word=col("page").str.split(" "), ms="ms").to_delta("out")
    with driven(program) as (topic, out, _):
        pipe(topic, ("a", ("x y", 5)), ("b", None), ("c", ("z",)))
        assert out.read_rows() == [
            dict(user="a", word="x", ms=5),
            dict(user="a", word="y", ms=5),
            dict(user="c", word="z", ms=None),
        ]
    empty = lambda s: s.flat_map_values(word=col("page").str.split(" ").list.head("ms")).to_delta("out")
    with driven(empty) as (topic, out, _):
        pipe(topic, ("a", ("x y", 0)), ("b", ("x y", 1)))
        assert out.read_rows() == [dict(user="b", word="x")], "an empty list gives no record"


@pytest.mark.parametrize(
    ("program", "moves"),
    [
        (lambda s: s.filter(col("ms") > 0).map_values(ms="ms").flat_map_values(letters).peek(print), False),
        (lambda s: s.split().branch(col("ms") > 0, "x").no_default_branch().popitem()[1], False),
        (lambda s: s.map(by_page), True),
        (lambda s: s.flat_map(words), True),
        (lambda s: s.select_key("user"), True),
    ],
)
def test_a_key_counts_as_changed_after_an_operator_that_could_have_changed_it(program, moves):
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=Json(Click))
    program(clicks.filter(col("ms") > 1).map_values(page="page", ms="ms")).group_by_key().count("s")
    assert len(builder.build().sub_topologies) == 1 + moves


def test_peek_sees_every_record_in_order_and_forwards_it():
    seen = []
    look = lambda name: lambda key, value: seen.append((name, key, value))

    def program(clicks):
        clicks.peek(look("before")).filter(col("ms") > 3).peek(look("after")).to_delta("out")
        clicks.for_each(look("each"))

    with driven(program) as (topic, out, _):
        pipe(topic, ("a", ("x", 5)), (None, None))
        assert values(out, "user", "page") == [("a", "x")]
    click = Click("x", 5)
    assert seen == [
        ("before", "a", click),
        ("after", "a", click),
        ("each", "a", click),
        ("before", None, None),
        ("each", None, None),
    ]


def test_a_record_goes_into_the_first_branch_that_it_meets():
    asked = []

    def long(user, click):
        asked.append(user)
        return click is not None and len(click.page) > 2

    def program(clicks):
        branches = clicks.split("by-").branch(starts_with_x, "x").branch(long).branch(col("ms") > 3).default_branch()
        assert list(branches) == ["by-x", "by-2", "by-3", "by-0"]
        for name, stream in branches.items():
            stream.to_delta(name)

    with driven(lambda s: program(s) or s.to_delta("out")) as (topic, _, driver):
        pipe(topic, ("a", ("xxx", 9)), ("b", ("yyy", 9)), ("c", ("y", 9)), ("d", ("y", 1)), ("e", None))
        expected = {"by-x": [("a",)], "by-2": [("b",)], "by-3": [("c",)], "by-0": [("d",), ("e",)]}
        assert {name: values(driver.create_output_table(name), "user") for name in expected} == expected
        assert asked == ["b", "c", "d", "e"], "a function is called only for what is left"


def test_without_a_default_branch_the_rest_is_dropped_and_not_counted():
    def program(clicks):
        (branch,) = clicks.split().branch(col("ms") > 3).no_default_branch().values()
        branch.to_delta("out")

    with driven(program) as (topic, out, driver):
        pipe(topic, ("a", ("x", 9)), ("b", ("x", 1)))
        assert values(out, "user") == [("a",)]
        assert {name: count for name, count in driver.counts.items() if count} == {"records_in": 2, "rows_out": 1}


def test_a_branch_may_be_continued_where_it_is_made():
    def program(clicks):
        branches = (
            clicks.split("s-")
            .branch(col("ms") > 3, "big", then=lambda s: s.to_delta("out"))
            .default_branch("rest", then=lambda s: s.map_values(page="page"))
        )
        assert list(branches) == ["s-rest"], "a branch whose function returns nothing is left out"
        branches["s-rest"].to_delta("rest")

    with driven(program) as (topic, out, driver):
        pipe(topic, ("a", ("x", 9)), ("b", ("y", 1)))
        assert values(out, "user") == [("a",)]
        assert driver.create_output_table("rest").read_rows() == [dict(user="b", page="y")]


def test_an_explicit_repartition_moves_every_record_and_keeps_null_keys():
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=Json(Click))
    clicks.repartition("spread", partitions=7).to_delta("out")
    clicks.map(by_page).repartition("pages").group_by_key().count("n").to_delta("counts")
    topology = builder.build()
    assert topology.partition_counts({"clicks": 2}) == {0: 2, 1: 7, 2: 2}
    with TopologyTestDriver(Application("test", builder)) as driver:
        topic, out = driver.create_input_topic("clicks"), driver.create_output_table("out")
        pipe(topic, ("a", ("x", 1)), (None, ("x", 2)))
        assert values(out, "user", "ms") == [("a", 1), (None, 2)]
        assert values(driver.create_output_table("counts"), "key", "count") == [("x", 1), ("x", 2)]
        assert driver.counts["null_keys"] == 0


def returns_a_number(user: str, click: Click) -> tuple[str, int]:
    return 3


def returns_one(user: str, click: Click) -> list[tuple[str, int]]:
    return 3


def test_a_mapper_that_breaks_its_promise_is_named():
    for program, reason in (
        (lambda s: s.map(returns_a_number), "an int, which is not a pair"),
        (lambda s: s.flat_map(returns_one), "'int' object is not iterable"),
    ):
        with (
            driven(lambda s, p=program: p(s).to_delta("out")) as (topic, _, _),
            pytest.raises(UserFunctionError, match=f"returns_.*{reason}"),
        ):
            topic.pipe_input("a", Click("x"), timestamp_ms=1)


def one_value(user: str, click: Click) -> int:
    return 1


def letters_of_both(user: str, click: Click) -> list[str]:
    return [user, click.page]


def untyped(*arguments):
    return arguments


@pytest.mark.parametrize(
    ("describe", "message"),
    [
        (lambda s: s.map(), "pass one of the two"),
        (lambda s: s.map(by_page, key="page", value="ms"), "pass one of the two"),
        (lambda s: s.map(key="page"), "pass one of the two"),
        (lambda s: s.map(key=3, value="ms"), "key is 3; pass a column's name or a dictionary"),
        (lambda s: s.map(key="page", value={"page": col("ms")}), "'page' is both"),
        (lambda s: s.map(one_value), r"gives <class 'int'>; it must be a pair"),
        (lambda s: s.map(untyped), r"write def f\(...\) -> tuple\[YourKey, YourValue\]"),
        (lambda s: s.flat_map(by_page), "it must return any number of results"),
        (lambda s: s.flat_map(letters_of_both), "it must be a pair"),
        (lambda s: s.flat_map_values(untyped), r"list\[YourDataclass\]"),
        (lambda s: s.flat_map_values(), "pass one of the two"),
        (lambda s: s.flat_map_values(page="page"), "0 of the columns are lists"),
        (lambda s: s.map_values(col("ms")), r"name its column, as in map_values\(n=col"),
        (lambda s: s.peek("page"), "pass a polars expression or a function"),
        (lambda s: s.split("a b"), "split name 'a b'.*use letters, digits"),
        (lambda s: s.split("s").branch(col("ms"), "x"), "needs true or false"),
        (lambda s: s.split("s").branch(col("ms") > 1, "x").branch(col("ms") > 2, "x"), "two branches 'sx'"),
        (lambda s: s.repartition(""), "the repartition has no name"),
        (lambda s: s.repartition("r", partitions=0), "partitions is 0; it must be a whole number from 1"),
    ],
)
def test_a_mistake_is_named(describe, message):
    with pytest.raises(TopologyError, match=message):
        describe(StreamsBuilder().stream("clicks", key=String("user"), value=Json(Click)))


class Scaled:
    """A function that is an object."""

    factor: int

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, order: int) -> float:
        if order < 0:
            raise ValueError("negative")
        return order * self.factor / 2


def _scaled(factor: int, order: int) -> float:
    return Scaled(factor)(order)


@pytest.mark.parametrize("function", [Scaled(3), functools.partial(_scaled, 3), Scaled(3).__call__])
def test_a_function_may_be_an_object_whose_call_has_the_annotations(function):
    builder = StreamsBuilder()
    builder.stream("orders", key=String("user"), value=Int64("order")).map_values(function).to_delta("out")
    with TopologyTestDriver(Application("app", builder)) as driver:
        topic, table = driver.create_input_topic("orders"), driver.create_output_table("out")
        topic.pipe_input("ann", 5)
        assert table.read_row()["value"] == 7.5
        with pytest.raises(UserFunctionError, match=r"function '(Scaled(\.__call__)?|partial)' failed .*negative"):
            topic.pipe_input("ann", -1)
