"""Global tables that workers share: each sees the rows up to what its plans have asked for, whatever others do."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipelines.spark.log_consumer import log_reader
from weir import Int64, StreamsBuilder, String
from weir.pipelines.on_error import FAIL
from weir.pipelines.tasks import global_table
from weir.pipelines.tasks.global_table import shared_folder, shared_stores
from weir.pipelines.tasks.global_tables import GlobalTables
from weir.pipelines.tasks.plan import OffsetRange
from weir.state.engine import shared_rows
from weir.state.engine.shared_rows import SharedRows, newest_rows
from weir.state.stores.access import StoreTime
from weir.state.stores.key_value import KeyValueStore
from weir.state.stores.typed import TypedStore

PARTITIONS = 2
Ends = dict[int, int]


def builder() -> StreamsBuilder:
    found = StreamsBuilder()
    prices = found.global_table("prices", key=String("item"), value=Int64("cents"), store="prices")
    sales = found.stream("sales", key=String("shop"), value=String("item"))
    sales.join(prices, key="item").to_delta("out")
    return found


TOPOLOGY = builder().build()
(NODE,) = TOPOLOGY.global_tables


class Topic:
    """Each key's records are in one partition; some keys are too long for LMDB, and some records delete."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.rows: dict[int, list] = {partition: [] for partition in range(PARTITIONS)}
        self.reads = 0

    def add(self, count: int = 5) -> Ends:
        for _ in range(count):
            number = self.random.randrange(12)
            key = f"item-{number}".encode() * (1 if number % 4 else 100)
            value = None if self.random.random() < 0.3 else self.random.randrange(1 << 40).to_bytes(8, "big")
            self.rows[number % PARTITIONS].append((key, value, 7))
        return self.ends()

    def ends(self) -> Ends:
        return {partition: len(rows) for partition, rows in self.rows.items()}

    def at(self, ends: Ends) -> dict[str, int]:
        """The plain model of the table."""
        found: dict[str, int] = {}
        for partition, end in ends.items():
            for key, value, _ in self.rows[partition][:end]:
                found.pop(key.decode(), None)
                if value is not None:
                    found[key.decode()] = int.from_bytes(value, "big")
        return found

    def read(self, topic: str, partition: int, start: int, end: int):
        self.reads += 1
        reader = log_reader(topic, partition, lambda: self.rows[partition])
        return reader.read(start, end, until_time_ms=None, max_bytes=100)


def ranges(ends: Ends) -> list[OffsetRange]:
    return [OffsetRange(topic="prices", partition=place, start=0, end=end) for place, end in ends.items()]


def seen(tables) -> dict[str, int]:
    """All rows of the table, by both ways that there are to read them."""
    store = KeyValueStore(NODE.store, tables, StoreTime(clocks={}, now_ms=0))
    frame = store.range(None, None).frame()
    found = dict(frame.select("item", "cents").rows())
    typed = TypedStore(NODE.store, tables)
    looked_up = typed.fetch(typed.encode(frame.select("item")))
    assert looked_up["cents"].to_list() == frame["cents"].to_list()
    return found


class Worker:
    def __init__(self, topic: Topic, folder: Path) -> None:
        self.topic, self.wanted, self.generation = topic, dict.fromkeys(range(PARTITIONS), 0), 1
        self.tables = GlobalTables(TOPOLOGY, FAIL, folder)

    def plan(self, ends: Ends, generation: int = 1) -> None:
        if generation != self.generation:
            self.generation, self.wanted = generation, dict.fromkeys(range(PARTITIONS), 0)
        self.tables.read_on(ranges(ends), self.topic.read, 0, generation)
        self.wanted = {place: max(end, self.wanted[place]) for place, end in ends.items()}
        self.check()

    def check(self) -> None:
        assert seen(self.tables.by_store["prices"]) == self.topic.at(self.wanted)


@pytest.mark.parametrize("seed", range(8))
def test_workers_see_what_their_plans_asked_for_whatever_others_do(tmp_path, monkeypatch, seed):
    """Plans come early and late, workers are replaced and rest, one is frozen in its turn, files are lost, and drivers
    follow one another."""
    monkeypatch.setattr(global_table, "PATIENCE_S", 0.0)
    topic, choose = Topic(seed), random.Random(seed)
    workers = [Worker(topic, tmp_path) for _ in range(3)]
    generation, epochs = 1, [topic.add()]
    frozen = None
    for _ in range(120):
        number = choose.randrange(len(workers))
        worker = workers[number]
        match choose.choices(
            ["epoch", "plan", "late", "anew", "rest", "freeze", "lose", "driver"], [4, 8, 2, 1, 2, 1, 0.5, 0.3]
        )[0]:
            case "epoch":
                epochs.append(topic.add(choose.randrange(1, 9)))
            case "plan":
                worker.plan(epochs[-1], generation)
            case "late":
                worker.plan(choose.choice(epochs[-3:]), generation)
            case "anew":
                workers[number] = Worker(topic, tmp_path)
            case "rest":
                worker.tables.release()
            case "freeze" if frozen is None:
                frozen = SharedRows(shared_folder(tmp_path, "prices"), generation, shared_stores("prices")).turn()
                if not frozen.__enter__():
                    frozen = None
            case "freeze":
                frozen.__exit__(None, None, None)
                frozen = None
            case "lose":
                shutil.rmtree(shared_folder(tmp_path, "prices"), ignore_errors=True)
            case "driver":
                generation += 1
        for each in workers:
            if each.generation == generation and each.tables._by_topic["prices"]._at:
                each.check()
    if frozen is not None:
        frozen.__exit__(None, None, None)


