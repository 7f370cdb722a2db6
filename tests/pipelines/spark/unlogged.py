"""Visits by user over two partitions, in stores with and without changelogs, and what a plain model says they hold;
also a process that reads them and dies by SIGKILL at the given occurrence of a step."""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from threading import Event

import polars as pl

from tests.faults.dying import signalled_at
from tests.forked import ended
from tests.pipelines.spark.inline import Place, Topics
from weir import (
    Application,
    Count,
    Int64,
    KeyValueStore,
    Materialized,
    Processor,
    StateReader,
    StreamsBuilder,
    String,
    Sum,
    TimeWindows,
)
from weir.pipelines.spark.admission import change_of
from weir.pipelines.topology.changes import TopologyChange
from weir.state.commit.protocol import newest_commit
from weir.state.engine.cache import TaskStoreCache

STORES = ("sums", "minutes", "newest", "last")
"""The stores of ``application`` whose options are given; beside them it has ``always``, which has a changelog."""


KEPT_MS = 120_000
"""How long windows are kept, from their start."""
READ_AGAIN = "read again"
"""The step of a restore that reads records again."""


class Last(Processor[str, int, None, None]):
    """Keeps the last value of each user; forwards nothing."""

    def init(self, context):
        self.last = context.state_store("last")

    def process(self, record):
        self.last.put(record.key, record.value)


def options(logging: bool | None) -> dict:
    """Of a store with a changelog, without one, or, with None, without one but computed again if it is lost."""
    return {True: {}, False: {"logging": False, "on_loss": "empty"}, None: {"logging": False}}[logging]


def application(logging: bool | None, *, in_memory: bool = False, **more) -> Application:
    """``more`` are further aggregates of ``sums``."""
    builder = StreamsBuilder()
    visits = builder.stream("visits", key=String("user"), value=Int64("pages"))

    def kept(name: str) -> Materialized:
        return Materialized(name, in_memory=in_memory, **options(logging))

    by_user = visits.group_by_key()
    by_user.agg(kept("sums"), pages=Sum("pages"), visits=Count(), **more).to_delta("totals")
    by_user.windowed_by(TimeWindows.of_size_and_grace(timedelta(minutes=1), timedelta(minutes=1))).count(
        kept("minutes")
    )
    visits.to_table(kept("newest"))
    by_user.count(Materialized("always", in_memory=in_memory))
    last = KeyValueStore("last", key=str, value=int, in_memory=in_memory, **options(bool(logging)))
    visits.process(Last, stores=[last], name="last-of")
    return Application("visits", builder, commit_interval=timedelta(milliseconds=1))


def visits(first: int, last: int, partition: int) -> list:
    """A visit a second, some of them out of order, and late. Every fifth deletes the user's row of a table; one user's
    name is longer than a key of LMDB."""
    names = [b"user-%d-%d" % (partition, number) for number in range(6)] + [b"%d" % partition + b"x" * 700]
    return [
        (
            names[number * 3 % 7],
            None if number % 5 == 4 else number.to_bytes(8, "big"),
            1_000_000 + number * 1_000 - number % 4 * 45_000,
        )
        for number in range(first, last)
    ]


