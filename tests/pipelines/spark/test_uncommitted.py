"""What is uncommitted has two limits, on bytes and on the time of a rollback, which follow slots."""

from __future__ import annotations

import json
import math
from datetime import timedelta
from fractions import Fraction
from threading import Event

import pytest
from msgspec import structs

from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.sales import Sale, application, expected, totals
from tests.state.engine.own_store import InMemory
from weir import Application, Count, Json, Materialized, StreamsBuilder, String, Sum
from weir.pipelines.application import NO_LIMIT
from weir.pipelines.spark.task import Task
from weir.pipelines.spark.uncommitted import UncommittedLimits
from weir.pipelines.tasks import batch_sizes
from weir.pipelines.tasks.plan import OffsetRange, TaskPlan
from weir.state.engine.rollback_cost import PAGE_US, ROW_US, RollbackCost
from weir.state.types import StateId, TaskId

SHOPS = 1_500
LONG = timedelta(hours=1)


def task(sub_topology: int, partition: int, slot: int, **gauges: int) -> Task:
    return Task(
        id=TaskId(sub_topology, partition),
        instance="first",
        topics=(),
        slot=slot,
        current=StateId(1, 2),
        committed=StateId(1, 1),
        gauges=gauges,
    )


def plan_of(task: Task, *, takes_rows: bool = True) -> TaskPlan:
    wanted = OffsetRange(topic="t", partition=task.id.partition, start=0, end=9)
    return TaskPlan(
        task=task.id,
        instance="first",
        state=StateId(1, 3),
        expected=task.current,
        committed=task.committed,
        now_ms=0,
        ranges=(wanted,) if takes_rows else (),
    )


def test_tasks_that_share_a_slot_share_its_part():
    """Slot 0 has three tasks, one without rows now, and one of a later stage; slot 1 has one; slot 2 idles."""
    tasks = [
        task(0, 0, 0, uncommitted_bytes=100, rollback_us=3_000),
        task(0, 1, 0, uncommitted_bytes=50, rollback_us=1_000),
        task(0, 2, 0),
        task(0, 3, 1, uncommitted_bytes=250, rollback_us=500),
        task(1, 0, 0),
        task(0, 4, 2, rollback_us=40_000),
    ]
    plans = [plan_of(each, takes_rows=each is not tasks[2]) for each in tasks[:4]]
    limits = UncommittedLimits(max_bytes=10_000, max_rollback_us=50_000)
    shared = limits.shared(plans, {each.id: each for each in tasks}, [tasks[4]])
    part = Fraction(10_000 - 400, 2)
    bytes_of, us_of = [part / 3, part / 3, None, part], [46_000 / 3, 46_000 / 3, None, 49_500]
    assert [plan.max_uncommitted_bytes for plan in shared] == [each and math.floor(each) for each in bytes_of]
    assert [plan.max_rollback_us for plan in shared] == [each and math.floor(each) for each in us_of]
    assert [structs.replace(plan, max_uncommitted_bytes=None, max_rollback_us=None) for plan in shared] == plans


def test_tasks_that_write_after_a_commit_share_the_whole_limit():
    tasks = [task(0, partition, partition, uncommitted_bytes=100, rollback_us=3_000) for partition in (0, 1)]
    limits, by_id = UncommittedLimits(max_bytes=1_000, max_rollback_us=5_000), {each.id: each for each in tasks}
    shared = limits.shared([plan_of(each) for each in tasks], by_id, [], is_before_commit=True)
    assert [(plan.max_uncommitted_bytes, plan.max_rollback_us) for plan in shared] == [(500, 5_000)] * 2


def test_a_limit_that_is_used_up_still_lets_each_task_take_a_batch():
    tasks = [task(0, 0, 0, uncommitted_bytes=900, rollback_us=900)]
    (plan,) = UncommittedLimits(max_bytes=9, max_rollback_us=9).shared([plan_of(tasks[0])], {tasks[0].id: tasks[0]}, [])
    assert (plan.max_uncommitted_bytes, plan.max_rollback_us) == (1, 1)


def test_without_limits_plans_have_none():
    made = application()
    made.uncommitted_max_bytes, made.uncommitted_max_rollback = NO_LIMIT, None
    only = task(0, 0, 0, uncommitted_bytes=1 << 40, rollback_us=1 << 40)
    limits = UncommittedLimits.of(made)
    assert limits.shared([plan_of(only)], {only.id: only}, []) == [plan_of(only)]
    assert limits.reached([only]) is None


@pytest.mark.parametrize(
    ("slots", "reached"), [((0, 1), None), ((0, 0), "rollback")], ids=["at the same time", "one after another"]
)
def test_the_rollbacks_of_a_slot_add_up_and_those_of_several_do_not(slots, reached):
    tasks = [task(0, partition, slot, rollback_us=30_000) for partition, slot in enumerate(slots)]
    assert UncommittedLimits(max_bytes=None, max_rollback_us=50_000).reached(tasks) == reached


def test_what_is_committed_counts_no_more():
    committed = task(0, 0, 0, uncommitted_bytes=90, rollback_us=90)
    committed.committed = committed.current
    assert UncommittedLimits(max_bytes=1, max_rollback_us=1).reached([committed]) is None


@pytest.fixture
def place(tmp_path):
    """1,500 shops in each of two partitions, two sales each: the second one after all first ones."""
    topics = Topics(
        {
            ("sales", partition): [
                (b"shop-%d-%d" % (partition, number % SHOPS), json.dumps({"amount": number}).encode(), 1_000 + number)
                for number in range(2 * SHOPS)
            ]
            for partition in (0, 1)
        }
    )
    place = Place(application(commit_interval=LONG), topics, tmp_path, max_records=10_000)
    place.application.uncommitted_max_bytes = NO_LIMIT
    return place


