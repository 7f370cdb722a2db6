"""A migration has the application to itself for as long as it takes, and takes only what its program has committed."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.pipelines.spark.inline import Place as RunPlace
from tests.pipelines.spark.inline import Topics
from tests.waiting import wait_for
from weir.infra.control import ControlDatabase, LeaseHeldError
from weir.infra.settings import Settings
from weir.pipelines.migrate.migration import Migration
from weir.pipelines.operations import at_rest
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.migration import Place, _held, move_to_kafka_streams
from weir.pipelines.operations.registry import load_reference, register
from weir.state.commit.protocol import newest_commit

PROGRAM = """
from weir import Application, Count, Last, StreamsBuilder, String
builder = StreamsBuilder()
stream = builder.stream("clicks", key=String("user"), value=String("page"))
stream.group_by_key().agg("users", n=Count(){more}).to_delta("u")
app = Application("clicks", builder)
"""
ROWS = [(b"u%d" % (n % 3), b"p", n * 1_000) for n in range(20)]


@pytest.fixture
def settings(tmp_path):
    return Settings(dir=tmp_path)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """``written(name, more)`` is the reference of a program in a file of its own."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, more: str = "") -> str:
        (tmp_path / f"{name}.py").write_text(PROGRAM.format(more=more))
        return f"{name}:app"

    return write


def run(settings: Settings, reference: str, rows: list) -> None:
    place = RunPlace(load_reference(reference), Topics({("clicks", 0): rows}), settings.dir)
    assert place.warehouse == settings.warehouse
    place.run()
    register(settings, "clicks", reference)


def columns(settings: Settings) -> list[str]:
    return pl.scan_delta(settings.warehouse / "clicks" / "u").collect_schema().names()


def to_kafka_streams(settings: Settings) -> None:
    move_to_kafka_streams(
        settings,
        "clicks",
        "ks",
        state_dir=None,
        changelogs={},
        serdes={},
        replace=False,
        empty_stores=False,
        dry_run=False,
    )


def test_an_edited_program_is_refused_until_it_has_run_and_no_table_is_changed(settings, written):
    run(settings, written("before"), ROWS)
    before, epoch = columns(settings), newest_commit(settings.warehouse, "clicks").epoch
    edited = written("edited", ', last=Last("page")')
    register(settings, "clicks", edited)
    with pytest.raises(OperationError, match=f"run it first with `weir run {edited} --until-caught-up`"):
        to_kafka_streams(settings)
    assert columns(settings) == before
    assert newest_commit(settings.warehouse, "clicks").epoch == epoch
    run(settings, edited, ROWS)  # what the message says, without new records
    assert "last" in columns(settings)
    with _held(settings, load_reference(edited)) as commit:
        assert commit == newest_commit(settings.warehouse, "clicks")


def test_what_a_driver_committed_before_the_lease_was_taken_is_migrated(settings, written, monkeypatch):
    reference = written("late")
    run(settings, reference, ROWS)
    acquire = ControlDatabase.acquire_lease

    def after_another_run(*arguments, **options):
        monkeypatch.undo()
        run(settings, reference, [*ROWS, (b"u9", b"p", 99_000)])
        return acquire(*arguments, **options)

    monkeypatch.setattr(ControlDatabase, "acquire_lease", after_another_run)
    with _held(settings, load_reference(reference)) as commit:
        [positions] = [task.positions for task in commit.tasks.values() if task.positions]
    assert positions == {"clicks": {0: 21}}


def test_the_lease_is_held_and_renewed_while_a_migration_is_written(settings, written, monkeypatch):
    monkeypatch.setattr(at_rest, "LEASE_TTL_S", 0.2)
    database = ControlDatabase(settings.control_database_url)
    seen: list[int] = []

    def write(self: Migration, warehouse: Path) -> bool:
        def heard_at_ms() -> int:
            return database.application_status("clicks").heartbeat_at_ms

        taken_at_ms = heard_at_ms()
        wait_for(lambda: heard_at_ms() > taken_at_ms + 200, "it is renewed for longer than it lasts", every_s=0.01)
        with pytest.raises(LeaseHeldError):
            database.acquire_lease("clicks", owner="a driver", pid=1, host="h", ttl_s=60)
        seen.append(1)
        return True

    monkeypatch.setattr(Migration, "write", write)
    reference = written("held")
    application = load_reference(reference)
    migration = Migration(application=application, source="a test", positions={}, topic_ids={}, counts={0: 1})
    place = Place(settings=settings, application=application, admin=None, topic_counts={}, reference=reference)
    place.carry_out(migration, dry_run=False)
    assert seen == [1]
    assert not database.application_status("clicks").is_running
