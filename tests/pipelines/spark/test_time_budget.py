"""Tasks whose functions take long end their part of an epoch in time, and the results are the same.

The clock is one of the tests: only calls of the program's functions take time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

import msgspec
import pytest

from tests.examples import combined
from tests.pipelines.spark.inline import InlineSlots, Place, Topics
from weir import Application, Count, FixedKeyProcessor, Json, StreamsBuilder, String, TopologyError
from weir.pipelines.operators import calls, time_limit
from weir.pipelines.tasks import batch_sizes, epoch
from weir.pipelines.tasks.attempts import Attempts
from weir.state.commit.tables import read_table

RECORDS, USERS = 3_000, 7


@dataclass(frozen=True)
class Click:
    number: int
    cost_ms: float


class Clock:
    """What the engine takes for ``time``."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s

    def time_ns(self) -> int:
        return int(self.now_s * 1e9)


CLOCK = Clock()


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    for module in (batch_sizes, calls, epoch, time_limit):
        monkeypatch.setattr(module, "time", CLOCK)


def works(click: Click) -> Click:
    CLOCK.now_s += click.cost_ms / 1000
    return click


class Works(FixedKeyProcessor[str, Click, Click]):
    def init(self, context):
        self.context = context

    def process(self, record):
        self.context.forward(record.with_value(works(record.value)))


def mapped(clicks):
    return clicks.map_values(works)


def processed(clicks):
    return clicks.process_values(Works, name="works")


def counted(stream) -> None:
    stream.group_by_key().agg("by_user", clicks=Count()).to_delta("by_user")


def folded(clicks) -> None:
    def add(user: str, click: Click, total: int) -> int:
        return total + works(click).number * 0 + 1

    clicks.group_by_key().aggregate("by_user", lambda: 0, add).to_delta("by_user")


PROGRAMS = {
    "a mapper": lambda clicks: counted(mapped(clicks)),
    "a processor": lambda clicks: counted(processed(clicks)),
    "an aggregator": folded,
    "a mapper behind a repartition": lambda clicks: counted(mapped(clicks.repartition("moved"))),
}


def application(make, **settings) -> Application:
    builder = StreamsBuilder()
    make(builder.stream("clicks", key=String("user"), value=Json(Click)))
    return Application("shop", builder, commit_interval=timedelta(seconds=1), **settings)


def clicks(cost_ms) -> list[tuple[bytes, bytes, int]]:
    """Records, of which the one with a number takes ``cost_ms(number)``."""
    return [
        (b"user-%d" % (number % USERS), msgspec.json.encode(Click(number, cost_ms(number))), 1_000 + number)
        for number in range(RECORDS)
    ]


COSTS = {
    "each takes a millisecond": lambda number: 1.0,
    "the later ones take long": lambda number: 0.0001 if number < 2_000 else 5.0,
    "one takes a minute": lambda number: 60_000.0 if number == 1_234 else 0.01,
    "one in a hundred takes a second": lambda number: 1_000.0 if number % 100 == 0 else 0.01,
}


def run(place: Place, monkeypatch) -> list[tuple[int, float]]:
    """Records and seconds of each epoch until the application has caught up."""
    took, run = [], InlineSlots.run

    def timed(slots, plans):
        before = CLOCK.now_s
        receipts = run(slots, plans)
        took.append((sum(receipt.counts.get("records_in", 0) for receipt in receipts), CLOCK.now_s - before))
        return receipts

    monkeypatch.setattr(InlineSlots, "run", timed)
    place.run()
    return took


def results(place: Place) -> Counter[str]:
    """The newest count of each user."""
    rows = read_table(place.warehouse / "shop" / "by_user").sort("_epoch", "_seq").unique("user", keep="last")
    (count,) = {"clicks", "by_user", "value"} & set(rows.columns)
    return Counter(dict(rows.select("user", count).iter_rows()))


@combined("program,costs,on_processing_error", PROGRAMS, COSTS, ["fail", "dead_letter", "fail"])
def test_every_record_counts_once_whatever_each_takes(tmp_path, monkeypatch, program, costs, on_processing_error):
    place = Place(
        application(PROGRAMS[program], on_processing_error=on_processing_error),
        Topics({("clicks", 0): clicks(COSTS[costs])}),
        tmp_path,
        max_records=RECORDS,
    )
    took = run(place, monkeypatch)
    assert results(place) == Counter({f"user-{user}": len(range(user, RECORDS, USERS)) for user in range(USERS)})
    if costs == "each takes a millisecond":
        assert all(seconds <= 1.0 for _, seconds in took), took
        assert sum(seconds >= 0.5 for _, seconds in took) >= 2, "the time is used"


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_a_batch_takes_without_its_records_does_not_leave_the_task_with_one_at_a_time(
    tmp_path, monkeypatch, program
):
    process = Attempts.process

    def slowly(attempts, *arguments, **options):
        CLOCK.now_s += 2.0
        return process(attempts, *arguments, **options)

    monkeypatch.setattr(Attempts, "process", slowly)
    topics = Topics({("clicks", 0): clicks(lambda number: 0.1)})
    place = Place(application(PROGRAMS[program]), topics, tmp_path, max_records=RECORDS)
    took = run(place, monkeypatch)
    assert sum(results(place).values()) == RECORDS
    assert sum(records > 0 for records, _ in took) < 20, took


def test_a_topic_with_priority_gets_as_many_times_the_time_of_another(tmp_path, monkeypatch):
    """Two tasks share a slot; how far the other one is when the preferred one has read everything."""
    builder = StreamsBuilder()
    for topic, priority in (("urgent", 4), ("bulk", 1)):
        stream = builder.stream(topic, key=String("user"), value=Json(Click), priority=priority)
        stream.map_values(works).group_by_key().agg(topic, clicks=Count()).to_delta(topic)
    application = Application("shop", builder, commit_interval=timedelta(seconds=1))
    topics = Topics({(topic, 0): clicks(lambda number: 1.0) for topic in ("urgent", "bulk")})
    place = Place(application, topics, tmp_path, max_records=RECORDS)
    bulk_read, read, run = 0, dict.fromkeys(("urgent", "bulk"), 0), InlineSlots.run

    def noted(slots, plans):
        nonlocal bulk_read
        receipts = run(slots, plans)
        is_done = read["urgent"] == RECORDS
        read.update((topic, offsets[0]) for each in receipts for topic, offsets in each.positions.items())
        bulk_read = bulk_read if is_done else read["bulk"]
        return receipts

    monkeypatch.setattr(InlineSlots, "run", noted)
    place.run()
    assert 0.15 * RECORDS < bulk_read < 0.45 * RECORDS
    for topic in ("urgent", "bulk"):
        rows = read_table(place.warehouse / "shop" / topic)
        assert dict(rows.select("user", "clicks").iter_rows()) == {
            f"user-{user}": len(range(user, RECORDS, USERS)) for user in range(USERS)
        }


@pytest.mark.parametrize("priority", [0, -1, 1.5, True, 1001, "high"])
def test_a_priority_is_a_whole_number(priority):
    with pytest.raises(TopologyError, match="it must be a whole number from 1 to 1000"):
        StreamsBuilder().stream("clicks", key=String("user"), value=Json(Click), priority=priority)
