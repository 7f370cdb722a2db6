"""What processors do by the wall clock is not due in a backfill unless it is asked for; nothing is lost by that."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta

import pytest

from tests.pipelines.cli.typed import BROKERS, Answer, Terminal, opened
from tests.pipelines.spark.inline import InlineSlots, Topics
from weir import Application, Int64, Processor, Punctuation, Record, StreamsBuilder, String
from weir.pipelines.backfill.shadow import shadows
from weir.state.commit.tables import read_rows

pytestmark = pytest.mark.slow

COUNT, USERS, SIZE = 100, 4, 3
LONG_AGO, MOMENT = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)
ROWS = [(b"user-%d" % (number % USERS), number.to_bytes(8, "big"), number * 1_000) for number in range(COUNT)]
SHORT_EPOCHS = "--set max_epoch_records=10"


class Clocked(Processor[str, int, str, str]):
    """Says when a schedule, or a timer of a key that is due at once, was called by the wall clock."""

    def init(self, context):
        self.context = context
        context.schedule(MOMENT, Punctuation.WALL_CLOCK_TIME, self.report)

    def process(self, record):
        self.context.timer(record.key, LONG_AGO, Punctuation.WALL_CLOCK_TIME)

    def on_timer(self, record):
        self.context.forward(record.with_value("timer"))

    def report(self, now):
        self.context.forward(Record("all", "schedule", now))


def application(on_stop: str = "keep") -> Application:
    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key=String("user"), value=Int64("number"))
    numbers.process(Clocked, name="clocked").to_delta("calls")
    numbers.batch(max_records=SIZE, max_wait=MOMENT, on_stop=on_stop, name="open").to_delta("batches")
    return Application("clocks", builder, commit_interval=MOMENT)


def terminal_with(tmp_path, monkeypatch, on_stop: str = "keep") -> Terminal:
    """Where a live run, in one epoch, has read all records."""
    found = opened(tmp_path, monkeypatch)
    found.clusters[BROKERS] = Topics({("numbers", 0): list(ROWS)})
    succeeded(found.run(found.has("app", application(on_stop))))
    return found


def succeeded(answer: Answer) -> None:
    assert answer.code == 0, answer.text


def calls(folder) -> set[str]:
    return set(read_rows(folder / "calls")["value"])


def batches(folder) -> dict[str, list[list[int]]]:
    """The numbers of each batch by user, in the order of their first records."""
    found = defaultdict(list)
    for user, records in read_rows(folder / "batches").sort("first_time").select("user", "records").iter_rows():
        found[user].append(records)
    return found


def in_full_batches() -> tuple[dict[str, list[list[int]]], dict[str, list[int]]]:
    """What a plain loop gives that knows no clock: full batches by user, and what remains open."""
    full, rest = defaultdict(list), defaultdict(list)
    for number in range(COUNT):
        user = f"user-{number % USERS}"
        rest[user].append(number)
        if len(rest[user]) == SIZE:
            full[user].append(rest.pop(user))
    return full, rest


def test_a_backfill_calls_nothing_by_the_wall_clock_and_the_next_run_calls_what_is_overdue(tmp_path, monkeypatch):
    terminal = terminal_with(tmp_path, monkeypatch)
    live = terminal.warehouse / "clocks"
    full, rest = in_full_batches()
    assert rest
    succeeded(terminal.weir(f"backfill run clocks --everything {SHORT_EPOCHS} --swap --yes"))
    assert calls(live) == set()
    assert batches(live) == full
    succeeded(terminal.run("programs:app"))
    assert calls(live) == {"timer", "schedule"}
    assert batches(live) == {user: [*full[user], *([rest[user]] if user in rest else [])] for user in full}


def test_a_backfill_that_is_asked_to_passes_the_wall_clock(tmp_path, monkeypatch):
    terminal = terminal_with(tmp_path, monkeypatch)
    succeeded(terminal.weir(f"backfill run clocks --everything {SHORT_EPOCHS} --wall-clock"))
    [shadow] = shadows(terminal.warehouse, tmp_path / "state", "clocks")
    assert calls(shadow.folder) == {"timer", "schedule"}
    found = batches(shadow.folder)
    assert min(len(each) for each in found["user-0"][:-1]) < SIZE, "some left before they were full"
    left = [number for each in found.values() for batch in each for number in batch]
    assert sorted(left) == sorted(set(left)), "none left twice"


def test_open_batches_that_leave_at_a_stop_leave_with_the_last_commit_of_a_backfill(tmp_path, monkeypatch):
    terminal = terminal_with(tmp_path, monkeypatch, "flush")
    full, rest = in_full_batches()
    succeeded(terminal.weir(f"backfill run clocks --everything {SHORT_EPOCHS}"))
    [shadow] = shadows(terminal.warehouse, tmp_path / "state", "clocks")
    assert batches(shadow.folder) == {user: [*full[user], *([rest[user]] if user in rest else [])] for user in full}


@pytest.mark.parametrize("flag", ["", " --wall-clock"])
def test_days_are_computed_with_the_same_choice(tmp_path, monkeypatch, flag):
    """Rows of a processor that has stores or timers belong to no day, so the shadow's own table shows the choice."""
    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key=String("user"), value=Int64("number"))
    numbers.to_delta("facts")
    numbers.process(Clocked, name="clocked").to_delta("calls")
    terminal = opened(tmp_path, monkeypatch)
    terminal.clusters[BROKERS] = Topics({("numbers", 0): list(ROWS)})
    succeeded(terminal.run(terminal.has("app", Application("clocks", builder, commit_interval=MOMENT))))
    receipts, run = [], InlineSlots.run
    monkeypatch.setattr(InlineSlots, "run", lambda slots, plans: receipts.extend(done := run(slots, plans)) or done)
    succeeded(terminal.weir(f"backfill run clocks 1970-01-01 {SHORT_EPOCHS}{flag}"))
    [shadow] = shadows(terminal.warehouse, tmp_path / "state", "clocks")
    assert calls(shadow.folder) == ({"timer", "schedule"} if flag else set())
    assert read_rows(shadow.folder / "facts").height == COUNT
    assert any(receipt.next_punctuation_ms is not None for receipt in receipts) == bool(flag), "nothing is waited for"