class Site(Place):
    """Two tasks."""

    @classmethod
    def of(cls, folder: Path, rows: int, *, logging: bool | None, in_memory: bool = False, **more) -> Site:
        topics = Topics({("visits", partition): visits(0, rows, partition) for partition in (0, 1)})
        return cls(application(logging, in_memory=in_memory, **more), topics, folder, max_records=20)

    @property
    def state_folder(self) -> Path:
        return self.folder / "state" / "visits"

    @property
    def reader(self) -> StateReader:
        return StateReader(self.folder, self.application)

    @property
    def held(self) -> dict[str, dict]:
        """What the stores hold."""
        reader, users = self.reader, sorted({key.decode() for rows in self.topics.rows.values() for key, _, _ in rows})
        sums = reader.range("sums").rows
        minutes = pl.concat(reader.windows("minutes", user).rows for user in users)
        return {
            "sums": {user: (pages, count) for user, pages, count in sums.select("user", "pages", "visits").iter_rows()},
            "minutes": {
                (user, int(start.timestamp())): count
                for user, start, count in minutes.select("user", "window_start", "count").iter_rows()
            },
            "newest": dict(reader.range("newest").rows.select("user", "pages").iter_rows()),
            "last": dict(reader.range("last").rows.select("key", "value").iter_rows()),
            "always": dict(reader.range("always").rows.select("user", "count").iter_rows()),
        }

    def expected(self, since: dict[int, int] | None = None, of: Sequence[str] = STORES) -> dict[str, dict]:
        """What they must hold by a plain reading; the stores in ``of`` only of the records from these offsets on, by
        partition."""
        whole, part = self._read({}), self._read(since or {})
        return {name: part[name] if name in of else rows for name, rows in whole.items()}

    def _read(self, since: dict[int, int]) -> dict[str, dict]:
        sums: dict[str, tuple[int, int]] = {}
        minutes, always = Counter[tuple[str, int]](), Counter[str]()
        newest: dict[str, int] = {}
        last: dict[str, int] = {}
        for (_, partition), rows in self.topics.rows.items():
            now_ms, open_windows = 0, Counter[tuple[str, int]]()
            for offset, (key, value, time_ms) in enumerate(rows):
                user, now_ms = key.decode(), max(now_ms, time_ms)
                always[user] += value is not None
                if offset < since.get(partition, 0):
                    continue
                if (start_ms := time_ms // 60_000 * 60_000) + KEPT_MS > now_ms:  # else it is late
                    open_windows[user, start_ms] += 1  # without a value, too, as in Kafka Streams
                if value is None:
                    newest.pop(user, None)
                    last.pop(user, None)
                    continue
                pages, count = sums.get(user, (0, 0))
                newest[user] = last[user] = int.from_bytes(value, "big")
                sums[user] = pages + newest[user], count + 1
            for (user, start_ms), count in open_windows.items():
                if start_ms + KEPT_MS > now_ms:  # else it has expired
                    minutes[user, start_ms // 1000] = count
        return {
            "sums": sums,
            "minutes": dict(minutes),
            "newest": newest,
            "last": last,
            "always": {user: count for user, count in always.items() if count},
        }


def more(site: Site, rows: int = 60) -> None:
    for (_, partition), found in site.topics.rows.items():
        found += visits(len(found), len(found) + rows, partition)


def under(site: Site, *, logging: bool | None, in_memory: bool = False, **aggregates) -> Site:
    """Another program over the same topics and folders."""
    TaskStoreCache.close_all()
    other = Site.of(site.folder, 0, logging=logging, in_memory=in_memory, **aggregates)
    other.topics = site.topics
    return other


def lose(site: Site, task: str) -> None:
    TaskStoreCache.close_all()
    shutil.rmtree(site.state_of(task))


def changes(site: Site) -> TopologyChange:
    """What a start would change."""
    return change_of(
        site.application.topology,
        site.warehouse / "visits",
        newest_commit(site.warehouse, "visits"),
        site.topics.partition_counts(),
    )


def killed_at(site: Site, logging: bool | None, step: str, occurrence: int, *, in_memory: bool = False) -> bool:
    """Run in a process that is to be killed there; whether it came there."""
    rows = len(site.topics.rows["visits", 0])
    code = ended(_die_at, site.folder, rows, logging, in_memory, step, occurrence)
    assert code in (0, -signal.SIGKILL)
    return code != 0


def _die_at(folder: Path, rows: int, logging: bool | None, in_memory: bool, step: str, occurrence: int) -> None:
    on_step = signalled_at(step, occurrence)
    site = Site.of(folder, rows, logging=logging, in_memory=in_memory)
    driver = site.driver(on_step)
    reader = site.restores.reader

    def dying(topic: str, partition: int):
        on_step(READ_AGAIN)
        return reader(topic, partition)

    site.restores.reader = dying
    driver.run(Event(), until_caught_up=True)
