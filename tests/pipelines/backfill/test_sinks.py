"""What a backfill publishes: nothing, or with ``publish`` its days' rows once, against a loop over the records."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from polars import col

from tests.pipelines.backfill.inline import Cluster, begun, begun_whole, made, run_on, run_shadow
from tests.pipelines.spark.inline import Place, Topics
from weir import Application, Int64, StreamsBuilder, String, TimeWindowed, TimeWindows
from weir.pipelines.backfill.begin import begin_from_kafka
from weir.pipelines.backfill.everything import swap_everything
from weir.pipelines.backfill.outputs import day_outputs
from weir.pipelines.backfill.shadow import Days, Shadow
from weir.pipelines.backfill.swap import prepare, swap_at_rest
from weir.state.commit.audit import newest_commits, offset_breaks
from weir.state.commit.outbox import Mark, Outbox
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_table
from weir.state.errors import SwapRefusedError

FIRST_MS = 1_700_006_400_000
"""A midnight."""
DAY_MS = 86_400_000
SINKS = ("copies", "hours", "rows")


class Killed(BaseException):
    """Stands for kill -9."""


def killed_at(step: str) -> Callable[[str], None]:
    def die(name: str) -> None:
        if name == step:
            raise Killed

    return die


def program(factor: int = 1, *, table: bool = True) -> Application:
    """Copies orders to a topic and a database, and counts them by hour to another topic."""
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=String("user"), value=Int64("cents")).map_values(cents=col("cents") * factor)
    if table:
        orders.to_delta("all_orders")
    orders.to("copies", value=Int64("cents"))
    orders.to_sql("rows")
    hours = orders.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(timedelta(hours=1)))
    hours.count("by_hour").to_stream().to(
        "hours", key=TimeWindowed(String(), size=timedelta(hours=1)), value=Int64("count")
    )
    orders.group_by_key().count("ever").to_stream().to("totals", value=Int64("count"))
    return Application("shop", builder, commit_interval=timedelta(milliseconds=1))


def orders(first_day: int, days: int) -> list:
    """Ten orders a day, an hour apart, by two users."""
    return [
        (b"user-%d" % (number % 2), number.to_bytes(8, "big"), FIRST_MS + day * DAY_MS + number * 3_600_000)
        for day in range(first_day, first_day + days)
        for number in range(10)
    ]


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A folder with the live application, which has read three days."""
    rows = {("orders", 0): orders(0, 3)}
    place = Place(program(), Topics(rows), tmp_path_factory.mktemp("template"), max_records=7)
    place.run()
    return place


def days(first: int, end: int) -> Days:
    return Days.of_ms(FIRST_MS + first * DAY_MS, FIRST_MS + end * DAY_MS)


def waiting(place: Place, sink: str) -> list:
    """What a publisher would send, in order: of the topics the values, of the database the rows."""
    outbox = Outbox(place.warehouse / "shop", sink, "shop")
    rows = [row for piece, _ in outbox.rows(Mark(), at_most=7, size_bytes=999) for row in piece.to_dicts()]
    if sink == "rows":
        return [(row["user"], row["cents"]) for row in rows]
    return [(row["key"], int.from_bytes(row["value"], "big")) for row in rows]


def published(rows: list, sink: str, factor: int = 1) -> list:
    """The same of a program that reads ``rows``, each alone."""
    if sink == "hours":
        return [1] * len(rows)  # no user has two orders in an hour
    return [(key.decode() if sink == "rows" else key, int.from_bytes(value, "big") * factor) for key, value, _ in rows]


def assert_waiting(place: Place, *batches: tuple[list, int]) -> None:
    """Each sink has these rows, multiplied, in this order."""
    for sink in SINKS:
        found = waiting(place, sink)
        expected = [row for rows, factor in batches for row in published(rows, sink, factor)]
        assert [count for _, count in found] == expected if sink == "hours" else found == expected, sink


def swapped(place: Place, shadow: Shadow, application: Application, **options) -> None:
    prepare(shadow, **options)
    swap_at_rest(place.warehouse, application, shadow.id)


def test_days_are_swapped_in_without_the_sinks(place):
    left_out = day_outputs(place.application.topology).left_out
    assert set(left_out) == {"copies", "hours", "rows", "totals"}
    assert left_out["copies"] == "its rows have left the warehouse; a swap with --publish publishes them again"
    assert "computed from 'ever'" in left_out["totals"]
    swapped(place, made(place, days(0, 1), program(2)), program(2), review=lambda found: None)
    assert read_table(place.warehouse / "shop" / "all_orders").height == 30
    assert_waiting(place, (orders(0, 3), 1))


