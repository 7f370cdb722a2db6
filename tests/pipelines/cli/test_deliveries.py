"""What a sink has refused is among the dead letters: with a real run that an HTTP server answers, and Dagster's job."""

import json
import os
import signal
import subprocess
import sys

import dagster as dg
import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from tests.pipelines.publishing.batches import SINK, Orders, drain, http_node
from tests.pipelines.publishing.requests_server import Answer, RequestsServer
from tests.waiting import wait_for
from weir.infra.settings import Settings
from weir.orchestration.jobs.dead_letters import dead_letters_job, discard_job, replay_job
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised
from weir.pipelines.application import load_application
from weir.pipelines.cli.app import app
from weir.pipelines.operations.registry import register
from weir.state.commit import refused as module
from weir.state.commit.outbox import Mark, Outbox, refused_mark
from weir.state.commit.refused import Refused

PROGRAM = """
from datetime import timedelta
from pathlib import Path

from weir import Application, StreamsBuilder, String

def checked(key: str, value: str) -> bool:
    if value == "odd" and Path({broken!r}).exists():
        raise ValueError("the checker is broken")
    return True

builder = StreamsBuilder()
orders = builder.stream({source!r}, key=String("user"), value=String("order")).filter(checked)
orders.to_http({url!r}, name="orders", max_records=2)
app = Application(
    "shop", builder, on_processing_error="dead_letter", commit_interval=timedelta(milliseconds=100)
)
"""
LIMIT_S = 60.0


def flat(text):
    return " ".join(text.split())


def weir(*arguments, code=0):
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result


def listed():
    return json.loads(weir("dead-letters", "list", "shop", "--json").stdout)


@pytest.fixture
def server():
    made = RequestsServer()
    yield made
    made.close()


