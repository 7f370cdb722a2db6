"""Which days a backfill can be asked for: those of the topics' records and of the outputs' rows."""

from dataclasses import dataclass
from datetime import UTC, date, datetime

import polars as pl
import pytest
from confluent_kafka import Producer

from weir import Application, FailOnInvalidTimestamp, Int64, Json, StreamsBuilder, String
from weir.infra.settings import Settings
from weir.pipelines.backfill.shadow import Days
from weir.pipelines.operations import days
from weir.pipelines.operations.days import held_days
from weir.state.commit.files import write_file
from weir.state.commit.record import CommitRecord, TaskCommit
from weir.state.commit.tables import AppendTable
from weir.state.types import StateId

WITHIN = Days(first=date(2024, 1, 1), end=date(2025, 1, 1))
NUMBERS = Int64("n")
NOBODY = "127.0.0.1:1"


def facts(topic: str, value=NUMBERS, **source) -> Application:
    """Numbers as they come, each of the day of its record."""
    builder = StreamsBuilder()
    builder.stream(topic, key=String("key"), value=value, **source).to_delta("facts")
    return Application("numbers", builder)


@dataclass(frozen=True)
class Order:
    n: int
    ordered_at: datetime


def commit(topic: str, *partitions: int) -> CommitRecord:
    read = TaskCommit(state=StateId(1, 1), instance="i", positions={topic: dict.fromkeys(partitions, 9)})
    return CommitRecord(kind="commit", generation=1, epoch=1, at_ms=0, fingerprint="f", tasks={"numbers": read})


def at(day: str, hour: int) -> datetime:
    return datetime.fromisoformat(day).replace(hour=hour, tzinfo=UTC)


def write(settings: Settings, application: Application, *times: datetime) -> None:
    """A file with a row of each of the times."""
    (spec,) = application.topology.table_specs()
    rows = pl.DataFrame({"key": "a", "n": 1, "_ts": times, "_epoch": 1, "_seq": 0, "_deleted": False}, spec.schema)
    folder = settings.warehouse / application.id
    AppendTable.create(folder, spec, application.id).append(1, [write_file(folder, spec, rows)])


def between(first: str, end: str) -> Days:
    return Days(first=date.fromisoformat(first), end=date.fromisoformat(end))


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """The machine may be busy."""
    monkeypatch.setattr(days, "ANSWER_LIMIT_S", 10.0)


@pytest.fixture
def away(tmp_path, monkeypatch):
    """Settings with brokers that do not answer, which nobody waits for."""
    monkeypatch.setattr(days, "ANSWER_LIMIT_S", 0.05)
    return Settings(dir=tmp_path / "weir", bootstrap_servers=NOBODY)


def test_without_brokers_they_are_the_days_of_the_rows(away):
    application, newest = facts("numbers"), commit("numbers", 0)
    assert held_days(application, away, newest, WITHIN) is None
    write(away, application, at("2024-02-28", 23), at("2024-03-02", 0))
    assert held_days(application, away, newest, WITHIN) == between("2024-02-28", "2024-03-03")


@pytest.mark.parametrize(
    ("first", "end", "found"),
    [
        ("2024-02-29", "2024-03-01", ("2024-02-29", "2024-03-01")),
        ("2024-03-02", "2024-03-09", ("2024-03-02", "2024-03-03")),
        ("2024-03-03", "2024-03-09", None),
        ("2024-02-01", "2024-02-28", None),
    ],
)
def test_they_are_among_those_that_are_asked_about(away, first, end, found):
    application, within = facts("numbers"), between(first, end)
    write(away, application, at("2024-02-28", 0), at("2024-03-02", 23))
    held = held_days(application, away, commit("numbers", 0), within)
    assert held == (None if found is None else between(*found))


@pytest.mark.broker
def test_they_are_the_days_from_the_first_record_to_the_latest_of_all_partitions(tmp_path, broker, topic):
    settings, name = Settings(dir=tmp_path, bootstrap_servers=broker), topic(3, retention_ms=-1)
    application, newest = facts(name), commit(name, 0, 1, 2)
    assert held_days(application, settings, newest, WITHIN) is None
    producer = Producer({"bootstrap.servers": broker})
    for partition, times in enumerate(
        [[at("2024-03-01", 5), at("2024-03-04", 7), at("2024-03-02", 1)], [at("2024-02-27", 23)], []]
    ):
        for moment in times:
            producer.produce(name, b"1", b"a", partition, timestamp=round(moment.timestamp() * 1000))
    assert producer.flush(30) == 0
    assert held_days(application, settings, newest, WITHIN) == between("2024-02-27", "2024-03-05")


@pytest.mark.broker
def test_they_are_those_of_the_rows_too_since_a_topics_first_record_need_not_be_its_earliest(tmp_path, broker, topic):
    settings, name = Settings(dir=tmp_path, bootstrap_servers=broker), topic(retention_ms=-1)
    application, times = facts(name), [at(f"2024-03-0{day}", 12) for day in (4, 1, 2)]
    producer = Producer({"bootstrap.servers": broker})
    for moment in times:
        producer.produce(name, b"1", b"a", 0, timestamp=round(moment.timestamp() * 1000))
    assert producer.flush(30) == 0
    assert held_days(application, settings, commit(name, 0), WITHIN) == between("2024-03-04", "2024-03-05")
    write(settings, application, *times)
    assert held_days(application, settings, commit(name, 0), WITHIN) == between("2024-03-01", "2024-03-05")


@pytest.mark.broker
def test_brokers_are_not_asked_about_times_that_the_program_takes_from_elsewhere(tmp_path, broker, topic):
    settings, name = Settings(dir=tmp_path, bootstrap_servers=broker), topic()
    application = facts(name, Json(Order), timestamp=FailOnInvalidTimestamp(of="ordered_at"))
    assert held_days(application, settings, commit(name, 0), WITHIN) is None
