"""Schedules, timers by the wall clock, commits on request and ``close`` in real epochs, crashes and restarts."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import ClassVar

import pytest

from tests.pipelines.processors.runs import CrashesAt, disturbed_run, records, written
from tests.pipelines.spark.inline import Place, Topics
from weir import (
    Application,
    Int64,
    KeyValueStore,
    ListStore,
    Processor,
    Punctuation,
    Record,
    StreamsBuilder,
    String,
)
from weir.pipelines.processors.running import Running
from weir.state.commit.tables import read_rows

pytestmark = pytest.mark.slow

MS = timedelta(milliseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def ms(at: datetime | None) -> int | None:
    return None if at is None else (at - EPOCH) // MS


def application(processor: type, commit_interval: timedelta = MS) -> Application:
    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key=String("user"), value=Int64("n"))
    numbers.process(processor, name="at_work").to_delta("out")
    return Application("clocks", builder, commit_interval=commit_interval)


class Scheduled(Processor[str, int, str, str]):
    """Says where and when it is; two schedules end themselves at their third call, two others come once."""

    stores = (KeyValueStore("calls", key=str, value=int),)

    def init(self, context):
        self.context, self.calls = context, context.state_store("calls")
        if (self.calls.get("ends") or 0) < 3:
            self.ends = context.schedule(10_000 * MS, Punctuation.STREAM_TIME, self.until_third)
        context.schedule_once(EPOCH + 40_000 * MS, Punctuation.STREAM_TIME, partial(self.say, "once"))
        context.schedule_once(EPOCH + 90_000 * MS, Punctuation.STREAM_TIME, partial(self.say, "late"))
        context.schedule(7_000 * MS, Punctuation.STREAM_TIME, lambda now: self.say("always", now))
        self.cancelled = context.schedule(10_000 * MS, Punctuation.STREAM_TIME, self.until_cancelled)

    def process(self, record):
        now = self.context.current_stream_time
        self.context.forward(record.with_value(f"{self.context.task_id} at {ms(now)}"))

    def say(self, what, now):
        self.context.forward(Record(what, f"at {ms(now)}", now))

    def until_third(self, now):
        self.counted("ends", now, self.ends)

    def until_cancelled(self, now):
        self.counted("cancelled", now, self.cancelled)

    def counted(self, what, now, schedule):
        self.say(what, now)
        calls = (self.calls.get(what) or 0) + 1
        self.calls.put(what, calls)
        if calls == 3:
            schedule.cancel()


ORDER = ["ends", "once", "late", "always", "cancelled"]
"""As ``init`` schedules them."""


def expected(rows: list[tuple[bytes, bytes, int]]) -> list[tuple[str, str, int]]:
    out, stream_ms, calls = [], -1, Counter[str]()
    next_ms = {"ends": 0, "once": 40_000, "late": 90_000, "always": 0, "cancelled": 0}
    for key, _, time_ms in rows:
        stream_ms = max(stream_ms, time_ms)
        out.append((key.decode(), f"0_0 at {stream_ms}", time_ms))
        due = [(at, ORDER.index(name), name) for name, at in next_ms.items() if at <= stream_ms]
        for _, _, name in sorted(due):
            out.append((name, f"at {stream_ms}", stream_ms))
            calls[name] += 1
            interval_ms = 7_000 if name == "always" else 10_000
            next_ms[name] = stream_ms // interval_ms * interval_ms + interval_ms
            if name in ("once", "late") or (name != "always" and calls[name] == 3):
                del next_ms[name]
    return out


@pytest.mark.parametrize("seed", range(4))
def test_schedules_that_end_and_that_come_once_give_what_a_loop_gives(tmp_path, seed):
    rows = records(seed, 150)
    place = disturbed_run(application(Scheduled), rows, tmp_path, seed)
    found = expected(rows)
    assert set(ORDER) <= {name for name, *_ in found}
    assert written(place, "out", "user", "value") == found


def once_at(*seconds: int) -> Application:
    class Once(Processor[str, int, str, str]):
        def init(self, context):
            self.context = context
            for second in seconds:
                at = EPOCH + timedelta(seconds=second)
                context.schedule_once(at, Punctuation.STREAM_TIME, partial(self.tell, second))

        def process(self, record):
            pass

        def tell(self, second, now):
            self.context.forward(Record(str(second), "", now))

    return application(Once)


def test_what_is_scheduled_once_is_known_by_its_time_whatever_else_init_schedules(tmp_path):
    rows = [(b"ann", bytes(8), 1_000 * second) for second in range(200)]
    place = Place(once_at(20, 100), Topics({("numbers", 0): rows[:30]}), tmp_path)
    place.run()
    for program, count in ((once_at(100), 60), (once_at(70, 50, 100), 120), (once_at(150, 100, 70, 50), 200)):
        place.application, place.topics.rows["numbers", 0] = program, rows[:count]
        place.run()
    called = [(user, time_ms // 1_000) for user, time_ms in written(place, "out", "user")]
    assert called == [("20", 20), ("50", 60), ("70", 70), ("100", 100), ("150", 150)]


def test_what_an_earlier_version_has_kept_by_its_place_in_init_goes_on(tmp_path, monkeypatch):
    rows = [(b"ann", bytes(8), 1_000 * second) for second in range(120)]
    place = Place(once_at(100, 20), Topics({("numbers", 0): rows[:30]}), tmp_path)
    clocks = Running._clocks
    with monkeypatch.context() as patch:
        patch.setattr(Running, "_clocks", lambda running, what: (clocks(running, what)[1],) * 2)
        place.run()
    place.topics.rows["numbers", 0] = rows
    place.run()
    called = [(user, time_ms // 1_000) for user, time_ms in written(place, "out", "user")]
    assert called == [("20", 20), ("100", 100)]


def ticking(seconds: int) -> Application:
    class Ticking(Processor[str, int, str, str]):
        def init(self, context):
            context.schedule(timedelta(seconds=seconds), Punctuation.STREAM_TIME, self.tick)
            self.context = context

        def process(self, record):
            pass

        def tick(self, now):
            self.context.forward(Record("tick", "", now))

    return application(Ticking)


@pytest.mark.parametrize(("before_s", "after_s"), [(3_600, 7), (7, 60), (60, 60)])
def test_a_schedule_whose_interval_changes_goes_on_at_multiples_of_the_new_one(tmp_path, before_s, after_s):
    rows = [(b"ann", bytes(8), 1_000 * second) for second in range(200)]
    place = Place(ticking(before_s), Topics({("numbers", 0): rows[:100]}), tmp_path)
    place.run()
    place.application, place.topics.rows["numbers", 0] = ticking(after_s), rows
    place.run()
    called = [time_ms // 1_000 for _, time_ms in written(place, "out", "user")]
    due = [(range(100), before_s), (range(100, 200), after_s)]
    assert called == [second for seconds, interval_s in due for second in seconds if second % interval_s == 0]


def test_a_schedule_by_the_wall_clock_with_a_shorter_interval_does_not_wait_for_the_longer_one(tmp_path):
    def every(interval: timedelta) -> type:
        class Every(Scheduled):
            stores = ()

            def init(self, context):
                self.context = context
                context.schedule(interval, Punctuation.WALL_CLOCK_TIME, lambda now: self.say("wall", now))

            def process(self, record):
                pass

        return Every

    place = Place(application(every(timedelta(days=1))), Topics({("numbers", 0): records(0, 5)}), tmp_path)
    place.run()
    place.application = application(every(MS))
    place.run()
    time.sleep(0.01)
    place.run()
    assert "wall" in [user for user, _ in written(place, "out", "user")]


class Commits(Processor[str, int, str, int]):
    look: ClassVar[Callable[[], int]]
    seen: ClassVar[dict[int, int]]

    def init(self, context):
        self.context = context

    def process(self, record):
        if record.value in (5, 34, 65):
            self.seen[record.value] = Commits.look()
        if record.value == 34:
            self.context.commit()
        self.context.forward(record)


def test_commit_makes_what_came_so_far_durable_at_the_end_of_the_epoch(tmp_path):
    rows = [(b"ann", number.to_bytes(8, "big"), number) for number in range(100)]
    place = Place(application(Commits, timedelta(hours=1)), Topics({("numbers", 0): rows}), tmp_path, max_records=10)
    table = place.warehouse / "clocks" / "out"
    Commits.seen, Commits.look = {}, lambda: read_rows(table).height if table.exists() else 0
    place.run()
    assert Commits.seen == {5: 0, 34: 0, 65: 40}


class Drains(Processor[str, int, str, str]):
    """Sends the numbers of a key on a few ms after the first of them; the last words say which run they are of."""

    stores = (ListStore("open", key=str, value=int),)
    run = 0
    closed: ClassVar = list[int]()

    def init(self, context):
        self.context, self.open = context, context.state_store("open")

    def process(self, record):
        if self.open.count(record.key) == 0:
            due = self.context.current_system_time + 3 * MS
            self.context.timer(record.key, due, Punctuation.WALL_CLOCK_TIME)
        self.open.append(record.key, record.value)

    def on_timer(self, record):
        numbers = " ".join(map(str, self.open.drain(record.key)))
        self.context.forward(Record(record.key, numbers, record.timestamp))

    def close(self):
        Drains.closed.append(Drains.run)
        self.context.forward(Record("closed", str(Drains.run), EPOCH))


@pytest.mark.parametrize("seed", range(2))
def test_timers_by_the_wall_clock_come_once_and_close_only_with_a_stop_whatever_is_killed(tmp_path, seed):
    chance, rows = random.Random(seed), records(seed, 300)
    place = Place(application(Drains), Topics({("numbers", 0): []}), tmp_path)
    Drains.closed, stopped = [], []
    for run in range(20):
        Drains.run = run
        place.topics.rows["numbers", 0] = rows[: (run + 1) * 15]
        place.max_records = chance.choice([4, 50])
        crash = CrashesAt(chance.randrange(1, 45) if run % 2 else 10_000)
        with suppress(Exception):
            place.run(crash)
        if crash.steps > 0:
            stopped.append(run)
        elif chance.random() < 0.3:
            place.state_folder.rename(tmp_path / f"lost in {run}")
    time.sleep(0.005)
    for Drains.run in (20, 21):  # what is overdue leaves, and what is sent then is committed
        place.run()
        stopped.append(Drains.run)
    sent, closed = dict[str, list[int]](), []
    for key, value, _ in written(place, "out", "user", "value"):
        if key == "closed":
            closed.append(int(value))
        else:
            sent.setdefault(key, []).extend(map(int, value.split()))
    given = dict[str, list[int]]()
    for key, number, _ in rows:
        given.setdefault(key.decode(), []).append(int.from_bytes(number, "big"))
    assert sent == given
    assert closed == sorted(set(closed))
    assert set(stopped) <= set(closed) <= set(Drains.closed)
    assert len(stopped) < 22
    assert len(set(Drains.closed)) < 22  # some were killed before


class Ticks(Processor[str, int, None, None]):
    late_ms: ClassVar = list[int]()

    def init(self, context):
        self.due_ms = ms(context.current_system_time) + 200
        context.schedule(200 * MS, Punctuation.WALL_CLOCK_TIME, self.tick)

    def process(self, record):
        pass

    def tick(self, now):
        self.late_ms.append(time.time_ns() // 1_000_000 - self.due_ms)
        while self.due_ms <= ms(now):  # those that were missed do not come
            self.due_ms += 200


def test_a_punctuation_by_the_wall_clock_comes_within_100_ms_while_all_is_idle(tmp_path):
    builder = StreamsBuilder()
    builder.stream("numbers", key=String("user"), value=Int64("n")).process(Ticks)
    place = Place(Application("ticks", builder), Topics({("numbers", 0): []}), tmp_path)
    Ticks.late_ms, stop = [], threading.Event()
    run = threading.Thread(target=place.driver().run, args=(stop,))
    run.start()
    try:
        limit_s = time.monotonic() + 30
        while len(Ticks.late_ms) < 8 and time.monotonic() < limit_s:
            time.sleep(0.05)
    finally:
        stop.set()
        run.join()
    assert len(Ticks.late_ms) >= 8
    assert min(Ticks.late_ms) >= 0
    assert sum(late_ms < 100 for late_ms in Ticks.late_ms) >= 0.75 * len(Ticks.late_ms), Ticks.late_ms
