"""``commits.expectations`` in ``weir sql``: what each commit counted, as a plain count of its records says."""

from __future__ import annotations

import pytest

from tests.pipelines.spark import counted_numbers
from weir.infra.settings import Settings
from weir.pipelines.operations import sql as operation
from weir.pipelines.operations.registry import register
from weir.state.commit.rollup import roll_up
from weir.state.types import StateId

pytestmark = pytest.mark.spark


def wanted(warehouse) -> list[tuple]:
    found, before = [], (0, 0)
    for record in counted_numbers.commits(warehouse):
        read = counted_numbers.read_by(record)
        failed = sum(n < 0 for n in read)
        passed = len(read) - failed
        new = passed - before[0], failed - before[1]
        if any(new):
            found.append((record.generation, record.epoch, *new, new[1], passed, failed, failed))
        before = passed, failed
    return found


def test_each_commit_has_what_a_plain_count_of_its_records_says(tmp_path, session, monkeypatch):
    monkeypatch.setattr(operation, "sql_session", lambda settings: session)
    monkeypatch.setattr(operation, "stop_session", lambda session: None)
    settings = Settings.load(tmp_path)
    place = counted_numbers.place(tmp_path)
    register(settings, "numbers", "tests.pipelines.spark.counted_numbers:app")
    place.run()
    with operation.opened_sql(settings, "numbers") as sql:
        assert "commits.expectations" in sql.run("SHOW TABLES")["table"].to_list()
        query = (
            "SELECT generation, epoch, passed, failed, dropped, total_passed, total_failed, total_dropped "
            "FROM commits.expectations WHERE expectation = 'not_negative' ORDER BY epoch"
        )
        found = sql.run(query).rows()
        assert found == wanted(settings.warehouse)
        assert len(found) > 3
        assert sum(row[2] for row in found) == sum(n >= 0 for n in counted_numbers.NUMBERS)
        assert roll_up(settings.warehouse / "numbers", through=StateId(*found[-1][:2]).version) > 1
        assert sql.run(query).rows() == found
        assert sql.run("SELECT committed_at FROM commits.expectations").schema.dtypes()[0].is_temporal()
