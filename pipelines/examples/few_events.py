"""KIP-328's alert: users with fewer than three events in an hour, once the hour has been over for ten minutes.

The topic ``events`` is keyed by user; what an event says does not matter. A user with no event at all in an hour has no
window and no alert. Run it with ``weir run weir.pipelines.examples.few_events:app``.
"""

from datetime import timedelta

from polars import col

from weir import Application, BufferConfig, StreamsBuilder, String, Suppressed, TimeWindows

builder = StreamsBuilder()
(
    builder.stream("events", key=String("user"), value=String("event"))
    .group_by_key()
    .windowed_by(TimeWindows.of_size_and_grace(timedelta(hours=1), timedelta(minutes=10)))
    .count("hourly")
    .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
    .to_stream()  # a stream's filter drops what does not pass; a table's would write a tombstone
    .filter(col("count") < 3)
    .to_delta("alerts")
)

app = Application("few_events", builder, commit_interval=timedelta(seconds=1))
