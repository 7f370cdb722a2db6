"""Where the time of epochs goes, beside clocks around the driver and sleeps at known places."""

from __future__ import annotations

import csv
import json
import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta
from threading import Event

import pytest

from tests.pipelines.spark.inline import Place, Topics
from weir import Application, Count, Json, StreamsBuilder, String
from weir.pipelines.operations.profile import ALL, profile_summary
from weir.pipelines.spark.profile import COMMIT, EPOCHS, OPERATORS, SHARES, SPARK, Done, Profile
from weir.state.stopwatch import NodeWork, Work

PARTITIONS, RECORDS, EACH = 2, 60, 20
TOLERANCE = 0.01
"""By how much the shares of a task's epoch may differ from 1 (docs/operators-guide.md)."""
SLEEP_S, SLOW = 0.03, "KSTREAM-MAPVALUES-0000000001"


@dataclass(frozen=True)
class Click:
    page: str


def slowly(click: Click) -> Click:
    time.sleep(SLEEP_S / EACH)
    return click


@pytest.fixture
def place(tmp_path):
    """Two sub-topologies with two tasks each; every epoch ends with a commit."""
    rows = {
        ("clicks", partition): [
            (b"user-%d" % (number % 9), json.dumps({"page": f"p{number % 4}"}).encode(), 1_000 + number)
            for number in range(RECORDS)
        ]
        for partition in range(PARTITIONS)
    }
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=Json(Click))
    clicks.map_values(slowly).group_by("page").agg("pages", n=Count()).to_delta("pages")
    application = Application("shop", builder, commit_interval=timedelta(milliseconds=1))
    return Place(application, Topics(rows), tmp_path, max_records=EACH)


@dataclass
class Ran:
    """A profiled run, its rows, and what clocks around it say."""

    rows: list[dict[str, str]]
    operators: list[dict[str, str]]
    epoch_s: list[float]
    """Of each epoch, without its commit."""
    commit_s: list[float]

    def seconds(self, share: str, sub_topology: str = "") -> float:
        return sum(
            float(row[share]) * float(row["seconds"]) for row in self.rows if row["task"].startswith(sub_topology)
        )


def table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def run(place, on_step=lambda step: None) -> Ran:
    folder = place.folder / "profile"
    place.profiling = Profile(folder)
    driver = place.driver(on_step)
    took = defaultdict(list)

    def timed(what, call):
        def around(*arguments, **options):
            began_s = time.monotonic()
            result = call(*arguments, **options)
            if what == "commit" or result is not None:
                took[what].append(time.monotonic() - began_s)
            return result

        return around

    driver._coordinator.run_epoch = timed("epoch", driver._coordinator.run_epoch)
    driver._coordinator.commit = timed("commit", driver._coordinator.commit)
    driver.run(Event(), until_caught_up=True)
    place.profiling.close()
    return Ran(table(folder / EPOCHS), table(folder / OPERATORS), took["epoch"], took["commit"])


def test_the_shares_of_each_task_add_up_to_its_epoch(place):
    ran = run(place)
    assert {row["task"] for row in ran.rows} == {"0_0", "0_1", "1_0", "1_1"}
    for row in ran.rows:
        shares = [float(row[share]) for share in SHARES]
        assert min(shares) >= 0
        assert sum(shares) == pytest.approx(1, abs=TOLERANCE), row
    by_epoch = {int(row["epoch"]): float(row["seconds"]) for row in ran.rows}
    assert len(by_epoch) == len(ran.epoch_s)
    assert sum(by_epoch.values()) == pytest.approx(sum(ran.epoch_s) + sum(ran.commit_s), rel=0.1, abs=0.15)