def test_everything_is_swapped_in_without_the_sinks(place):
    shadow = run_on(place, run_shadow(place, begun_whole(place)))
    swap_everything(place.warehouse, place.application, shadow)
    assert read_table(place.warehouse / "shop" / "all_orders").height == 30
    assert_waiting(place, (orders(0, 3), 1))
    place.topics.rows["orders", 0] += orders(3, 1)
    place.run()
    assert_waiting(place, (orders(0, 4), 1))


def test_days_are_published_after_all_that_was(place):
    shadow = made(place, days(0, 2), program(2))
    place.topics.rows["orders", 0] += orders(3, 1)
    place.run()
    swapped(place, shadow, program(2), publish=True)
    assert_waiting(place, (orders(0, 4), 1), (orders(0, 2), 2))
    assert len(waiting(place, "totals")) == 40, "a running table is not published"
    place.topics.rows["orders", 0] += orders(4, 1)
    place.run()
    assert_waiting(place, (orders(0, 4), 1), (orders(0, 2), 2), (orders(4, 1), 1))
    assert not list(offset_breaks(newest_commits(place.warehouse, "shop", 99)))


def test_a_running_driver_publishes_once_however_often_it_is_asked(place):
    shadow = made(place, days(1, 2), program(3))
    prepare(shadow, publish=True)
    place.topics.rows["orders", 0] += orders(3, 1)
    for _ in range(2):
        place.desk.ask("swap", backfill=shadow.id)
    place.run()
    answers = [answer for answer, failed in place.desk.answers.values() if not failed]
    assert "swapped in by the commit" in answers[0]
    assert "swapped in already" in answers[1]
    found = Counter(waiting(place, "copies"))
    assert found == Counter(published(orders(0, 4), "copies")) + Counter(published(orders(1, 1), "copies", 3))


def test_everything_is_published_with_its_totals(place):
    shadow = run_on(place, run_shadow(place, begun_whole(place, program(2)), program(2)), program(2))
    swap_everything(place.warehouse, program(2), shadow, publish=True)
    assert_waiting(place, (orders(0, 3), 1), (orders(0, 3), 2))
    place.application = program(2)
    place.topics.rows["orders", 0] += orders(3, 1)
    place.run()
    assert_waiting(place, (orders(0, 3), 1), (orders(0, 4), 2))
    totals = waiting(place, "totals")
    assert totals[-1][1] == 20, "the totals go on from the backfill's"


@pytest.mark.parametrize("step", ["outboxes written", "pivot appended", "table appended", "settled"])
@pytest.mark.parametrize("is_whole", [False, True])
def test_killed_at_each_step_it_is_published_once(place, step, is_whole):
    def swap(on_step=lambda step: None) -> None:
        if is_whole:
            swap_everything(place.warehouse, program(2), shadow, on_step, publish=True)
        else:
            swap_at_rest(place.warehouse, program(2), shadow.id, on_step)

    die = killed_at(step)
    if is_whole:
        shadow = run_on(place, run_shadow(place, begun_whole(place, program(2)), program(2)), program(2))
    else:
        shadow = made(place, days(0, 2), program(2))
        prepare(shadow, publish=True)
    with pytest.raises(Killed):
        swap(die)
    if step == "outboxes written":
        assert_waiting(place, (orders(0, 3), 1))
    swap()
    place.application = program(2)
    place.run()  # its claim redoes what was promised
    assert_waiting(place, (orders(0, 3), 1), (orders(0, 3 if is_whole else 2), 2))


def test_a_program_with_sinks_alone_is_published_or_refused(tmp_path):
    place = Place(program(table=False), Topics({("orders", 0): orders(0, 3)}), tmp_path)
    place.run()
    shadow = made(place, days(1, 2), program(5, table=False))
    with pytest.raises(SwapRefusedError, match=r"nothing to swap, only rows .*`weir backfill swap .* --publish`"):
        prepare(shadow)
    swapped(place, shadow, program(5, table=False), publish=True)
    assert_waiting(place, (orders(0, 3), 1), (orders(1, 1), 5))
    (note,) = newest_commit(place.warehouse, "shop").swapped
    assert (note.backfill, note.is_whole) == (shadow.id, False)
    swap_at_rest(place.warehouse, program(5, table=False), shadow.id)
    assert_waiting(place, (orders(0, 3), 1), (orders(1, 1), 5))


