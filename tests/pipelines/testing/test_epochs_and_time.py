"""The test driver's epochs of several records, restarts, stops, and stream time without records."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from weir import (
    Application,
    BufferConfig,
    FixedKeyProcessor,
    Int64,
    KeyValueStore,
    Processor,
    Punctuation,
    Record,
    StreamsBuilder,
    String,
    Suppressed,
    TimeWindows,
)
from weir.testing import TopologyTestDriver

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


class Remembers(Processor[str, int, str, str]):
    """Numbers the records by key; an attribute counts those of this instance, and ``close`` tells how many."""

    stores = (KeyValueStore("seen", key=str, value=int),)

    def init(self, context):
        self.context, self.seen, self.own = context, context.state_store("seen"), 0
        context.schedule(timedelta(seconds=10), Punctuation.STREAM_TIME, self.tick)

    def process(self, record):
        self.own += 1
        number = (self.seen.get(record.key) or 0) + 1
        self.seen.put(record.key, number)
        self.context.timer(record.key, record.timestamp + timedelta(seconds=5))
        self.context.forward(record.with_value(f"{record.value} is {number}, here {self.own}"))

    def on_timer(self, record):
        self.context.forward(record.with_value("quiet"))

    def tick(self, now):
        self.context.forward(Record("tick", str((now - START) // timedelta(seconds=1)), now))

    def close(self):
        self.context.forward(Record("closed", str(self.own), START))


def remembering() -> Application:
    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key=String("user"), value=Int64("n"))
    numbers.process(Remembers, name="remembers").to_delta("out")
    return Application("remembering", builder)


@pytest.fixture
def driver():
    with TopologyTestDriver(remembering()) as driver:
        yield driver


def test_an_epoch_of_several_topics_is_taken_by_time_and_one_topic_in_its_order():
    """A record that is late in its topic comes where the topic's time was; compared with a merge by hand."""

    class Notes(FixedKeyProcessor[str, int, str]):
        def init(self, context):
            self.context = context

        def process(self, record):
            self.context.forward(record.with_value(f"{record.value}"))

    builder = StreamsBuilder()
    streams = [builder.stream(topic, key=String("user"), value=Int64("n")) for topic in ("a", "b")]
    streams[0].merge(streams[1]).process_values(Notes, name="notes").to_delta("out")
    random = Random(3)
    piped = [(random.choice("ab"), random.randrange(50), number) for number in range(40)]
    with TopologyTestDriver(Application("merge", builder)) as driver:
        topics, out = {topic: driver.create_input_topic(topic) for topic in "ab"}, driver.create_output_table("out")
        reached, epochs = {"a": -1, "b": -1}, []
        for epoch in (piped[:15], piped[15:]):
            with driver.one_epoch():
                for topic, second, number in epoch:
                    topics[topic].pipe_input("ann", number, timestamp=at(second))
                assert out.is_empty()
            turns = []
            for topic, second, number in epoch:
                reached[topic] = max(reached[topic], second)
                turns.append((reached[topic], topic, len(turns), number))
            epochs += [str(number) for *_, number in sorted(turns)]
            assert out.read_values_to_list() == epochs
            epochs.clear()
        assert driver.counts["records_in"] == 40


def test_within_an_epoch_aggregations_send_on_the_newest_update_of_each_key():
    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key=String("user"), value=Int64("n"))
    numbers.group_by_key().count("counts").to_delta("out")
    random, total = Random(1), Counter[str]()
    with TopologyTestDriver(Application("counts", builder)) as driver:
        topic, out = driver.create_input_topic("numbers"), driver.create_output_table("out")
        for _ in range(20):
            users = random.choices("abc", k=random.randrange(1, 6))
            total.update(users)
            with driver.one_epoch():
                topic.pipe_key_value_list([(user, 1) for user in users])
            assert sorted(out.read_key_values_to_list()) == [(user, total[user]) for user in sorted(set(users))]


def test_a_bad_record_of_an_epoch_is_put_aside_and_the_rest_goes_on():
    builder = StreamsBuilder()
    builder.stream("numbers", key=String("user"), value=Int64("n")).to_delta("out")
    with TopologyTestDriver(Application("bad", builder, on_error="dead_letter")) as driver:
        topic = driver.create_input_topic("numbers")
        with driver.one_epoch():
            topic.pipe_key_value_list([("a", 1), ("b", b"no number"), ("c", 3)])
        assert driver.create_output_table("out").read_key_values_to_list() == [("a", 1), ("c", 3)]
        assert [(letter.topic, letter.offset) for letter in driver.dead_letters] == [("numbers", 1)]
        assert driver.counts["dead_letters"] == 1


