"""Processors give in real epochs, commits, crashes and restarts what a loop over the records gives."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.pipelines.processors.runs import disturbed_run, records, written
from weir import Application, FixedKeyProcessor, Int64, KeyValueStore, Punctuation, StreamsBuilder, String

SECOND = timedelta(seconds=1)


class Quiet(FixedKeyProcessor[str, int, str]):
    """Forwards each tenth record of a key, every minute how many keys there are, and a key that was quiet for 30 s."""

    stores = (KeyValueStore("counts", key=str, value=int), KeyValueStore("known", key=str, value=bool))

    def init(self, context):
        self.context = context
        self.counts, self.known = context.state_store("counts"), context.state_store("known")
        self.last = None
        context.schedule(60 * SECOND, Punctuation.STREAM_TIME, self.report)

    def process(self, record):
        self.last = record
        count = (self.counts.get(record.key) or 0) + 1
        self.counts.put(record.key, count)
        self.known.put(record.key, True)
        self.context.timer(record.key, record.timestamp + 30 * SECOND)
        if count % 10 == 0:
            self.context.forward(record.with_value(f"tenth {count}"))

    def report(self, now):
        keys = sum(1 for _ in self.known.all())
        self.context.forward(self.last.with_value(f"keys {keys}").with_timestamp(now))

    def on_timer(self, record):
        self.context.forward(record.with_value(f"quiet after {self.counts.delete(record.key)}"))

    def close(self):
        if self.last is not None:
            self.last = None


def application() -> Application:
    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key=String("user"), value=Int64("number"))
    numbers.process_values(Quiet, name="quiet").to_delta("out")
    return Application("quiet", builder, commit_interval=timedelta(milliseconds=1))


def expected(rows: list[tuple[bytes, bytes, int]]) -> list[tuple[str, str, int]]:
    """One record after the other: the record, then the minute that it completes, then the timers that it makes due."""
    out, counts, known, timers = [], {}, set(), {}
    stream_ms, next_ms = 0, 0
    for key, _, time_ms in rows:
        user = key.decode()
        counts[user] = counts.get(user, 0) + 1
        known.add(user)
        timers[user] = time_ms + 30_000
        if counts[user] % 10 == 0:
            out.append((user, f"tenth {counts[user]}", time_ms))
        stream_ms = max(stream_ms, time_ms)
        if stream_ms >= next_ms:
            out.append((user, f"keys {len(known)}", stream_ms))
            next_ms = stream_ms // 60_000 * 60_000 + 60_000
        for due_ms, quiet in sorted((at, who) for who, at in timers.items() if at <= stream_ms):
            del timers[quiet]
            out.append((quiet, f"quiet after {counts.pop(quiet)}", due_ms))
    return out


@pytest.mark.parametrize("seed", range(6))
def test_crashes_restarts_and_the_size_of_epochs_change_nothing(tmp_path, seed):
    rows = records(seed, 200)
    place = disturbed_run(application(), rows, tmp_path, seed)
    assert written(place, "out", "user", "value") == expected(rows)
