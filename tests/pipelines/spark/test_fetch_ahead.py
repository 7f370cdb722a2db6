"""A worker has what its next plans read fetched while it carries out others."""

from __future__ import annotations

import pytest

from tests.pipelines.spark.log_consumer import log_reader
from weir.infra.kafka.reader import PartitionReader
from weir.pipelines.spark import worker
from weir.pipelines.spark.worker import AHEAD, Worker, WorkerSettings, run_plans
from weir.pipelines.tasks.epoch import TaskSettings
from weir.pipelines.tasks.plan import OffsetRange, TaskPlan
from weir.state.types import StateId, TaskId

TOPIC, PLANS = "events", 40


def plan(partition: int) -> TaskPlan:
    return TaskPlan(
        task=TaskId(0, partition),
        instance="1",
        state=StateId(1, 1),
        expected=None,
        committed=None,
        now_ms=0,
        ranges=(OffsetRange(topic=TOPIC, partition=partition, start=partition, end=100),),
    )


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """Of a worker that this process has; its tasks are not run."""
    settings = WorkerSettings(
        reference="weir.pipelines.examples.flights:app",
        kafka={},
        tasks=TaskSettings(application_folder=str(tmp_path), state_folder=str(tmp_path), partition_counts={}),
    )
    made = Worker(settings)
    made.readers = {(TOPIC, number): log_reader(TOPIC, number, lambda: []) for number in range(PLANS)}
    monkeypatch.setattr(worker, "_workers", [(settings, made)])
    return settings


def test_what_the_next_plans_read_is_fetched_from_where_they_begin(settings, monkeypatch):
    begun: dict[int, int] = {}
    monkeypatch.setattr(PartitionReader, "fetch_ahead", lambda reader, start: begun.setdefault(reader.partition, start))
    monkeypatch.setattr("weir.pipelines.tasks.epoch.EpochRunner.run", lambda runner, plan: dict(begun))
    found = list(run_plans(settings, [plan(number) for number in range(PLANS)]))
    assert found == [{at: at for at in range(min(number + AHEAD, PLANS))} for number in range(PLANS)]


def test_reading_goes_on_where_it_was_fetched_ahead(monkeypatch):
    reader = log_reader(TOPIC, 0, lambda: [(b"k", b"v", number) for number in range(10)])
    reader.fetch_ahead(4)
    monkeypatch.setattr(reader, "_seek", lambda offset: pytest.fail(f"sought {offset}"))
    assert reader.read(4, 7).frame["offset"].to_list() == [4, 5, 6]
    reader.fetch_ahead(7)
    assert reader.read(7, 10).next_offset == 10