def test_one_worker_reads_the_topic_for_all(tmp_path):
    topic = Topic()
    ends = topic.add(200)
    first = Worker(topic, tmp_path)
    first.plan(ends)
    reads = topic.reads
    assert reads > 4, "in several parts"
    others = [Worker(topic, tmp_path) for _ in range(4)]
    for other in others:
        other.plan(ends)
    assert topic.reads == reads
    ends = topic.add(3)
    for each in (*others, first):
        each.plan(ends)
    assert topic.reads <= reads + 4
    assert not any(each.tables._by_topic["prices"]._own.rows for each in others), "none has rows of its own"


def test_while_a_worker_rests_the_file_does_not_grow_with_what_others_replace(tmp_path):
    topic = Topic()
    resting, working = Worker(topic, tmp_path), Worker(topic, tmp_path)
    for each in (resting, working):
        each.plan(topic.add(50))

    def grown() -> int:
        (file,) = shared_folder(tmp_path, "prices").glob("*/data.mdb")
        before = file.stat().st_size
        for _ in range(60):
            working.plan(topic.add(8))
        return file.stat().st_size - before

    held = grown()
    resting.tables.release(60)
    resting.check()
    resting.tables.release()
    assert grown() < held / 5
    resting.plan(topic.ends())


def test_another_run_begins_anew_and_older_rows_go(tmp_path):
    """Its topic may be another one."""
    topic = Topic(1)
    Worker(topic, tmp_path).plan(topic.add(20))
    (shared_folder(tmp_path, "prices") / "notes").mkdir()
    other = Topic(2)
    other.add(7)
    Worker(other, tmp_path).plan(other.ends(), generation=2)
    folder, notes = sorted(shared_folder(tmp_path, "prices").iterdir())
    assert folder.name.startswith("2-")
    assert notes.name == "notes"
    with newest_rows(shared_folder(tmp_path, "prices"), shared_stores("prices")) as rows:
        assert seen(rows) == other.at(other.ends())


def test_rows_are_answered_once_they_are_whole_and_not_after_a_restart_of_the_machine(tmp_path, monkeypatch):
    topic, folder = Topic(), shared_folder(tmp_path, "prices")
    ends = topic.add(100)
    asked = []

    def read(*wanted):
        with newest_rows(folder, shared_stores("prices")) as rows:
            asked.append(rows)
        return topic.read(*wanted)

    tables = GlobalTables(TOPOLOGY, FAIL, tmp_path)
    tables.read_on(ranges(ends), read, 0, 1)
    assert len(asked) > 4
    assert not any(asked)
    with newest_rows(folder, shared_stores("prices")) as rows:
        assert seen(rows) == topic.at(ends)
        assert rows.about.positions == ends
    monkeypatch.setattr(shared_rows, "boot_id", lambda: "another")
    with newest_rows(folder, shared_stores("prices")) as rows:
        assert rows is None
    Worker(topic, tmp_path).plan(ends)
    with newest_rows(folder, shared_stores("prices")) as rows:
        assert seen(rows) == topic.at(ends)


def test_whoever_was_writing_to_a_file_that_is_lost_writes_nothing_to_the_next_one(tmp_path):
    topic = Topic()
    early = topic.add(100)
    late = topic.add(100)
    other, newcomer = Worker(topic, tmp_path), Worker(topic, tmp_path)

    def read(name, partition, start, end):
        if partition == 1 and start > early[1] - 10 and not any(other.wanted.values()):
            shutil.rmtree(shared_folder(tmp_path, "prices"))
            other.plan(late)
        return topic.read(name, partition, start, end)

    tables = GlobalTables(TOPOLOGY, FAIL, tmp_path)
    tables.read_on(ranges(early), read, 0, 1)
    assert any(other.wanted.values())
    assert seen(tables.by_store["prices"]) == topic.at(early)
    other.check()
    newcomer.plan(early)
    newcomer.plan(late)


CHILD = """
import sys
from pathlib import Path
from tests.pipelines.tasks.test_global_table import TOPOLOGY, FAIL, GlobalTables, Topic, ranges
topic, folder = Topic(), Path(sys.argv[1])
ends = topic.add(400)
read = 0
def slowly(*wanted):
    global read
    read += 1
    if read == int(sys.argv[2]):
        print("there", flush=True)
        sys.stdin.readline()
    return topic.read(*wanted)
GlobalTables(TOPOLOGY, FAIL, folder).read_on(ranges(ends), slowly, 0, 1)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_builder_that_is_killed_or_frozen_in_its_turn_holds_nobody_up_and_spoils_nothing(tmp_path, monkeypatch, how):
    monkeypatch.setattr(global_table, "PATIENCE_S", 0.2)
    topic = Topic()
    ends = topic.add(400)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", CHILD, str(tmp_path), "20"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as child:
        try:
            assert child.stdout.readline() == b"there\n"
            os.kill(child.pid, how)
            if how is signal.SIGKILL:
                child.wait()
            worker = Worker(topic, tmp_path)
            worker.plan(ends)
            worker.plan(topic.add(10))
            if how is signal.SIGKILL:
                whole = topic.reads
                topic.reads = 0
                Worker(topic, tmp_path / "another").plan(worker.wanted)
                assert whole < topic.reads - 15, "it went on where the other one had come to"
                return
            later = Worker(topic, tmp_path)
            later.plan(topic.ends())
            os.kill(child.pid, signal.SIGCONT)
            child.stdin.write(b"\n")
            child.stdin.close()
            assert child.wait(60) == 0, "it ends its turn"
            for each in (worker, later):
                each.check()
                each.plan(topic.add(3))
                assert not each.tables._by_topic["prices"]._own.rows, "they share again"
        finally:
            child.kill()
