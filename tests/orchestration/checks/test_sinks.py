"""Sinks outside the warehouse as Dagster shows them: an asset each, a check, and warnings of the health sensor."""

import os
import time

import dagster as dg
import msgspec
import pytest

from tests.orchestration.readings import metric, observed, task
from weir import Application, StreamsBuilder, String
from weir.infra.control import ControlDatabase, this_host
from weir.orchestration.assets.ingest import ingest_assets
from weir.orchestration.checks.sinks import sink_results
from weir.orchestration.sensors.health import health_sensor
from weir.orchestration.supervised import Supervised
from weir.pipelines.operations.registry import register
from weir.pipelines.publishing.state import RefusedPlace, SinkState


def shop() -> Application:
    builder = StreamsBuilder()
    builder.stream("orders", key=String("user"), value=String("order")).to("checked", name="orders")
    return Application("shop", builder)


SHOP = Supervised(application=shop(), reference="shop:app", topics={"orders": dg.AssetKey(["kafka", "orders"])})


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
    assert check() == (False, "a row is refused: too large; put it aside with `weir sink skip shop orders`")
    told(waiting_rows=1, waiting_since_s=now_s, error="was the topic made anew?", awaits="resume")
    assert check() == (False, "was the topic made anew?")
    told(refused_rows=2, refused_reason="too large")
    passed, text = check()
    assert not passed
    assert text.startswith("2 refused rows are aside: too large; send them again with `weir sink retry shop orders`")
    places = [
        RefusedPlace(epoch=4, first_row=1_000, rows=1, key="user='ann'", reason="too large"),
        RefusedPlace(epoch=5, first_row=0, rows=1, key="user='bob'", reason="no"),
    ]
    told(refused_rows=2, refused_reason="no", refused=tuple(places))
    first = "row 1,000 of epoch 4, key user='ann': too large"
    assert check()[1].startswith(f"2 refused rows are aside: {first}; send them again with `weir sink retry")
    assert check.metadata()["refused"].text == f"{first}\nrow 0 of epoch 5, key user='bob': no"


def test_a_sink_that_nothing_was_sent_to_passes(check):
    assert check() == (True, "nothing was sent yet")


def test_the_health_sensor_warns_of_a_sink_in_trouble(settings, told, tick):
    told(epoch=4)
    assert not observed(tick(health_sensor([SHOP])))
    told(waiting_rows=1, waiting_since_s=time.time(), error="too large", awaits="skip")
    assert observed(tick(health_sensor([SHOP]))) == [
        "sink orders: a row is refused: too large; put it aside with `weir sink skip shop orders`"
    ]
