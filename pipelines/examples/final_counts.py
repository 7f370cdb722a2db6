"""KIP-328's final results: how often each word was seen in a minute, one row per word and minute, never updated.

Each record of the topic ``words`` has one word as its value. Words may be up to ten seconds late; those that are later
go to a separate table. When the topic has been idle for a minute, the wall clock closes what is open. Run it with
``weir run weir.pipelines.examples.final_counts:app``.
"""

from datetime import timedelta

from weir import Application, BufferConfig, Int64, KStream, StreamsBuilder, String, Suppressed, TimeWindows

MINUTES = TimeWindows.of_size_and_grace(timedelta(minutes=1), timedelta(seconds=10))


def keep(late: KStream) -> None:
    """Late words, with the minute that they missed."""
    late.to_delta("late_words")


builder = StreamsBuilder()
(
    builder.stream("words", key=Int64("line"), value=String("word"))
    .group_by("word")  # the key changes, so rows travel to a second sub-topology
    .windowed_by(MINUTES, late_to=keep, idle_after=timedelta(minutes=1))
    .count("words_by_minute")
    .suppress(Suppressed.until_window_closes(BufferConfig.max_bytes(5_000_000).spill_to_disk_when_full()))
    .to_delta("word_counts")
)

app = Application("final_counts", builder, commit_interval=timedelta(seconds=1))
