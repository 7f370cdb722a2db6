"""Topics that a program both writes and reads, in the test driver: what it sends there it reads, as in a run."""

from __future__ import annotations

from datetime import timedelta

import pytest
from polars import col

from weir import Application, Int64, Processor, Punctuation, StreamsBuilder, String
from weir.testing import TopologyTestDriver

HEADERS = (("trace", b"17"), ("trace", None))


def collatz() -> Application:
    """Sends each number's successor back to its topic, until it is 1."""
    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key=String("user"), value=Int64("n"), headers=True)
    numbers.to_delta("seen", headers=True)
    following = (col("n") // 2) * (1 - col("n") % 2) + (3 * col("n") + 1) * (col("n") % 2)
    numbers.filter(col("n") > 1).map_values(n=following).to("numbers", value=Int64("n"), name="back")
    numbers.group_by_key().count("steps").to_delta("steps")
    return Application("numbers", builder)


def by_hand(number: int) -> list[int]:
    seen = [number]
    while seen[-1] > 1:
        seen.append(seen[-1] // 2 if seen[-1] % 2 == 0 else 3 * seen[-1] + 1)
    return seen


@pytest.mark.parametrize("at_once", [False, True])
def test_a_loop_runs_until_nothing_is_sent_with_keys_times_and_headers(at_once):
    with TopologyTestDriver(collatz()) as driver:
        topic = driver.create_input_topic("numbers")
        records = [("ann", 27, 1_000), ("bob", 6, 2_000)]
        if at_once:
            with driver.one_epoch():
                for user, number, time_ms in records:
                    topic.pipe_input(user, number, headers=HEADERS, timestamp_ms=time_ms)
        else:
            for user, number, time_ms in records:
                topic.pipe_input(user, number, headers=HEADERS, timestamp_ms=time_ms)
        found = driver.create_output_table("seen").read_records()
        for user, number, time_ms in records:
            mine = [each for each in found if each.row["user"] == user]
            assert [each.row["n"] for each in mine] == by_hand(number)
            assert {each.headers for each in mine} == {HEADERS}
            assert {each.timestamp.timestamp() * 1_000 for each in mine} == {time_ms}
            assert driver.get_key_value_store("steps").get(user) == len(by_hand(number))
        sent = driver.create_output_topic("numbers").read_records()
        assert len(sent) == len(found) - len(records), "what is sent can be read, too"


class Reminds(Processor[str, int, str, int]):
    """Sends a number on each second by the wall clock, and one when it is closed."""

    def init(self, context):
        self.context = context
        context.schedule(timedelta(seconds=1), Punctuation.WALL_CLOCK_TIME, self.tick)

    def tick(self, now):
        self.context.forward(self.record.with_value(100))

    def process(self, record):
        self.record = record

    def close(self):
        self.context.forward(self.record.with_value(1_000))


def reminded() -> Application:
    """A second stage reads by a topic what the first one sends; so does a global table."""
    builder = StreamsBuilder()
    builder.stream("first", key=String("user"), value=Int64("n")).process(Reminds, name="reminds").to("second")
    second = builder.stream("second", key=String("user"), value=Int64("m"))
    second.to_delta("reminded")
    second.to("known")
    known = builder.global_table("known", key=String("user"), value=Int64("known"), store="known")
    builder.stream("asked", key=String("user"), value=Int64("n")).join(known, key="user").to_delta("answers")
    return Application("reminds", builder)


def test_what_time_and_a_stop_make_is_read_too_and_after_a_kill_it_is_not():
    with TopologyTestDriver(reminded()) as driver:
        driver.create_input_topic("first").pipe_input("ann", 1)
        driver.advance_wall_clock_time(timedelta(seconds=1))
        table = driver.create_output_table("reminded")
        assert table.read_values_to_list() == [100]
        driver.create_input_topic("asked").pipe_input("ann", 7)
        assert driver.create_output_table("answers").read_rows() == [{"user": "ann", "n": 7, "known": 100}]
        driver.restart()
        assert table.read_values_to_list() == [1_000]
        driver.create_input_topic("first").pipe_input("ann", 1)
        driver.restart(killed=True)
        assert table.is_empty()
        driver.create_input_topic("first").pipe_input("ann", 1)


def test_what_cannot_be_read_back_is_handled_as_in_a_run():
    builder = StreamsBuilder()
    builder.stream("words", key=String("user"), value=String("word")).to("numbers")
    builder.stream("numbers", key=String("user"), value=Int64("n")).to_delta("seen")
    application = Application("words", builder, on_error="dead_letter")
    with TopologyTestDriver(application) as driver:
        driver.create_input_topic("words").pipe_input("ann", "three")
        (letter,) = driver.dead_letters
        assert (letter.topic, letter.value) == ("numbers", b"three")
