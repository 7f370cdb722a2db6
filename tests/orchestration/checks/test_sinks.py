"""Sinks outside the warehouse as Dagster shows them: an asset each, a check, and warnings of the health sensor."""

import os
import time

import dagster as dg
import msgspec
import pytest

from tests.orchestration.applications import SHOP
from tests.orchestration.readings import metric, observed, task
from weir.infra.control import ControlDatabase, this_host
from weir.orchestration.assets.ingest import ingest_assets
from weir.orchestration.checks.sinks import sink_results
from weir.orchestration.sensors import reports
from weir.orchestration.sensors.health import health_sensor
from weir.orchestration.sensors.reports import reports_sensor
from weir.pipelines.operations.registry import register
from weir.pipelines.publishing.publisher import MarkLostError
from weir.pipelines.publishing.state import RefusedPlace, SinkState

REFUSED = "a row is refused: too large; to put it aside, launch weir_sink_skip with the partition shop:orders"


@pytest.fixture
def told(settings):
    """``told(...)`` lets a running driver report its sink."""
    register(settings, "shop", "shop:app")
    database = ControlDatabase(settings.control_database_url)
    database.acquire_lease("shop", owner="test", pid=os.getpid(), host=this_host(), ttl_s=60)

    def tell(**fields):
        state = SinkState(**{"sink": "orders", "target": "topic: checked", **fields})
        database.report_tasks("shop", [task()])
        database.add_metric("shop", metric())
        database.report_sinks("shop", [msgspec.to_builtins(state)])

    return tell


@pytest.fixture
def check(settings):
    def result():
        (found,) = sink_results(SHOP, settings)
        return found

    def run():
        found = result()
        return found.passed, found.description

    run.metadata = lambda: result().metadata
    return run


def test_each_sink_is_an_asset_of_its_kind():
    specs = {spec.key: spec for spec in ingest_assets(SHOP).specs}
    spec = specs[dg.AssetKey(["shop", "sink", "orders"])]
    assert "kafka" in spec.kinds
    assert spec.description == "What leaves for topic: checked, once committed."


def test_a_sink_that_lags_refuses_a_row_or_is_well_again_is_reported_at_the_next_look(told, tick):
    sensor, cursor = reports_sensor([SHOP]), None

    def reported() -> list[tuple[bool, str]]:
        nonlocal cursor
        answer = tick(sensor, cursor)
        cursor = getattr(answer, "cursor", None) or cursor
        events = answer.asset_events if isinstance(answer, dg.SensorResult) else ()
        return [(event.passed, event.description) for event in events if event.check_name == "delivered"]

    told(epoch=4)
    assert reported() == [(True, "all is published")]
    told(waiting_rows=3, waiting_since_s=time.time() - 1_000, error="no broker")
    [(passed, sentence)] = reported()
    assert (passed, sentence.startswith("3 rows wait")) == (False, True)
    told(waiting_rows=4, waiting_since_s=time.time() - 1_100, error="no broker")
    assert reported() == [], "only its figures have changed"
    told(waiting_rows=4, waiting_since_s=time.time() - 1_100, error="too large", awaits="skip")
    assert reported() == [(False, REFUSED)]
    told(epoch=5)
    assert reported() == [(True, "all is published")]


def test_sinks_that_cannot_be_looked_at_keep_no_other_check_from_being_reported(told, tick, monkeypatch):
    def broken(*_: object) -> None:
        raise OSError("the disk is gone")

    told(epoch=4)
    monkeypatch.setattr(reports, "sink_results", broken)
    answer = tick(reports_sensor([SHOP]))
    assert {event.check_name for event in answer.asset_events} == {"running", "lag"}
    assert "delivered could not be made: the disk is gone" in answer.skip_reason.skip_message


def test_the_check_passes_while_rows_are_delivered_and_says_what_is_wrong_otherwise(check, told):
    now_s = time.time()
    told(epoch=4)
    assert check() == (True, "all is published")
    told(waiting_rows=3, waiting_since_s=now_s - 20)
    assert check() == (True, "publishing")
    told(waiting_rows=3, waiting_bytes=512, waiting_since_s=now_s - 1000, error="no broker")
    lag = check.metadata()
    assert (lag["waiting_rows"].value, lag["waiting_bytes"].value) == (3, 512)
    assert 1000 <= lag["waiting_s"].value < 1100
    passed, text = check()
    assert not passed
    assert text.startswith("3 rows wait, the oldest for 1,00")
    assert text.endswith("s: no broker")
    told(waiting_rows=1, waiting_since_s=now_s, error="too large", awaits="skip")
    assert check() == (False, REFUSED)
    told(waiting_rows=1, waiting_since_s=now_s, error=str(MarkLostError("shop", "orders", 4, None)), awaits="resume")
    passed, text = check()
    assert not passed
    assert text.endswith("all the same, run the job weir_sink_resume with the partition shop:orders")
    assert "weir sink" not in check.metadata()["state"].text
    told(refused_rows=2, refused_reason="too large")
    passed, text = check()
    assert not passed
    again = "to send them again, launch weir_sink_retry with the partition shop:orders"
    assert text == f"2 refused rows are aside: too large; {again}, or weir_sink_discard to delete them"
    places = [
        RefusedPlace(epoch=4, first_row=1_000, rows=1, key="user='ann'", reason="too large"),
        RefusedPlace(epoch=5, first_row=0, rows=1, key="user='bob'", reason="no"),
    ]
    told(refused_rows=2, refused_reason="no", refused=tuple(places))
    first = "row 1,000 of epoch 4, key user='ann': too large"
    assert check()[1].startswith(f"2 refused rows are aside: {first}; {again}")
    assert check.metadata()["refused"].text == f"{first}\nrow 0 of epoch 5, key user='bob': no"


def test_a_sink_that_nothing_was_sent_to_passes(check):
    assert check() == (True, "nothing was sent yet")


def test_the_health_sensor_warns_of_a_sink_in_trouble(settings, told, tick):
    told(epoch=4)
    assert not observed(tick(health_sensor([SHOP])))
    told(waiting_rows=1, waiting_since_s=time.time(), error="too large", awaits="skip")
    assert observed(tick(health_sensor([SHOP]))) == [f"sink orders: {REFUSED}"]
