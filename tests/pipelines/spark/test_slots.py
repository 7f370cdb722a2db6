"""Slots in a real Spark context: a worker each, which keeps running, and comes back when it is killed."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing

import psutil
import pytest
from py4j.protocol import Py4JNetworkError
from pyspark import RDD

from tests.pipelines.spark import slot_work
from weir.pipelines.spark.errors import RunError
from weir.pipelines.spark.signs import LONG_CALL_S, SIGN_EVERY_S
from weir.pipelines.spark.slots import TRIES, SlotFailedError, SlotLostError, SlotPool, WorkerStartError
from weir.pipelines.spark.worker import WorkerSettings
from weir.pipelines.tasks.epoch import TaskSettings
from weir.state.types import TaskId

pytestmark = pytest.mark.spark


@pytest.fixture
def make(spark, tmp_path):
    def make(reference: str = "weir.pipelines.examples.flights:app", slots: int = 2) -> SlotPool:
        settings = WorkerSettings(
            reference=reference,
            kafka={},
            tasks=TaskSettings(
                application_folder=str(tmp_path / "app"), state_folder=str(tmp_path / "state"), partition_counts={}
            ),
        )
        return SlotPool(spark, slots, settings, {})

    return make


@pytest.fixture
def pool(make):
    with closing(make()) as pool:
        yield pool


def worker_of(pool: SlotPool, slot: int) -> int:
    return pool.ask(slot, slot_work.pids, [None]).result(60)[0]


def test_each_slot_has_one_worker_that_answers_everything(pool):
    found = [[worker_of(pool, slot) for _ in range(20)] for slot in (0, 1)]
    assert [len(set(pids)) for pids in found] == [1, 1]
    assert found[0][0] != found[1][0]


def test_a_hundred_rounds_take_no_job_of_spark(pool, spark):
    jobs = spark._jsc.sc().dagScheduler().numTotalJobs
    before = jobs()
    for _ in range(100):
        for answer in [pool.ask(slot, slot_work.pids, [None]) for slot in (0, 1)]:
            answer.result(60)
    assert jobs() == before


def test_slots_work_at_the_same_time_and_each_does_one_thing_after_another(pool):
    first, second, other = (
        pool.ask(0, slot_work.seconds_slept, [0.3]),
        pool.ask(0, slot_work.seconds_slept, [0.1]),
        pool.ask(1, slot_work.seconds_slept, [0.3]),
    )
    [(began, ended)], [(began_second, _)], [(began_other, _)] = (
        first.result(60),
        second.result(60),
        other.result(60),
    )
    assert began_second >= ended
    assert began_other < ended, "slot 1 waits for slot 0"
    assert began < ended


def test_a_worker_gives_signs_while_it_is_at_work_and_names_the_call_that_takes_long(pool):
    pool.slot_of = {TaskId(0, 0): 0, TaskId(0, 1): 1}
    seen = []
    pool.while_waiting = lambda signs: seen.append(tuple(signs))
    takes_s = LONG_CALL_S + 4 * SIGN_EVERY_S
    calls = [slot_work.LongCall(TaskId(0, 0), takes_s), slot_work.LongCall(TaskId(0, 1), 0.0)]
    answers = pool._each(slot_work.in_a_long_call, calls, lambda call: call.task)
    assert sorted(answers) == [call.task for call in calls]
    assert {sign.task for signs in seen for sign in signs} == {"0_0"}, "the other one has answered at once"
    named = [sign for signs in seen for sign in signs if sign.call]
    assert 1 <= len(named) < len(seen), "not a call of a moment"
    assert {sign.call for sign in named} == {
        "'fetch' in KSTREAM-MAP-0000000001 on the record of key user='bob', time 1970-01-01T00:00:01Z"
    }
    assert all(LONG_CALL_S <= sign.call_s < takes_s + SIGN_EVERY_S for sign in named)


def test_a_task_stays_where_it_is_while_its_slot_does_not_answer(pool, monkeypatch):
    task = TaskId(0, 0)
    pool.slot_of = {task: 0}
    busy = pool.ask(0, slot_work.seconds_slept, [0.5])
    monkeypatch.setattr("weir.pipelines.spark.slots.MOVE_LIMIT_S", 0.1)
    with pytest.raises(RunError, match=r"its slot has not answered for 0\.1 s"):
        pool.move(task, 1, with_store=True)
    monkeypatch.undo()
    assert pool.slot_of == {task: 0}
    busy.result(60)
    pool.move(task, 1, with_store=True)
    assert pool.slot_of == {task: 1}


@pytest.mark.faults
def test_what_a_killed_worker_had_not_answered_is_asked_again(pool, tmp_path):
    """The answers come once each, in their order, though the worker dies before the first, between two, and idle."""
    for number in range(3):
        before = worker_of(pool, 0)
        items = [(str(tmp_path / f"{number}-{at}") if at in (0, 3) else "", f"item {at}") for at in range(5)]
        assert pool.ask(0, slot_work.killed_once, items).result(60) == [text for _, text in items]
        assert worker_of(pool, 0) != before
    idle = worker_of(pool, 0)
    os.kill(idle, signal.SIGKILL)
    assert worker_of(pool, 0) != idle


@pytest.mark.faults
def test_a_worker_that_dies_of_what_it_is_asked_is_an_error_and_the_slot_goes_on(pool):
    for _ in range(2):
        with pytest.raises(SlotLostError, match=f"slot 1 was lost {TRIES} times"):
            pool.ask(1, slot_work.always_killed, [None]).result(120)
        assert worker_of(pool, 1) > 0
    with pytest.raises(SlotFailedError, match="slot 1: ZeroDivisionError: nothing to divide by"):
        pool.ask(1, slot_work.failing, [None]).result(120)
    assert worker_of(pool, 1) != worker_of(pool, 0)


def test_an_application_that_cannot_be_imported_is_an_error_at_once(make, spark):
    with pytest.raises(WorkerStartError, match=r"^the worker of slot \d does not start: .*no_such_module[^\n]*$"):
        make("no_such_module:app")


def test_a_worker_that_is_lost_once_spark_has_ended_is_an_error_that_says_so(spark, make, monkeypatch):
    """Java cannot be asked for its message any more."""

    def collect(_):
        raise Py4JNetworkError("Answer from Java side is empty")

    monkeypatch.setattr(RDD, "collect", collect)
    with pytest.raises(WorkerStartError, match="slot 0 does not start: Answer from Java side is empty; a new start"):
        make()


def test_after_the_end_no_worker_is_busy(make):
    pool = make()
    workers = [psutil.Process(worker_of(pool, slot)) for slot in (0, 1)]
    pool.close()
    before = [sum(worker.cpu_times()[:2]) for worker in workers if worker.is_running()]
    time.sleep(0.5)
    assert [sum(worker.cpu_times()[:2]) for worker in workers if worker.is_running()] == before
    with closing(make()) as again:
        assert worker_of(again, 0) > 0


def test_slots_are_added_and_end_while_the_others_go_on_up_to_what_the_context_has_threads_for(spark, make):
    """The worker of one that is to end is killed before its task has left: another one closes nothing, and ends."""
    task = TaskId(0, 0)
    with closing(make(slots=1)) as pool:
        pool.slot_of = {task: 0}
        before = worker_of(pool, 0)
        pool.scale(2)
        assert (pool.count, pool.is_ready(1)) == (2, False)
        other = worker_of(pool, 1)
        assert pool.is_ready(1)
        assert worker_of(pool, 0) == before != other
        with pytest.raises(RunError, match="there can be at most 3 slots on the cores of this host; for more, start"):
            pool.scale(4)
        assert pool.count == 2
        pool.move(task, 1, with_store=True)
        pool.scale(1)
        assert pool.end_unused({1}), "it has a task"
        os.kill(other, signal.SIGKILL)
        pool.move(task, 0, with_store=True)
        successor = psutil.Process(worker_of(pool, 1))
        assert not pool.end_unused({0})
        (ended,) = pool._ended
        ended.job.result(60)
        assert worker_of(pool, 0) == before
        pool.scale(2)
        assert worker_of(pool, 1) not in (before, other)
        assert successor.pid != other
