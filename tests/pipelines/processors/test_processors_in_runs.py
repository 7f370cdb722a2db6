"""Processors give in real epochs, commits, crashes and restarts what a loop over the records gives."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta

import pytest

from tests.pipelines.spark.inline import Place, Topics
from weir import Application, FixedKeyProcessor, Int64, KeyValueStore, Punctuation, StreamsBuilder, String
from weir.state.commit.tables import read_rows

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


def records(seed: int, count: int) -> list[tuple[bytes, bytes, int]]:
    chance = random.Random(seed)
    rows, time_ms = [], 0
    for number in range(count):
        time_ms += chance.choice([0, 100, 900, 2_000, 20_000, 31_000] if number % 20 == 0 else [0, 100, 900])
        late_ms = chance.choice([0, 0, 5_000])
        rows.append(
            (b"user-%d" % chance.randrange(12), number.to_bytes(8, "big", signed=True), max(0, time_ms - late_ms))
        )
    return rows


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


def written(place: Place) -> list[tuple[str, str, int]]:
    rows = read_rows(place.warehouse / "quiet" / "out").sort("_epoch", "_seq")
    return [
        (user, value, round(at.timestamp() * 1000))
        for user, value, at in rows.select("user", "value", "_ts").iter_rows()
    ]


class CrashError(Exception):
    pass


@dataclass
class CrashesAt:
    steps: int

    def __call__(self, name: str) -> None:
        self.steps -= 1
        if self.steps == 0:
            raise CrashError(name)


@pytest.mark.parametrize("seed", range(6))
def test_crashes_restarts_and_the_size_of_epochs_change_nothing(tmp_path, seed):
    chance = random.Random(seed)
    rows = records(seed, 200)
    place = Place(application(), Topics({("numbers", 0): []}), tmp_path, max_records=chance.choice([7, 50, 1000]))
    given = 0
    while given < len(rows):
        given = min(len(rows), given + chance.choice([20, 90]))
        place.topics.rows["numbers", 0] = rows[:given]
        place.max_records = chance.choice([7, 50, 1000])
        try:
            place.run(CrashesAt(chance.randrange(1, 40)))
        except Exception:
            place.run()
        if chance.random() < 0.3:
            for folder in place.state_folder.iterdir():
                folder.rename(folder.with_name(f"{folder.name}.gone"))
    place.run()
    assert written(place) == expected(rows)