def test_an_epoch_whose_block_fails_is_forgotten_and_blocks_do_not_nest(driver):
    topic, out = driver.create_input_topic("numbers"), driver.create_output_table("out")

    def fail() -> None:
        with driver.one_epoch():
            topic.pipe_input("ann", 1, timestamp=at(0))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with driver.one_epoch(), pytest.raises(RuntimeError, match="end that block first"), driver.one_epoch():
        pass
    topic.pipe_input("ann", 2, timestamp=at(1))
    assert out.read_key_values_to_list() == [("ann", "2 is 1, here 1"), ("tick", "1")]


@pytest.mark.parametrize("killed", [False, True])
def test_a_restart_keeps_stores_timers_and_clocks_and_makes_new_processors(driver, killed):
    topic, out = driver.create_input_topic("numbers"), driver.create_output_table("out")
    topic.pipe_input("ann", 7, timestamp=at(1))
    assert out.read_key_values_to_list() == [("ann", "7 is 1, here 1"), ("tick", "1")]
    driver.restart(killed=killed)
    assert out.read_key_values_to_list() == ([] if killed else [("closed", "1")])
    topic.pipe_input("bob", 8, timestamp=at(4))  # no punctuation is due: that of the first record was
    topic.pipe_input("ann", 9, timestamp=at(7))
    assert out.read_key_values_to_list() == [
        ("bob", "8 is 1, here 1"),
        ("ann", "9 is 2, here 2"),  # a timer set before was moved by this record
    ]
    assert driver.get_key_value_store("seen").all() == [("ann", 2), ("bob", 1)]


def test_what_a_processor_forwards_when_it_is_closed_can_be_read_after_the_driver_is():
    with TopologyTestDriver(remembering()) as driver:
        driver.create_input_topic("numbers").pipe_input("ann", 7, timestamp=at(1))
        out = driver.create_output_table("out")
        out.read_rows()
    assert out.read_key_values_to_list() == [("closed", "1")]
    driver.close()
    assert out.is_empty()


def test_an_error_in_the_block_of_a_driver_is_not_covered_by_one_of_a_processor():
    class Fails(Processor[str, int, None, None]):
        def process(self, record):
            pass

        def close(self):
            raise ValueError

    builder = StreamsBuilder()
    builder.stream("numbers", key=String("user"), value=Int64("n")).process(Fails)
    with pytest.raises(ZeroDivisionError), TopologyTestDriver(Application("fails", builder)):
        raise ZeroDivisionError


def test_stream_time_that_moves_by_itself_calls_what_is_due_and_never_goes_back(driver):
    topic, out = driver.create_input_topic("numbers"), driver.create_output_table("out")
    driver.advance_stream_time(at(100))  # it has not begun
    assert out.is_empty()
    topic.pipe_input("ann", 7, timestamp=at(1))
    out.read_rows()
    driver.advance_stream_time(at(5.999))
    assert out.is_empty()
    driver.advance_stream_time(at(6))
    assert out.read_key_values_to_list() == [("ann", "quiet")]
    driver.advance_stream_time(at(2))
    driver.advance_stream_time(at(45))  # missed intervals are one call
    assert out.read_key_values_to_list() == [("tick", "45")]
    topic.pipe_input("ann", 8, timestamp=at(3))  # stream time stays where it is, so the timer of 8 s is due at once
    assert out.read_key_values_to_list() == [("ann", "8 is 2, here 2"), ("ann", "quiet")]


@pytest.mark.parametrize("is_moved", [False, True], ids=["same partition", "behind a repartition"])
def test_stream_time_that_moves_by_itself_closes_windows_and_makes_records_late(is_moved):
    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key=String("user"), value=Int64("n"))
    if is_moved:
        numbers = numbers.repartition("moved")
    windows = numbers.group_by_key().windowed_by(TimeWindows.of_size_and_grace(timedelta(seconds=10), timedelta(0)))
    windows.count("updates").to_delta("updates")
    windows.count("finals").suppress(Suppressed.until_window_closes(BufferConfig.unbounded())).to_delta("finals")
    with TopologyTestDriver(Application("windows", builder)) as driver:
        topic, finals = driver.create_input_topic("numbers"), driver.create_output_table("finals")
        topic.pipe_input("ann", 1, timestamp=at(3))
        driver.advance_stream_time(at(9))
        assert finals.is_empty()
        topic.pipe_input("ann", 2, timestamp=at(4))
        driver.advance_stream_time(at(10))
        assert finals.read_values_to_list() == [2]
        assert driver.open_windows == 0
        topic.pipe_input("ann", 3, timestamp=at(5))
        assert driver.create_output_table("updates").read_values_to_list() == [1, 2]
        assert driver.counts["late_records"] == 2  # one per aggregation
