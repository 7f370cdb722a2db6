"""The quarantine as the check, the ingest's metadata and the health sensor show it."""

import time

import dagster as dg
import pytest

from tests.orchestration.applications import FLIGHTS
from tests.orchestration.readings import metric, observed, task
from tests.state.quarantine_folders import DAY_S, MIB, put
from weir.orchestration.checks.quarantine import quarantine_check
from weir.orchestration.resources import WeirResource
from weir.orchestration.sensors.commits import commits_sensor
from weir.orchestration.sensors.health import health_sensor

COMPACTS = "the job weir_compaction with the partition flights deletes 1 folder"
BEYOND = f"the quarantine takes 4.2 MB, more than 1.0 MB: {COMPACTS}"


@pytest.fixture
def state(settings):
    return settings.state_dir / "flights"


@pytest.fixture
def check(settings):
    """``check()`` runs the check; its result's metadata as plain values."""

    def run() -> tuple[dg.AssetCheckResult, dict[str, object]]:
        result = quarantine_check(FLIGHTS)(WeirResource(dir=str(settings.dir)))
        assert isinstance(result, dg.AssetCheckResult)
        return result, {name: entry.value for name, entry in result.metadata.items()}

    return run


def test_the_check_passes_within_the_limits_and_warns_beyond_them(check, state, monkeypatch):
    result, metadata = check()
    assert (result.passed, metadata["quarantine_folders"], metadata["quarantine_bytes"]) == (True, 0, 0)
    folder = put(state, "a", age_s=6 * DAY_S, mib=4)
    result, metadata = check()
    assert (result.passed, result.description) == (True, "4.0 MiB in quarantine")
    assert metadata["quarantine_folders"] == 1
    assert 4 * MIB <= metadata["quarantine_bytes"] < 4.1 * MIB
    assert metadata["quarantine_oldest_at"] == pytest.approx(time.time() - 6 * DAY_S, abs=60)
    assert metadata["quarantine_path"] == str(folder.parent)
    assert (metadata["max_days"], metadata["max_bytes"]) == (7, 10_000_000_000)
    monkeypatch.setenv("WEIR_QUARANTINE_MAX_BYTES", "1000000")
    result, _ = check()
    assert (result.passed, result.severity, result.description) == (False, dg.AssetCheckSeverity.WARN, BEYOND)


def test_the_ingest_shows_what_is_in_quarantine(committer, commit_of, tick, shown, state):
    folder = put(state, "a", age_s=DAY_S, mib=4)
    committer.commit(commit_of(1))
    tick(commits_sensor([FLIGHTS]))
    metadata = shown(FLIGHTS.ingest)
    assert metadata["quarantine_folders"] == 1
    assert 4 * MIB <= metadata["quarantine_bytes"] < 4.1 * MIB
    assert metadata["quarantine_oldest_at"] == pytest.approx(time.time() - DAY_S, abs=60)
    assert metadata["quarantine_path"] == str(folder.parent)


def test_the_health_sensor_warns_while_it_is_beyond_its_limit(database, drive, tick, state, monkeypatch):
    drive()
    database.report_tasks("flights", [task()])
    database.add_metric("flights", metric())
    put(state, "a", age_s=6 * DAY_S, mib=4)
    assert isinstance(tick(health_sensor([FLIGHTS])), dg.SkipReason)
    with monkeypatch.context() as patch:
        patch.setenv("WEIR_QUARANTINE_MAX_BYTES", "1000000")
        began = tick(health_sensor([FLIGHTS]))
        assert observed(began) == [BEYOND]
        assert isinstance(tick(health_sensor([FLIGHTS]), began.cursor), dg.SkipReason)
    assert observed(tick(health_sensor([FLIGHTS]), began.cursor)) == ["over: quarantine"]