def test_time_belongs_to_what_it_is_spent_on(place):
    """Whatever sleeps at a known place has at least its sleeps; tasks of one slot wait for each other meanwhile."""

    def on_step(step):
        if step in ("state written", "pivot appended"):
            time.sleep(SLEEP_S)

    reader, slept = place.topics.reader, []

    def slow_reader(topic, partition):
        found = reader(topic, partition)
        read = found.read

        def slow_read(*arguments, **options):
            time.sleep(SLEEP_S)
            slept.append(topic)
            return read(*arguments, **options)

        found.read = slow_read
        return found

    place.topics.reader = slow_reader
    ran = run(place, on_step)
    assert ran.seconds("fetch") >= len(slept) * SLEEP_S > 0
    assert ran.seconds("operators", "0_") >= 0.9 * PARTITIONS * RECORDS / EACH * SLEEP_S
    assert ran.seconds("state") >= 0.9 * len(ran.rows) * SLEEP_S
    commit_s = {row["epoch"]: float(row[COMMIT]) * float(row["seconds"]) for row in ran.rows}
    assert sum(commit_s.values()) >= 0.99 * len(ran.commit_s) * SLEEP_S > 0
    assert sum(commit_s.values()) == pytest.approx(sum(ran.commit_s), abs=0.2)
    of_epoch = defaultdict(list)
    for row in ran.rows:
        of_epoch[row["epoch"]].append(row)
    for rows in of_epoch.values():
        for row in rows:
            others = [each for each in rows if each is not row]
            busy_s = sum(float(each["seconds"]) * (1 - float(each[SPARK]) - float(each[COMMIT])) for each in others)
            assert float(row["seconds"]) * float(row[SPARK]) >= 0.9 * busy_s


def test_operators_have_their_rows_and_part_of_their_tasks_time(place):
    ran = run(place)
    rows = defaultdict(int)
    for row in ran.operators:
        rows[row["operator"]] += int(row["rows"])
    assert rows[SLOW] == PARTITIONS * RECORDS
    slow_s = sum(float(row["seconds"]) for row in ran.operators if row["operator"] == SLOW)
    assert 0.9 * PARTITIONS * RECORDS / EACH * SLEEP_S <= slow_s <= ran.seconds("operators", "0_") * (1 + TOLERANCE)
    assert sum(int(row["records"]) for row in ran.rows if row["task"].startswith("0_")) == PARTITIONS * RECORDS


def test_the_summary_weighs_epochs_by_their_time(tmp_path):
    def done(task, given_s, accepted_s, **seconds):
        return Done(
            generation=1,
            epoch=1,
            task=task,
            slot=0,
            records=10,
            given_s=given_s,
            accepted_s=accepted_s,
            work=Work(seconds=seconds, nodes={"all, of them": NodeWork(seconds=1, rows=5)}),
        )

    profile = Profile(tmp_path / "profile")
    profile.committed(100)  # before any epoch, as when a program has changed
    profile.done(done("0_0", 10, 11, fetch=1.0, decode=0.5))
    profile.epoch(10, 12)
    profile.committed(2)
    profile.epoch(14, 15)  # without tasks: the commit stays with the one before
    profile.done(done("0_0", 20, 26, fetch=3.0))
    profile.done(done("0_1", 18, 26, state=4.0))  # left with its plan by an earlier epoch
    profile.epoch(20, 26)
    profile.done(done("0_0", 30, 31, files=1.0))  # when the run ended
    profile.close()
    found = {row["task"]: row for row in profile_summary(tmp_path / "profile").to_dicts()}
    assert list(found) == ["0_0", "0_1", ALL]
    assert found["0_0"] | {"task": ""} == pytest.approx(
        {
            "task": "",
            "epochs": 3,
            "records": 30,
            "seconds": 4 + 6 + 1,
            "fetch": 4 / 11,
            "decode": 0.5 / 11,
            "operators": 0,
            "state": 0,
            "encode": 0,
            "files": 1 / 11,
            "commit": 2 / 11,
            "spark": 3.5 / 11,
        }
    )
    assert (found["0_1"]["seconds"], found["0_1"]["state"], found["0_1"]["spark"]) == pytest.approx((8, 0.5, 0.5))
    assert found[ALL]["seconds"] == pytest.approx(19)


def test_without_a_profile_nothing_is_written_and_the_rows_are_the_same(place, tmp_path):
    run(place)
    profiled = sorted(path.name for path in tmp_path.iterdir())
    other = Place(place.application, place.topics, tmp_path / "other", max_records=EACH)
    other.run()
    assert sorted(path.name for path in other.folder.iterdir()) == [name for name in profiled if name != "profile"]