def test_refused_batches_are_listed_shown_and_discarded_by_id(tmp_path, server, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = Settings(dir=tmp_path / ".weir")
    register(settings, "shop", "shop:app")
    orders = Orders(settings.warehouse / "shop", http_node(server.url, max_records=10))
    orders.commit(30)
    server.next += [Answer(400, body=b"no tea"), Answer(), Answer(422)]
    drain(orders.publisher(refused=Refused(orders.folder, SINK, "shop")))
    found = listed()
    assert [(each["id"], each["stage"], each["operator"]) for each in found["letters"]] == [
        ("orders:1-20", "delivery", "orders"),
        ("orders:1-0", "delivery", "orders"),
    ]
    assert sorted((each["stage"], each["letters"]) for each in found["counts"]) == [("delivery", 1), ("delivery", 1)]
    assert {each["reason"].partition(" answered ")[2] for each in found["counts"]} == {
        "400 Bad Request: no tea",
        "422 Unprocessable Entity",
    }
    letter = json.loads(weir("dead-letters", "show", "shop", "orders:1-0", "--json").stdout)
    assert (letter["stage"], letter["rows"], letter["epoch"], letter["first_row"]) == ("delivery", 10, 1, 0)
    assert letter["reason"].endswith("answered 400 Bad Request: no tea")
    assert [row["order"] for row in letter["first_rows"]] == orders.sent[:10]
    assert "no tea" in flat(weir("dead-letters", "show", "shop", "orders:1-0").stdout)
    assert "2 of 2 dead letters" in flat(weir("dead-letters", "list", "shop").output)

    weir("dead-letters", "discard", "shop", "orders:1-20", "no-such", "--yes", code=1)
    assert len(listed()["letters"]) == 2
    asked = weir("dead-letters", "discard", "shop", "orders:1-20", code=1)
    assert "Delete the dead letter orders:1-20 of shop?" in flat(asked.output)
    assert "deleted 1 dead letter" in weir("dead-letters", "discard", "shop", "orders:1-20", "--yes").stdout
    assert [each["id"] for each in listed()["letters"]] == ["orders:1-0"]
    assert Refused(orders.folder, SINK, "shop").count() == 10
    shop = Supervised(
        application=load_application("weir.pipelines.examples.flights:app"), reference="shop:app", topics={}
    )
    monkeypatch.setattr(Supervised, "id", "shop")
    discarded = lambda **config: discard_job([shop]).execute_in_process(
        resources={"weir": WeirResource(dir=".weir")},
        run_config={"ops": {"weir_delete_dead_letters": {"config": config}}},
        raise_on_error=False,
    )
    assert not discarded().success, "neither ids nor everything"
    assert not discarded(ids=["no-such"]).success
    assert [each["id"] for each in listed()["letters"]] == ["orders:1-0"]
    assert discarded(ids=["orders:1-0"]).success
    assert listed()["letters"] == []
    assert "deleted 0 dead letters" in weir("dead-letters", "discard", "shop", "--yes").stdout


def test_a_list_that_is_read_while_rows_are_sent_again_has_those_that_are_left(tmp_path, server, monkeypatch):
    orders = Orders(tmp_path, http_node(server.url, max_records=10))
    orders.commit(30)
    server.next += [Answer(400), Answer(), Answer(422)]
    refused = Refused(orders.folder, SINK, "shop")
    drain(orders.publisher(refused=refused))
    aside = Outbox(orders.folder, SINK, "shop", is_of_refused=True)
    first = refused_mark(refused.all()["number"][0])
    real = module.scan_files

    def scan(*arguments):
        monkeypatch.undo()
        aside.remove(Mark(refused.all()["number"][0], 10))  # what a retry does once the first batch is delivered
        return real(*arguments)

    monkeypatch.setattr(module, "scan_files", scan)
    assert first == (1, 10)
    assert refused.all().select("epoch", "first_row", "rows").rows() == [(1, 20, 10)]


@pytest.fixture
def shop(tmp_path, broker, topic, server, monkeypatch):
    """A run of the program, and how to send it orders."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("WEIR_BOOTSTRAP_SERVERS", broker)
    source, broken = topic(), tmp_path / "broken"
    broken.touch()
    (tmp_path / "deliveries_shop.py").write_text(PROGRAM.format(source=source, url=server.url, broken=str(broken)))
    producer = Producer({"bootstrap.servers": broker})

    def send(*orders):
        for order in orders:
            producer.produce(source, order, "ann", timestamp=1_000)
        producer.flush()

    command = "from weir.pipelines.cli.app import main; main()"
    run = subprocess.Popen([sys.executable, "-c", command, "run", "deliveries_shop:app"], cwd=tmp_path, env=os.environ)
    yield send
    run.send_signal(signal.SIGINT)
    try:
        run.wait(LIMIT_S)
    finally:
        run.kill()


def job(make):
    supervised = Supervised(
        application=load_application("deliveries_shop:app"), reference="deliveries_shop:app", topics={}
    )
    return make([supervised]).execute_in_process(resources={"weir": WeirResource(dir=".weir")})


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.dagster
@pytest.mark.slow
def test_replay_sends_what_a_server_has_refused_and_dagsters_job_processes_letters_again(shop, server, tmp_path):
    server.next += [Answer(400, body=b"unknown customer")]
    shop("tea", "milk")
    has_letters = lambda: CliRunner().invoke(app, ["dead-letters", "list", "shop", "--json"])
    wait_for(lambda: server.requests, "the batch is refused", LIMIT_S)
    wait_for(lambda: json.loads(has_letters().stdout)["letters"], "it is a dead letter", LIMIT_S)
    (letter,) = listed()["letters"]
    assert letter["stage"] == "delivery"
    assert "answered 400 Bad Request: unknown customer" in letter["reason"]
    answer = flat(weir("dead-letters", "replay", "shop", letter["id"]).stdout)
    assert "sink orders: the refused rows (2) are sent again" in answer
    wait_for(lambda: len(server.delivered()) == 1, "it is delivered", LIMIT_S)
    assert [row["order"] for row in server.delivered()[0].rows] == ["tea", "milk"]
    wait_for(lambda: not listed()["letters"], "it is no longer a dead letter", LIMIT_S)

    shop("odd")
    wait_for(lambda: listed()["letters"], "the record fails", LIMIT_S)
    server.next += [Answer(400, body=b"closed")]
    shop("bread")
    wait_for(lambda: len(listed()["letters"]) == 2, "the next one is refused", LIMIT_S)
    metadata = job(dead_letters_job).get_step_success_events()[0]
    shown = next(each for each in job(dead_letters_job).all_events if each.event_type_value == "STEP_OUTPUT")
    assert "closed" in str(shown.event_specific_data.metadata["refused_by_sinks"])
    assert metadata.is_step_success
    (tmp_path / "broken").unlink()
    result = job(replay_job)
    (outcome,) = (
        each.event_specific_data.metadata["outcome"].value
        for each in result.all_events
        if each.event_type_value == "STEP_OUTPUT"
    )
    assert outcome.startswith("1 dead letter processed; sink orders: the refused rows (1) are sent again")
    (observed,) = result.asset_observations_for_node("weir_ask_replay")
    assert observed.asset_key == dg.AssetKey(["shop", "dead_letters"])
    wait_for(lambda: len(server.delivered()) == 3, "both are delivered", LIMIT_S)
    assert {row["order"] for each in server.delivered()[1:] for row in each.rows} == {"odd", "bread"}
    waiting = lambda: [each for each in listed()["letters"] if each["replayed"] is None]
    wait_for(lambda: not waiting(), "none waits", LIMIT_S)
