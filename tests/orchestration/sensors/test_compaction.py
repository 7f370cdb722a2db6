"""The compaction sensor starts a compaction once for what has gathered since the last one."""

import dagster as dg

from tests.orchestration.applications import FLIGHTS
from weir.orchestration.jobs.compaction import compaction_pool
from weir.orchestration.sensors.compaction import compaction_sensor


def test_closed_segments_start_one_compaction_and_its_pool_holds_one_run(committer, commit_of, tick, instance):
    sensor = compaction_sensor(FLIGHTS, dg.GraphDefinition(name="compaction").to_job())
    committer.commit(commit_of(9_999))
    assert isinstance(tick(sensor), dg.SkipReason)
    committer.commit(commit_of(10_000))
    due = tick(sensor)
    assert [request.run_key for request in due.run_requests] == ["flights-1.10000"]
    committer.commit(commit_of(19_999))
    assert isinstance(tick(sensor, due.cursor), dg.SkipReason)
    limits = {limit.name: limit.limit for limit in instance.event_log_storage.get_pool_limits()}
    assert limits[compaction_pool(FLIGHTS)] == 1
