"""What a driver does with the signs of workers that take long: it is seen to live, and says what takes the time."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Event

import msgspec
import pytest

from tests.pipelines.spark.inline import InlineSlots, Place, Topics
from weir import (
    Application,
    BatchProcessor,
    FixedKeyProcessor,
    Json,
    Processor,
    Punctuation,
    StreamsBuilder,
    String,
)
from weir.pipelines.operators.calls import running_call
from weir.pipelines.spark.control import ControlPanel
from weir.pipelines.spark.signs import Sign, Signs


@dataclass(frozen=True)
class Click:
    number: int


SEEN: list[str] = []


def noted(click: Click) -> Click:
    SEEN.append(running_call().text)
    return click


class Notes(FixedKeyProcessor[str, Click, Click]):
    def init(self, context):
        self.context = context

    def process(self, record):
        self.context.forward(record.with_value(noted(record.value)))


def folded(clicks):
    def add(user: str, click: Click, total: int) -> int:
        noted(click)
        return total + 1

    return clicks.group_by_key().aggregate("clicks", lambda: 0, add)


PROGRAMS = {
    "mapper": lambda clicks: clicks.map_values(noted).group_by_key().count("clicks"),
    "processor": lambda clicks: clicks.process_values(Notes, name="notes").group_by_key().count("clicks"),
    "aggregator": folded,
}


def place(folder, program, rows=None) -> Place:
    builder = StreamsBuilder()
    program(builder.stream("clicks", key=String("user"), value=Json(Click))).to_delta("out")
    rows = rows or [(b"user-%d" % number, msgspec.json.encode(Click(number)), 1_000 * number) for number in range(3)]
    application = Application("shop", builder, commit_interval=timedelta(milliseconds=1))
    return Place(application, Topics({("clicks", 0): rows}), folder)


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_call_is_named_by_function_operator_and_record(tmp_path, program):
    SEEN.clear()
    place(tmp_path, PROGRAMS[program]).run()
    assert len(SEEN) == 3
    for number, text in enumerate(SEEN):
        function, _, record = text.partition(" on the record of ")
        assert record == f"topic 'clicks', partition 0, offset {number}, key user='user-{number}'"
        assert {"mapper": "'noted' in KSTREAM-MAPVALUES", "processor": "Notes.process' in notes"}.get(
            program, "add' in KSTREAM-AGGREGATE"
        ) in function
    assert running_call() is None


class Batches(BatchProcessor[str, Click, str, Click]):
    def process_batch(self, rows):
        SEEN.append(running_call().text)
        return rows


class Timed(Processor[str, Click, str, Click]):
    def init(self, context):
        self.context = context
        SEEN.append(running_call().text)
        context.schedule(timedelta(seconds=2), Punctuation.STREAM_TIME, self.tick)

    def process(self, record):
        self.context.timer(record.key, record.timestamp + timedelta(milliseconds=1))

    def on_timer(self, record):
        SEEN.append(running_call().text)

    def tick(self, now: datetime) -> None:
        SEEN.append(running_call().text)

    def close(self):
        SEEN.append(running_call().text)


def test_calls_that_are_not_for_one_record_are_named_too(tmp_path):
    SEEN.clear()
    place(tmp_path / "batches", lambda clicks: clicks.process(Batches, name="batches")).run()
    assert SEEN[0] == (
        "'Batches.process_batch' in batches on 3 records from that of key user='user-0', time 1970-01-01T00:00:00Z"
    )
    SEEN.clear()
    place(tmp_path / "timed", lambda clicks: clicks.process(Timed, name="timed")).run()
    timer = "'Timed.on_timer' in timed on the timer of key user='user-{0}', time 1970-01-01T00:00:0{0}.001000Z"
    seen = [*SEEN]
    assert seen == [
        "'Timed.init' in timed",
        "'Timed.tick' in timed",
        timer.format(0),
        "'Timed.tick' in timed",
        timer.format(1),
        "'Timed.close' in timed",
    ]
    assert running_call() is None


def test_one_call_after_another_is_not_taken_for_a_long_one(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(Timed, "on_timer", lambda self, record: seen.append(running_call()))
    rows = [(b"user-%d" % number, msgspec.json.encode(Click(number)), 10 * number) for number in range(5)]
    place(tmp_path, lambda clicks: clicks.process(Timed, name="timed"), rows).run()
    assert len(set(seen)) == len(seen) == 4


def test_a_driver_that_waits_reports_and_names_the_call_until_the_task_has_answered(tmp_path, monkeypatch, caplog):
    here, run = place(tmp_path, PROGRAMS["mapper"]), InlineSlots.run
    reasons, states = list[str](), list[str]()

    def report(progress, tasks, ends):
        states.append(progress.state)
        reasons.extend(ControlPanel(None)._row(task, ends, is_paused=False).reason for task in tasks)

    def slow(slots, plans):
        for call_s in (0.0, 6.0, 8.0):
            signs = [
                Sign(task=str(plan.task), call="'noted' in map" if call_s else "", call_s=call_s) for plan in plans
            ]
            driver.while_waiting(signs)
        return run(slots, plans)

    here.desk.report = report
    monkeypatch.setattr(InlineSlots, "run", slow)
    driver = here.driver()
    with caplog.at_level(logging.WARNING):
        driver.run(Event(), until_caught_up=True)
    assert "has been in one call of 'noted' in map for 8 s" in reasons
    assert reasons[-1] == ""
    assert states.count("working") >= 3, "not a driver that has stalled"
    assert caplog.text.count("task 0_0 has been in one call of 'noted' in map for 6 s") == 1


def test_a_task_whose_epoch_begins_before_a_commit_asks_however_quick_it_is():
    with closing(Signs(lambda sign: None)) as signs:
        for asks in (True, False):
            signs.begin(asks=asks)
            with signs.at_work("0_0"):
                assert signs.must_ask() is asks
