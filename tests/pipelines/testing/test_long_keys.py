"""LMDB's keys are short: a record whose key no store could hold is bad input, not a crash later."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pipelines import Application, BufferConfig, Count, StreamsBuilder, String, Suppressed, TimeWindows
from pipelines.errors import BadInputError
from pipelines.testing import TopologyTestDriver

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


def application(on_error="fail", *, is_kept=True) -> Application:
    builder = StreamsBuilder()
    events = builder.stream("events", key=String("user"), value=String("page"))
    if is_kept:
        (events.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(timedelta(minutes=1)))
            .agg("hits", hits=Count()).suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
            .to_delta("out"))
    else:
        events.to_delta("out")
    return Application("long-keys", builder, on_error=on_error)


def test_the_longest_key_that_a_store_holds_is_kept_and_a_longer_one_is_bad_input():
    app = application()
    limit = app.topology.sub_topologies[0].max_key_bytes
    with TopologyTestDriver(app) as driver:
        events, out = driver.create_input_topic("events"), driver.create_output_table("out")
        events.pipe_input("x" * limit, "a", timestamp=NOON)
        with pytest.raises(BadInputError, match=f"key: {limit + 1} bytes, and stores hold {limit} at most"):
            events.pipe_input("x" * (limit + 1), "a", timestamp=NOON)
        events.pipe_input("y", "a", timestamp=NOON + timedelta(minutes=1))
        assert out.read_row()["user"] == "x" * limit


def test_long_keys_go_to_the_dead_letters_when_bad_input_does():
    with TopologyTestDriver(application("dead_letter")) as driver:
        driver.create_input_topic("events").pipe_input("é" * 300, "a", timestamp=NOON)
        assert [letter.reason.split(",")[0] for letter in driver.dead_letters] == ["key: 600 bytes"]


def test_where_nothing_is_kept_a_key_may_be_as_long_as_it_likes():
    with TopologyTestDriver(application(is_kept=False)) as driver:
        out = driver.create_output_table("out")
        driver.create_input_topic("events").pipe_input("x" * 5_000, "a", timestamp=NOON)
        assert len(out.read_row()["user"]) == 5_000