def watched(place: Place, look) -> list[str]:
    """Run until caught up, with ``look(coordinator)`` after each epoch; the reasons of the commits."""
    driver, reasons = place.driver(), []
    coordinator = driver._coordinator
    run_epoch, commit = coordinator.run_epoch, coordinator.commit

    def epoch(*args, **others):
        result = run_epoch(*args, **others)
        look(coordinator)
        return result

    def committed(reason, *args, **others):
        reasons.append(reason)
        commit(reason, *args, **others)

    coordinator.run_epoch, coordinator.commit = epoch, committed
    driver.run(Event(), until_caught_up=True)
    return reasons


@pytest.mark.slow
def test_a_commit_comes_when_a_rollback_would_take_too_long(place):
    """Counted plainly: the distinct shops that each task has read sales of since the last commit, and its two rows of
    positions and stream times; the stores have few pages."""
    limit_us, few_pages = 2_000, 40
    place.application.uncommitted_max_rollback = timedelta(microseconds=limit_us)
    seen = []

    def look(coordinator):
        for each in coordinator.tasks.values():
            if each.current == each.committed or each.current is None:
                continue
            partition = each.id.partition
            read = [
                offsets.get("sales", {}).get(partition, 0) for offsets in (each.committed_positions, each.positions)
            ]
            shops = {key for key, _, _ in place.topics.rows["sales", partition][slice(*read)]}
            rows = each.gauges["uncommitted_records"]
            assert len(shops) <= rows <= len(shops) + 2
            least_us = ROW_US * rows
            assert least_us <= each.gauges["rollback_us"] <= least_us + few_pages * PAGE_US
        seen.append(sum(each.gauges.get("rollback_us", 0) for each in coordinator.tasks.values()))

    reasons = watched(place, look)
    batch_us = batch_sizes.LEAST_ROWS * ROW_US + few_pages * PAGE_US
    assert 0.6 * limit_us < max(seen) < limit_us + 2 * batch_us
    assert len(reasons) >= 2 * 2 * SHOPS * ROW_US / (limit_us + 2 * batch_us)
    assert {*reasons[:-1]} <= {"rollback", "early"}
    assert totals(place) == expected(place)


def test_random_keys_over_a_large_store_cost_a_page_each():
    """The expected number of pages, by drawing rows one after another: each page is missed with 1 - 1/pages."""
    for rows, pages in ((1, 1), (100, 1), (25_000, 50_000), (100_000, 50_000), (500_000, 10_000)):
        missed = 1.0
        for _ in range(rows):
            missed *= 1 - 1 / pages
        wanted = rows * ROW_US + pages * (1 - missed) * PAGE_US
        assert RollbackCost(rows, pages).us() == pytest.approx(wanted, rel=0.4 if pages == 1 else 0.001)
    assert RollbackCost(10, 40).us(5) == RollbackCost(15, 40).us()
    assert RollbackCost(7, 0).us() == round(7 * ROW_US)


class Reluctant(InMemory):
    """Keeps what it is given in a transaction of its own, which it ends at every fourth commit."""

    def __init__(self, folder):
        super().__init__(folder)
        self.waiting = self.commits = 0

    def put(self, key, value):
        super().put(key, value)
        self.waiting += len(key) + len(value or b"")

    def commit(self, offsets):
        self.commits += 1
        if self.commits % 4 == 0:
            self.waiting = 0

    def approximate_num_uncommitted_bytes(self):
        return self.waiting


@pytest.mark.slow
def test_what_stores_of_the_users_hold_counts_too(place):
    """Counted plainly: what they have been given since their own last commits, on top of what waits for ours."""
    opened = []

    def supplier(folder):
        opened.append(Reluctant(folder))
        return opened[-1]

    builder = StreamsBuilder()
    sales = builder.stream("sales", key=String("shop"), value=Json(Sale))
    sales.group_by_key().agg(Materialized("sums", supplier), total=Sum("amount"), sales=Count()).to_delta("totals")
    place.application = Application(
        "sales", builder, commit_interval=LONG, uncommitted_max_bytes=20_000, uncommitted_max_rollback=None
    )
    held = []

    def look(coordinator):
        tasks = [each for each in coordinator.tasks.values() if each.current != each.committed]
        waiting = sum(store.waiting for store in opened)
        if len(tasks) == 2:
            held.append(waiting)
            assert coordinator.uncommitted_bytes >= waiting

    reasons = watched(place, look)
    assert max(held) > 20_000, "or nothing was counted"
    assert len(reasons) > 4
    assert totals(place) == expected(place)


@pytest.mark.slow
def test_the_bytes_of_a_store_of_the_users_are_those_of_the_same_store_without_it(tmp_path, place):
    """Its rows are bounded before they are handed over, with one byte more each."""
    seen = {}
    for name, materialized in (("built_in", "sums"), ("own", Materialized("sums", InMemory))):
        builder = StreamsBuilder()
        sales = builder.stream("sales", key=String("shop"), value=Json(Sale))
        sales.group_by_key().agg(materialized, total=Sum("amount"), sales=Count()).to_delta("totals")
        made = Application("sales", builder, commit_interval=LONG, uncommitted_max_bytes=20_000)
        there = Place(made, place.topics, tmp_path / name, max_records=10_000)
        most = seen[name] = []
        watched(there, lambda coordinator, most=most: most.append(coordinator.uncommitted_bytes))
        assert totals(there) == expected(there)
    assert max(seen["own"]) == pytest.approx(max(seen["built_in"]), rel=0.1)
