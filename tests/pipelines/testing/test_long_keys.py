"""LMDB's keys are short, but a program's may be long: they are kept and come back whole."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from weir import Application, BufferConfig, Count, StreamsBuilder, String, Suppressed, TimeWindows
from weir.testing import TopologyTestDriver

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


def test_windows_and_tables_with_long_keys_equal_those_with_short_ones():
    builder = StreamsBuilder()
    events = builder.stream("events", key=String("user"), value=String("page"))
    (
        events.group_by_key()
        .windowed_by(TimeWindows.of_size_with_no_grace(timedelta(minutes=1)))
        .agg("hits", hits=Count())
        .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
        .to_delta("out")
    )
    events.group_by("page").count("by_page").to_stream().to_delta("pages")
    with TopologyTestDriver(Application("long-keys", builder)) as driver:
        topic, out = driver.create_input_topic("events"), driver.create_output_table("out")
        for user, page in (("x" * 700, "p" * 900), ("x" * 700, "q"), ("x" * 701, "p" * 900)):
            topic.pipe_input(user, page, timestamp=NOON)
        topic.pipe_input("y", "q", timestamp=NOON + timedelta(minutes=1))
        assert {(row["user"], row["hits"]) for row in out.read_rows()} == {("x" * 700, 2), ("x" * 701, 1)}
        assert driver.get_key_value_store("by_page").get("p" * 900) == 2
