"""The compaction sensor starts a compaction once for what has gathered since the last one."""

import dagster as dg

from tests.orchestration.applications import FLIGHTS
from tests.orchestration.readings import remembered
from tests.state.quarantine_folders import DAY_S, put
from weir.orchestration.jobs.compaction import COMPACTION, compaction_job
from weir.orchestration.sensors.compaction import compaction_sensor


def test_closed_segments_start_one_compaction_and_its_pool_holds_one_run(committer, commit_of, tick, instance):
    sensor = compaction_sensor([FLIGHTS], compaction_job([FLIGHTS]))
    committer.commit(commit_of(9_999))
    assert isinstance(tick(sensor), dg.SkipReason)
    committer.commit(commit_of(10_000))
    due = tick(sensor)
    [request] = due.run_requests
    assert (request.run_key, request.job_name, request.partition_key) == (
        "flights-1.10000",
        "weir_compaction",
        "flights",
    )
    committer.commit(commit_of(19_999))
    assert isinstance(tick(sensor, due.cursor), dg.SkipReason)
    limits = {limit.name: limit.limit for limit in instance.event_log_storage.get_pool_limits()}
    assert limits[COMPACTION] == 1


def test_folders_that_quarantine_may_no_longer_keep_start_one_compaction(committer, commit_of, tick, settings):
    sensor = compaction_sensor([FLIGHTS], compaction_job([FLIGHTS]))
    committer.commit(commit_of(1))
    state = settings.state_dir / "flights"
    put(state, "young", age_s=6 * DAY_S)
    assert isinstance(tick(sensor, remembered("0 1.000")), dg.SkipReason)
    put(state, "a", age_s=9 * DAY_S)
    put(state, "b", age_s=8 * DAY_S)
    due = tick(sensor, remembered("0 1.000"))
    [request] = due.run_requests
    assert due.cursor == remembered("0 1.000"), "what there is to merge is still counted from the same moment"
    assert request.tags["weir/reason"] == "2 folders, 2.1 MB, would be removed from quarantine"
    [again] = tick(sensor, due.cursor).run_requests
    assert again.run_key == request.run_key, "which Dagster runs once"
    put(state, "c", age_s=7.5 * DAY_S)
    [later] = tick(sensor, due.cursor).run_requests
    assert later.run_key != request.run_key
