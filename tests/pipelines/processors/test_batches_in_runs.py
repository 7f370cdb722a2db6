"""Batch processors give in epochs of any size, after crashes and restarts, what a loop over the records gives."""

from __future__ import annotations

from datetime import timedelta

import polars as pl
import pytest

from tests.pipelines.processors.runs import disturbed_run, records, written
from weir import Application, BatchProcessor, Int64, KeyValueStore, Punctuation, StreamsBuilder, String

SECOND = timedelta(seconds=1)


class Quiet(BatchProcessor[str, int, str, str]):
    """Forwards each tenth record of a key, every minute how many keys there are, and keys that were quiet for 3 s.

    Every seventh record of a key cancels its timer.
    """

    stores = (KeyValueStore("counts", key=str, value=int), KeyValueStore("known", key=str, value=bool))

    def init(self, context):
        self.context = context
        self.counts, self.known = context.state_store("counts"), context.state_store("known")
        context.schedule(60 * SECOND, Punctuation.STREAM_TIME, self.report)

    def process_batch(self, rows):
        users = rows.select(key="user").unique(maintain_order=True)
        held = self.counts.get_rows(users).select(user="key", before=pl.col("value").fill_null(0))
        rows = rows.join(held, on="user", how="left", maintain_order="left").with_columns(
            count=pl.col("before") + pl.int_range(1, pl.len() + 1).over("user")
        )
        self.counts.put_rows(rows.select("_ts", key="user", value="count"))
        self.known.put_rows(rows.select("_ts", key="user", value=pl.lit(True)))
        last = rows.unique("user", keep="last", maintain_order=True)
        self.context.timers(last.filter(pl.col("count") % 7 != 0), pl.col("_ts") + 3_000)
        self.context.cancel_timers(last.filter(pl.col("count") % 7 == 0))
        return rows.filter(pl.col("count") % 10 == 0).with_columns(value=pl.format("tenth {}", "count"))

    def report(self, now):
        count = self.known.approximate_num_entries()
        self.context.forward_rows(
            pl.DataFrame({"user": ["all"], "value": [f"keys {count}"], "_ts": [round(now.timestamp() * 1000)]})
        )

    def on_timers(self, rows):
        keys = rows.select(key="user")
        found = self.counts.get_rows(keys)
        self.counts.delete_rows(keys)
        return rows.with_columns(value=pl.format("quiet after {}", found.get_column("value")))


def application(resolution: timedelta) -> Application:
    cls = type("Quiet", (Quiet,), {"timer_resolution": resolution})
    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key=String("user"), value=Int64("number"))
    numbers.process(cls, name="quiet").to_delta("out")
    return Application("quiet", builder, commit_interval=timedelta(milliseconds=1))


def expected(rows: list[tuple[bytes, bytes, int]], resolution_ms: int) -> list[tuple[str, str, int]]:
    out, counts, known, timers = [], {}, set(), {}
    stream_ms, next_ms = None, 0
    for key, _, time_ms in rows:
        user = key.decode()
        counts[user] = counts.get(user, 0) + 1
        known.add(user)
        timers[user] = time_ms + 3_000
        if counts[user] % 7 == 0:
            del timers[user]
        if counts[user] % 10 == 0:
            out.append((user, f"tenth {counts[user]}", time_ms))
        before_ms, stream_ms = stream_ms, max(time_ms, time_ms if stream_ms is None else stream_ms)
        if stream_ms >= next_ms:
            out.append(("all", f"keys {len(known)}", stream_ms))
            next_ms = stream_ms // 60_000 * 60_000 + 60_000
        if before_ms is None or stream_ms // resolution_ms == before_ms // resolution_ms:
            continue
        for due_ms, quiet in sorted((at, who) for who, at in timers.items() if at <= stream_ms):
            del timers[quiet]
            out.append((quiet, f"quiet after {counts.pop(quiet)}", due_ms))
    return out


@pytest.mark.parametrize("resolution_ms", [1, 1_000, 7_300])
@pytest.mark.parametrize("seed", range(3))
def test_crashes_restarts_and_the_size_of_epochs_change_nothing(tmp_path, seed, resolution_ms):
    rows = records(seed, 200)
    place = disturbed_run(application(timedelta(milliseconds=resolution_ms)), rows, tmp_path, seed)
    found = expected(rows, resolution_ms)
    assert sum("quiet" in value for _, value, _ in found) > 20
    assert written(place, "out", "user", "value") == found
