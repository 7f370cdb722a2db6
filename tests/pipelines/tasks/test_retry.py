"""``Retry``: a record that fails is tried again after a wait; the outcome is that of a plain loop over the records."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from threading import Event

import msgspec
import pytest

from tests.examples import combined
from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.tasks.letters import read_dead_letters
from weir import (
    Application,
    BadRecord,
    FixedKeyProcessor,
    Json,
    KeyValueStore,
    Punctuation,
    Retry,
    StreamsBuilder,
    String,
    Sum,
    TopologyError,
)
from weir.pipelines.spark.errors import TaskFailedError
from weir.pipelines.spark.task import Task
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_table
from weir.testing import TopologyTestDriver

RECORDS, USERS, ATTEMPTS = 200, 5, 4
SOON = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Order:
    number: int


@dataclass(frozen=True)
class Total:
    total: int


class Service:
    """Fails a given number of times for some orders, and for ever for others."""

    def __init__(self, fails: dict[int, float]) -> None:
        self.fails = dict(fails)
        self.calls = Counter[int]()

    def deliver(self, order: Order) -> Order:
        self.calls[order.number] += 1
        if self.fails.get(order.number, 0) > 0:
            self.fails[order.number] -= 1
            raise ConnectionError("no answer")
        return order


def mapped(orders, service):
    orders.map_values(service.deliver).group_by_key().agg("sums", total=Sum("number")).to_delta("out")


def behind_a_repartition(orders, service):
    again = orders.repartition("again").map_values(service.deliver)
    again.group_by_key().agg("sums", total=Sum("number")).to_delta("out")


def behind_a_store(orders, service):
    """The sums are kept before the operator that fails."""

    class Sums(FixedKeyProcessor[str, Order, Total]):
        def init(self, context):
            self.context, self.sums = context, context.state_store("sums")

        def process(self, record):
            total = (self.sums.get(record.key) or 0) + record.value.number
            self.sums.put(record.key, total)
            service.deliver(record.value)
            self.context.forward(record.with_value(Total(total)))

    store = KeyValueStore("sums", str, int)
    orders.process_values(Sums, stores=[store], name="sums-of").to_delta("out")


PROGRAMS = {"mapper": mapped, "repartition": behind_a_repartition, "store": behind_a_store}


def application(program, service, retry, **settings) -> Application:
    builder = StreamsBuilder()
    program(builder.stream("orders", key=String("user"), value=Json(Order)), service)
    return Application("shop", builder, on_processing_error=retry, **settings)


def orders(partition: int = 0, records: int = RECORDS) -> list[tuple[bytes, bytes, int]]:
    return [
        (b"user-%d-%d" % (partition, number % USERS), msgspec.json.encode(Order(number)), 1_000 + number)
        for number in range(records)
    ]


def sums(partitions: int, without: set[int]) -> dict[str, int]:
    """By a plain loop, the sum of each user."""
    found = Counter[str]()
    for partition in range(partitions):
        for number in set(range(RECORDS)) - without:
            found[f"user-{partition}-{number % USERS}"] += number
    return dict(found)


def results(place: Place) -> dict[str, int]:
    rows = read_table(place.warehouse / "shop" / "out").sort("_epoch", "_seq").unique("user", keep="last")
    return dict(rows.select("user", "total").iter_rows())


class Killed(BaseException):
    """The process ends here."""


@combined("program,max_records,fails", PROGRAMS, [7, RECORDS], [{50: 1}, {0: 2, 199: 1}, {20: 9e9, 21: 1, 150: 9e9}])
@pytest.mark.parametrize("seed", range(2))
def test_the_outcome_is_that_of_a_loop_however_often_the_driver_dies(tmp_path, seed, program, max_records, fails):
    choose, service = random.Random(seed), Service(fails)
    retry = Retry(attempts=ATTEMPTS, wait=SOON, then="dead_letter")
    topics = Topics({("orders", partition): orders(partition) for partition in range(2)})
    place = Place(application(PROGRAMS[program], service, retry), topics, tmp_path, max_records=max_records)
    for_ever = {number for number, times in fails.items() if times > RECORDS}
    kills = 8 * (seed > 0)
    while True:
        left = choose.randrange(30) if kills else None

        def on_step(name: str) -> None:
            nonlocal left
            if left is not None:
                left -= 1
                if left < 0:
                    raise Killed

        try:
            place.run(on_step)
            break
        except Killed:
            kills -= 1
    assert results(place) == sums(2, without=for_ever)
    letters = read_dead_letters(place.warehouse / "shop")
    assert letters.height == 2 * len(for_ever)
    assert all(reason.endswith("ConnectionError: no answer") for reason in letters["reason"])
    for number in for_ever if seed == 0 else ():
        assert 2 * ATTEMPTS <= service.calls[number] <= 4 * ATTEMPTS, "of each partition, two calls an attempt at most"


def test_the_last_attempt_decides():
    for then, calls in (("continue", 3), ("dead_letter", 3)):
        service = Service({1: 9e9})
        retry = Retry(attempts=3, wait=timedelta(hours=1), max_wait=timedelta(hours=2), then=then)
        with TopologyTestDriver(application(mapped, service, retry)) as driver:
            topic = driver.create_input_topic("orders")
            topic.pipe_key_value_list([("ann", Order(number)) for number in range(3)])
            assert service.calls[1] == calls, "the test driver does not wait"
            assert [row["total"] for _, row in driver.create_output_table("out").read_key_values_to_list()] == [0, 2]
            assert (driver.counts["dead_letters"], driver.counts["failed_records"]) == (
                (1, 0) if then == "dead_letter" else (0, 1)
            )


def test_then_fail_stops_the_run_with_everything_before_committed(tmp_path):
    service = Service({120: 9e9})
    place = Place(
        application(mapped, service, Retry(attempts=2, wait=SOON)), Topics({("orders", 0): orders()}), tmp_path
    )
    with pytest.raises(TaskFailedError, match="no answer"):
        place.run()
    service.fails.clear()
    place.run()
    assert results(place) == sums(1, without=set())


def test_meanwhile_other_tasks_go_on_and_what_the_wall_clock_makes_due_happens(tmp_path):
    ticks = []

    class Ticks(FixedKeyProcessor[str, Order, Order]):
        def init(self, context):
            self.context = context
            context.schedule(timedelta(milliseconds=20), Punctuation.WALL_CLOCK_TIME, ticks.append)

        def process(self, record):
            self.context.forward(record.with_value(service.deliver(record.value)))

    def program(orders, service):
        orders.process_values(Ticks, name="ticks").group_by_key().agg("sums", total=Sum("number")).to_delta("out")

    first = {("orders", 0): orders(0), ("orders", 1): orders(1)}
    service = Service({150: 1})  # of the partition that comes to it first
    retry = Retry(attempts=2, wait=timedelta(hours=1), max_wait=timedelta(hours=1))
    place = Place(application(program, service, retry, commit_interval=SOON), Topics(first), tmp_path)
    stop, tasks, began_s = Event(), [], time.monotonic()

    def report(progress, current, ends):
        tasks[:] = current
        waiting = [task for task in current if task.retrying]
        if waiting and len(ticks) > 9 and all(task.positions["orders"][task.id.partition] >= 150 for task in current):
            stop.set()
        assert time.monotonic() - began_s < 60, "it neither goes on nor waits"

    place.desk.report = report
    place.driver().run(stop)
    (waiting,) = (task for task in tasks if task.retrying)
    commit = newest_commit(place.warehouse, "shop")
    offsets = {
        partition: offset
        for task in commit.tasks.values()
        for partition, offset in task.positions.get("orders", {}).items()
    }
    assert sorted(offsets.values()) == [150, RECORDS]
    assert waiting.retrying.startswith(
        f"tries orders-{waiting.id.partition} offset 150 again, which has failed in ticks 1 of 2 times: "
    )
    assert waiting.retrying.endswith("ConnectionError: no answer")
    assert waiting.totals["retries"] == 1
    place.run()
    assert results(place) == sums(2, without=set()), "a driver that is started anew does not wait"


def test_a_driver_that_has_nothing_else_to_do_says_that_it_waits(tmp_path):
    """Nobody takes it for one that has stalled, and a stop does not wait for the record."""
    service = Service({150: 1})
    retry = Retry(attempts=2, wait=timedelta(hours=1), max_wait=timedelta(hours=1))
    place = Place(
        application(mapped, service, retry, commit_interval=SOON), Topics({("orders", 0): orders()}), tmp_path
    )
    stop, began_s = Event(), time.monotonic()

    def report(progress, current, ends):
        if progress.state == "waiting":
            stop.set()
        assert time.monotonic() - began_s < 30

    place.desk.report = report
    place.driver().run(stop)
    assert stop.is_set()


def test_waits_double_up_to_the_longest():
    retry = Retry(attempts=99, wait=timedelta(seconds=1), max_wait=timedelta(seconds=5))
    assert [retry.wait_ms(tried) for tried in (1, 2, 3, 4, 98)] == [1_000, 2_000, 4_000, 5_000, 5_000]


def test_a_function_may_answer_with_a_retry_but_not_for_what_cannot_be_read():
    def decide(record: BadRecord):
        return Retry(attempts=2, wait=SOON, then="dead_letter")

    service = Service({1: 9e9})
    with TopologyTestDriver(application(mapped, service, decide)) as driver:
        topic = driver.create_input_topic("orders")
        topic.pipe_input("ann", Order(1))
        assert (service.calls[1], driver.counts["dead_letters"]) == (2, 1)
    with TopologyTestDriver(application(mapped, service, "fail", on_error=decide)) as driver:
        topic = driver.create_input_topic("orders")
        with pytest.raises(TopologyError, match='or "dead_letter" where record'):
            topic.pipe_input("ann", b"{")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Retry(attempts=1), r"Retry\(attempts=1\) tries nothing again; write a whole number, 2 or more"),
        (lambda: Retry(attempts="3"), r"Retry\(attempts='3'\) tries nothing again; write a whole number"),
        (lambda: Retry(wait=2), "wait of Retry is 2; pass a datetime.timedelta"),
        (lambda: Retry(wait=timedelta(0)), "wait of Retry is .*; it must be at least one millisecond"),
        (lambda: Retry(wait=timedelta(hours=1)), "max_wait is shorter than wait"),
        (lambda: Retry(then="again"), r"Retry\(then='again'\): write \"fail\", \"continue\" or \"dead_letter\""),
        (
            lambda: application(mapped, Service({}), "fail", on_error=Retry()),
            "give the Retry to on_processing_error",
        ),
    ],
)
def test_a_retry_that_makes_no_sense_is_refused(make, words):
    with pytest.raises(TopologyError, match=words):
        make()


def test_a_task_that_lost_its_store_begins_to_count_anew(tmp_path):
    task = Task(id=None, instance="first", topics=())
    task.waits_until_ms = 5
    task.lost("a test")
    assert (task.retrying, task.waits_until_ms < 0) == ("", True)
