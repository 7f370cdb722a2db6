"""Much uncommitted state makes the sensor request a commit: one at a time, with the reason, and the answer is shown."""

from dataclasses import replace

import dagster as dg

from tests.orchestration.applications import FLIGHTS
from tests.orchestration.readings import metric, observed, remembered, task, wait_for_next_millisecond
from weir.orchestration.sensors.uncommitted import uncommitted_sensor
from weir.orchestration.thresholds import Thresholds

MUCH = Thresholds().uncommitted_max_bytes + 1


def test_much_uncommitted_state_requests_one_commit_and_its_answer_is_shown_once(database, drive, tick):
    sensor = uncommitted_sensor([FLIGHTS])
    assert isinstance(tick(sensor), dg.SkipReason), "no driver is running"
    drive()
    database.report_tasks("flights", [task(uncommitted_bytes=MUCH - 1), task(task="0_1")])
    tick(sensor)
    assert database.pending_requests("flights") == [], "exactly the limit does not exceed it"
    database.report_tasks("flights", [task(uncommitted_bytes=MUCH - 1), task(task="0_1", uncommitted_bytes=1)])
    database.add_metric("flights", metric(lag=900))
    tick(sensor)
    [request] = database.pending_requests("flights")
    assert (request.kind, request.requested_by) == ("commit", "dagster sensor weir_uncommitted")
    assert request.reason.count("32.0 MiB") == 2, "how much there is, and the limit"
    assert f"request {request.id} " in tick(sensor).skip_message
    assert len(database.pending_requests("flights")) == 1
    database.finish_request(request.id, "committed epoch 9")
    wait_for_next_millisecond()
    database.add_metric("flights", metric(lag=20))
    answer = tick(sensor)
    assert observed(answer) == ["committed epoch 9"]
    [event] = answer.asset_events
    assert event.metadata["brought"].value == "lag 900 before, 20 0 s after"
    assert isinstance(tick(sensor, answer.cursor), dg.SkipReason)


def test_a_second_commit_is_requested_after_the_cooldown_and_only_for_what_was_reported_since(database, drive, tick):
    def sensor(cooldown_s: float) -> dg.SensorDefinition:
        return uncommitted_sensor([replace(FLIGHTS, thresholds=Thresholds(cooldown_s=cooldown_s))])

    drive()
    database.report_tasks("flights", [task(uncommitted_bytes=MUCH)])
    tick(sensor(0))
    [first] = database.pending_requests("flights")
    database.finish_request(first.id, "committed epoch 9")
    tick(sensor(0), remembered(str(first.id)))
    assert database.pending_requests("flights") == [], "the reading is older than the commit"
    wait_for_next_millisecond()
    database.report_tasks("flights", [task(uncommitted_bytes=MUCH)])
    tick(sensor(600), remembered(str(first.id)))
    assert database.pending_requests("flights") == []
    tick(sensor(0), remembered(str(first.id)))
    assert len(database.pending_requests("flights")) == 1