def with_sinks_alone(tmp_path) -> Place:
    place = Place(program(table=False), Topics({("orders", 0): orders(0, 3)}), tmp_path)
    place.run()
    return place


@pytest.mark.parametrize("step", ["outboxes written", "pivot appended", "table appended", "settled"])
def test_killed_with_sinks_alone_it_is_published_once_and_leaves_no_folder(tmp_path, step):
    die = killed_at(step)
    place, changed = with_sinks_alone(tmp_path), program(5, table=False)
    shadow = made(place, days(1, 2), changed)
    prepare(shadow, publish=True)
    with pytest.raises(Killed):
        swap_at_rest(place.warehouse, changed, shadow.id, die)
    swap_at_rest(place.warehouse, changed, shadow.id)
    assert not shadow.folder.path.exists()
    assert_waiting(place, (orders(0, 3), 1), (orders(1, 1), 5))


def test_the_next_run_removes_a_backfill_that_was_only_published(tmp_path):
    die = killed_at("settled")
    place, changed = with_sinks_alone(tmp_path), program(5, table=False)
    shadow = made(place, days(1, 2), changed)
    prepare(shadow, publish=True)
    with pytest.raises(Killed):
        swap_at_rest(place.warehouse, changed, shadow.id, die)
    place.run()
    assert not shadow.folder.path.exists()
    assert_waiting(place, (orders(0, 3), 1), (orders(1, 1), 5))


def test_an_older_backfill_of_sinks_alone_is_not_published_after_a_newer_one(tmp_path):
    place, older, newer = with_sinks_alone(tmp_path), program(5, table=False), program(7, table=False)
    of_older, of_newer, apart = made(place, days(0, 2), older), made(place, days(1, 2), newer), days(0, 1)
    of_apart = made(place, apart, older)
    swapped(place, of_newer, newer, publish=True)
    with pytest.raises(SwapRefusedError, match="has replaced some of its days since it began"):
        swapped(place, of_older, older, publish=True)
    swapped(place, of_apart, older, publish=True)
    assert_waiting(place, (orders(0, 3), 1), (orders(1, 1), 7), (orders(0, 1), 5))


@pytest.mark.parametrize("is_newer_with_table", [True, False])
@pytest.mark.parametrize("runs", [True, False])
def test_backfills_with_and_without_tables_overtake_each_other_where_they_publish_to_one_sink(
    place, is_newer_with_table, runs
):
    """What a sink has got last is of the program that began last."""
    older, newer = program(5, table=not is_newer_with_table), program(7, table=is_newer_with_table)
    of_older, of_newer, apart = made(place, days(0, 2), older), made(place, days(1, 2), newer), made(place, days(0, 1))
    swap_in(place, of_newer, newer, runs)
    for _ in range(2):
        assert "has replaced some of its days since it began" in swap_in(place, of_older, older, runs)
    swap_in(place, apart, program(1), runs)
    assert_waiting(place, (orders(0, 3), 1), (orders(1, 1), 7), (orders(0, 1), 1))


def test_a_backfill_that_publishes_nothing_overtakes_none_that_has_no_tables(place):
    older, newer = program(5, table=False), program(7)
    of_older, of_newer = made(place, days(0, 2), older), made(place, days(1, 2), newer)
    swapped(place, of_newer, newer, review=lambda found: None)
    swapped(place, of_older, older, publish=True)
    assert_waiting(place, (orders(0, 3), 1), (orders(0, 2), 5))


def swap_in(place: Place, shadow: Shadow, application: Application, runs: bool) -> str:
    """Swap in and publish, by the driver that ``runs`` or at rest; returns why not, or an empty text."""
    prepare(shadow, publish=True)
    if not runs:
        try:
            swap_at_rest(place.warehouse, application, shadow.id)
        except SwapRefusedError as error:
            return str(error)
        return ""
    place.desk.ask("swap", backfill=shadow.id)
    place.run()
    answer, failed = list(place.desk.answers.values())[-1]
    return answer if failed else ""


def test_a_backfill_of_sinks_alone_is_not_published_after_one_of_everything(tmp_path):
    place, older = with_sinks_alone(tmp_path), program(5, table=False)
    shadow = made(place, days(1, 2), older)
    whole = run_on(place, run_shadow(place, begun_whole(place)))
    swap_everything(place.warehouse, place.application, whole)
    with pytest.raises(SwapRefusedError, match="has replaced some of its days since it began"):
        swapped(place, shadow, older, publish=True)
    assert_waiting(place, (orders(0, 3), 1))


