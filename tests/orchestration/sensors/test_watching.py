"""One sensor looks at all applications: each has its own cursor, and one that cannot be looked at stops no other."""

import json
import logging
import time
from dataclasses import replace

import dagster as dg
import pytest

from tests.orchestration.applications import FLIGHTS, clicks
from weir.infra.control import ControlDatabase
from weir.infra.kafka.admin import BrokerUnreachableError, KafkaAdmin
from weir.orchestration.application import definitions, supervise
from weir.orchestration.sensors import watching
from weir.orchestration.sensors.watching import Found, Look, watch

CLICKS = supervise(clicks("clicking"), "nowhere:app")


def sensor(concern, *applications) -> dg.SensorDefinition:
    return watch("concern", concern, applications or (FLIGHTS, CLICKS), every_s=10, description="A test's.")


def counts(look: Look) -> Found:
    """Remembers how often the flights were looked at, and says nothing of others."""
    if look.id != "flights":
        return Found()
    return Found(said="counted", cursor=str(int(look.cursor or 0) + 1))


def test_each_application_has_its_own_cursor_and_others_keep_theirs(tick):
    before = json.dumps({"gone": "kept", "flights": "4"})
    answer = tick(sensor(counts), before)
    assert json.loads(answer.cursor) == {"gone": "kept", "flights": "5"}
    assert answer.skip_reason.skip_message.splitlines() == ["flights: counted", "clicking: all is well"]


def test_nothing_new_is_a_skipped_tick_that_counts_many_applications(tick):
    many = [replace(CLICKS, application=clicks(f"clicks{number}")) for number in range(5)]
    answer = tick(sensor(lambda look: Found(), FLIGHTS, *many))
    assert isinstance(answer, dg.SkipReason)
    assert answer.skip_message == "6 applications: all is well"


def test_an_application_that_cannot_be_looked_at_stops_no_other(tick, caplog):
    def fails(look: Look) -> Found:
        if look.id == "flights":
            raise OSError("the disk is gone")
        return Found(events=[dg.AssetObservation(look.supervised.ingest, description="seen")])

    with caplog.at_level(logging.ERROR):
        answer = tick(sensor(fails))
    assert [event.description for event in answer.asset_events] == ["seen"]
    assert "flights: could not look: the disk is gone" in answer.skip_reason.skip_message


def test_the_control_database_learns_of_the_looks_of_one_sensor(tick, database):
    tick(sensor(counts))
    assert database.watched_at_ms("flights") is None
    tick(watch("concern", counts, (FLIGHTS, CLICKS), every_s=10, description="A test's.", is_noted=True))
    assert database.watched_at_ms("flights") == database.watched_at_ms("clicking") > 0


def test_a_tick_that_takes_long_leaves_the_rest_to_the_next_one(tick, monkeypatch):
    looked = []
    monkeypatch.setattr(watching, "LIMIT_S", 0.05)

    def slow(look: Look) -> Found:
        looked.append(look.id)
        time.sleep(0.06)
        return Found()

    watched = sensor(slow)
    assert "clicking: not looked at" in tick(watched).skip_message
    assert "flights: not looked at" in tick(watched).skip_message
    assert looked == ["flights", "clicking"]


def test_what_all_want_to_know_is_asked_once(tick, monkeypatch):
    asked = []

    def statuses(self, applications, host=None, *, of_driver=False):
        asked.append((list(applications), of_driver))
        return {}

    monkeypatch.setattr(ControlDatabase, "application_statuses", statuses)
    said = tick(sensor(lambda look: Found(said=f"{look.status} {look.driver} {look.status}"))).skip_message
    assert said == "flights, clicking: None None None"
    assert asked == [(["flights", "clicking"], False), (["flights", "clicking"], True)]


def test_brokers_that_do_not_answer_are_waited_for_once(tick, monkeypatch):
    tried = []

    def unreachable(self, time_limit_s=None):
        tried.append(self)
        raise BrokerUnreachableError("127.0.0.1:1", "nobody listens")

    def asks(look: Look) -> Found:
        with pytest.raises(BrokerUnreachableError):
            assert look.tick.kafka
        return Found()

    monkeypatch.setenv("WEIR_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setattr(KafkaAdmin, "check_reachable", unreachable)
    assert tick(sensor(asks)).skip_message == "flights, clicking: all is well"
    assert len(tried) == 1


def test_run_requests_of_several_applications_are_one_answer(tick):
    def asks(look: Look) -> Found:
        return Found(run_requests=[dg.RunRequest(run_key=look.id, tags=look.supervised.tags)])

    answer = tick(sensor(asks))
    assert [request.run_key for request in answer.run_requests] == ["flights", "clicking"]


def test_an_application_may_be_left_alone(tick):
    def fails(look: Look) -> Found:
        raise AssertionError(look.id)

    alone = replace(FLIGHTS, unwatched=["concern"])
    assert tick(sensor(fails, alone)).skip_message == "there is no application to look at"
    with pytest.raises(
        ValueError, match=r"no sensor or schedule is called sucession; these are: alerts, commits, .*succession"
    ):
        supervise(clicks("clicking"), "nowhere:app", unwatched=["sucession"])


def test_the_number_of_applications_adds_no_sensor():
    one, many = (
        definitions(*(supervise(clicks(f"clicks{number}"), "nowhere:app") for number in range(count)))
        for count in (1, 12)
    )
    names = [sensor.name for sensor in one.get_repository_def().sensor_defs]
    assert names == [sensor.name for sensor in many.get_repository_def().sensor_defs]
    assert len(names) == 12


def test_two_applications_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two applications are called clicking here; give each an id of its own"):
        definitions(CLICKS, supervise(clicks("clicking"), "elsewhere:app"))


def test_an_application_is_found_in_its_module_and_else_its_reference_is_asked_for():
    from weir.pipelines.examples.flights import app

    assert supervise(app).reference == "weir.pipelines.examples.flights:app"
    with pytest.raises(ValueError, match=r'clicking as an attribute.*pass supervise\(app, "module:attribute"\)'):
        supervise(clicks("clicking"))
