"""KIP-328's rate limit: about one update per user every 30 seconds, with at most 1,000 users waiting.

The topic ``clicks`` is keyed by user, each value is a page. When more users wait, the update that has waited longest
is emitted early. Run it with ``weir run weir.pipelines.examples.rate_limit:app``.
"""

from datetime import timedelta

from weir import Application, BufferConfig, Count, Last, StreamsBuilder, String, Suppressed

HELD = Suppressed.until_time_limit(timedelta(seconds=30), BufferConfig.max_records(1000))

builder = StreamsBuilder()
(
    builder.stream("clicks", key=String("user"), value=String("page"))
    .group_by_key()
    .agg("clicks_by_user", clicks=Count(), page=Last("page"))
    .suppress(HELD.with_name("held_clicks"))
    .to_stream()
    .to_delta("click_counts")
)

app = Application("rate_limit", builder, commit_interval=timedelta(seconds=1))