def copies(at_least: int | None) -> Application:
    """A table, and a topic with the orders of so many cents; None for no topic."""
    builder = StreamsBuilder()
    read = builder.stream("orders", key=String("user"), value=Int64("cents"))
    read.to_delta("all_orders")
    if at_least is not None:
        read.filter(col("cents") >= at_least).to("copies", value=Int64("cents"))
    return Application("shop", builder, commit_interval=timedelta(milliseconds=1))


def test_a_program_without_the_sink_refuses_to_publish_and_goes_on(tmp_path):
    place = Place(copies(1_000), Topics({("orders", 0): orders(0, 3)}), tmp_path)
    place.run()  # an outbox without rows
    shadow = made(place, days(1, 2), copies(0))
    place.application = copies(None)
    place.topics.rows["orders", 0] += orders(3, 1)
    place.run()
    prepare(shadow, publish=True)
    reason = "the running program has no sink 'copies'; run the backfill's program first"
    with pytest.raises(SwapRefusedError, match=reason):
        swap_at_rest(place.warehouse, copies(None), shadow.id)
    place.desk.ask("swap", backfill=shadow.id)
    place.topics.rows["orders", 0] += orders(4, 1)
    place.run()
    ((answer, failed),) = place.desk.answers.values()
    assert failed
    assert reason in answer
    assert read_table(place.warehouse / "shop" / "all_orders").height == 50
    place.application = copies(0)
    place.run()
    swap_at_rest(place.warehouse, copies(0), shadow.id)
    assert waiting(place, "copies") == published(orders(1, 1), "copies")


@pytest.mark.parametrize("step", ["outboxes written", "pivot appended", "table appended", "settled"])
def test_everything_fills_a_sink_that_only_the_new_program_has(tmp_path, step):
    die = killed_at(step)
    place = Place(copies(None), Topics({("orders", 0): orders(0, 3)}), tmp_path)
    place.run()
    shadow = run_on(place, run_shadow(place, begun_whole(place, copies(0)), copies(0)), copies(0))
    with pytest.raises(Killed):
        swap_everything(place.warehouse, copies(0), shadow, die, publish=True)
    swap_everything(place.warehouse, copies(0), shadow, publish=True)
    place.application = copies(0)
    place.topics.rows["orders", 0] += orders(3, 1)
    place.run()
    assert waiting(place, "copies") == published(orders(0, 4), "copies")


def test_a_swap_says_where_its_rows_go(place):
    assert str(prepare(made(place, days(0, 1)), publish=True)).endswith("; its rows go to copies, rows, hours")


def test_windows_that_the_live_run_may_still_publish_are_left_out(place):
    shadow = begin_from_kafka(
        place.application, place.warehouse, place.folder / "shadows", Cluster(place.topics), days(1, 3)
    )
    assert set(shadow.backfill.published) == {"copies", "rows"}
    assert "may publish newer rows" in shadow.backfill.left_out["hours"]
    assert set(begun(place, days(0, 1)).backfill.published) == set(SINKS)


def test_upserts_of_records_are_not_published_by_days(tmp_path):
    builder = StreamsBuilder()
    orders_read = builder.stream("orders", key=String("user"), value=Int64("cents"))
    orders_read.to_delta("all_orders")
    orders_read.to_sql("newest", mode="upsert", key=["user"])
    application = Application("shop", builder)
    assert "would be replaced by an earlier one" in day_outputs(application.topology).left_out["newest"]
    place = Place(application, Topics({("orders", 0): orders(0, 2)}), tmp_path)
    place.run()
    with pytest.raises(SwapRefusedError, match=r"none of the program's sinks .*newest.*; leave --publish out"):
        prepare(made(place, days(0, 1)), publish=True)


def test_a_sink_that_the_live_application_lacks_is_refused(place):
    builder = StreamsBuilder()
    orders_read = builder.stream("orders", key=String("user"), value=Int64("cents"))
    orders_read.to_delta("all_orders")
    orders_read.to("others")
    shadow = made(place, days(0, 1), Application("shop", builder))
    with pytest.raises(SwapRefusedError, match="has no sink 'others'; run this program first"):
        prepare(shadow, publish=True)
    assert json.loads(shadow.folder.get("backfill.json"))["published"] == ["others"]


def test_midnights():
    assert datetime.fromtimestamp(FIRST_MS / 1000, UTC).hour == 0
