"""Failed checks and runs are told once each to a real HTTP and a real SMTP server, and again where it was not taken."""

import json
import socketserver
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import dagster as dg
import pytest
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationPlanned
from dagster._core.definitions.assets.job.asset_job import IMPLICIT_ASSET_JOB_NAME
from dagster._core.events import DagsterEvent

from tests.orchestration.applications import FLIGHTS, clicks
from tests.orchestration.readings import remembered
from weir.infra.alerts import AlertError, send
from weir.infra.settings import Settings
from weir.orchestration.definitions import defs
from weir.orchestration.examples.report import REPORT
from weir.orchestration.sensors.alerts import alerts_sensor
from weir.orchestration.supervised import Supervised
from weir.orchestration.thresholds import Thresholds

RUNNING = dg.AssetCheckKey(FLIGHTS.ingest, "running")
LAG = dg.AssetCheckKey(FLIGHTS.ingest, "lag")


class Webhook(ThreadingHTTPServer):
    """Keeps what it takes; refuses while ``status`` is no 200."""

    def __init__(self) -> None:
        self.taken: list[dict[str, str]] = []
        self.status = 200
        super().__init__(("127.0.0.1", 0), Post)


class Post(BaseHTTPRequestHandler):
    server: Webhook

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.server.status == 200:
            self.server.taken.append(body)
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


class Mailbox(socketserver.ThreadingTCPServer):
    """An SMTP server that takes every mail."""

    def __init__(self) -> None:
        self.mails: list[str] = []
        super().__init__(("127.0.0.1", 0), Smtp)


class Smtp(socketserver.StreamRequestHandler):
    server: Mailbox

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline():
            word = line[:4].upper()
            if word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                lines = []
                while (line := self.rfile.readline()) != b".\r\n":
                    lines.append(line.decode())
                self.server.mails.append("".join(lines))
            self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")


@contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[str]:
    """The server's host and port."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def webhook(monkeypatch) -> Iterator[Webhook]:
    with serving(server := Webhook()) as address:
        monkeypatch.setenv("WEIR_ALERT_URLS", f"json://{address}/alerts?retry=0")
        yield server


@pytest.fixture
def evaluate(instance):
    def report(key: dg.AssetCheckKey, sentence: str = "", severity=dg.AssetCheckSeverity.ERROR) -> None:
        """Passed without a sentence."""
        instance.report_runless_asset_event(
            dg.AssetCheckEvaluation(
                asset_key=key.asset_key,
                check_name=key.name,
                passed=not sentence,
                severity=severity,
                description=sentence,
            )
        )

    return report


@pytest.fixture
def look(tick, database):
    """``look()`` ticks and returns what the tick said."""
    cursor = None

    def once(cooldown_s: float = 600.0) -> str:
        nonlocal cursor
        flights = replace(FLIGHTS, thresholds=Thresholds(cooldown_s=cooldown_s))
        answer = tick(alerts_sensor([flights], {"flights": [RUNNING, LAG]}), cursor)
        cursor = getattr(answer, "cursor", None) or cursor
        return answer.skip_message if isinstance(answer, dg.SkipReason) else answer.skip_reason.skip_message

    return once


def test_nobody_is_told_without_a_setting(look, evaluate):
    evaluate(RUNNING, "killed")
    assert look() == "flights: nobody is told: the setting alert_urls is empty"


def test_a_failed_check_is_told_once_and_once_when_it_is_over(look, evaluate, webhook):
    assert look() == "flights: nothing to tell"
    evaluate(RUNNING, "the driver was killed; launch flights_run")
    evaluate(LAG, "70,000 records wait", dg.AssetCheckSeverity.WARN)
    look()
    [alert] = webhook.taken
    sentence = "error: flights/ingest running: the driver was killed; launch flights_run"
    assert alert["title"] == f"Weir: flights: {sentence}"
    assert alert["message"] == sentence
    evaluate(RUNNING, "the driver was killed; launch flights_run")
    assert look() == "flights: nothing to tell"
    evaluate(RUNNING)
    look()
    assert [each["message"] for each in webhook.taken[1:]] == ["over: flights/ingest running"]


def test_warnings_are_told_if_asked_and_several_are_one_message(look, evaluate, webhook, monkeypatch):
    monkeypatch.setenv("WEIR_ALERT_LEVEL", "warning")
    evaluate(RUNNING, "paused", dg.AssetCheckSeverity.WARN)
    evaluate(LAG, "70,000 records wait", dg.AssetCheckSeverity.WARN)
    look()
    [alert] = webhook.taken
    assert alert["title"] == "Weir: flights: 2 alerts"
    assert set(alert["message"].splitlines()) == {
        "warning: flights/ingest running: paused",
        "warning: flights/ingest lag: 70,000 records wait",
    }


def test_a_check_that_fails_again_and_again_is_told_once_in_the_cooldown(look, evaluate, webhook):
    for _ in range(3):
        evaluate(RUNNING, "killed")
        look()
        evaluate(RUNNING)
        look()
    assert [each["message"] for each in webhook.taken] == [
        "error: flights/ingest running: killed",
        "over: flights/ingest running",
    ]
    evaluate(RUNNING, "killed")
    look(cooldown_s=0.0)
    assert len(webhook.taken) == 3


def test_what_was_not_taken_is_told_at_the_next_tick(look, evaluate, webhook):
    evaluate(RUNNING, "killed")
    webhook.status = 503
    assert "not told, and tried again: json://127.0.0.1" in look()
    webhook.status = 200
    look()
    look()
    assert len(webhook.taken) == 1


def test_one_target_that_takes_nothing_does_not_have_the_others_told_again(look, evaluate, webhook, monkeypatch):
    monkeypatch.setenv(
        "WEIR_ALERT_URLS", f"json://127.0.0.1:{webhook.server_port}/?retry=0 json://127.0.0.1:1/?retry=0"
    )
    evaluate(RUNNING, "killed")
    assert "not everybody: json://127.0.0.1:1/" in look()
    assert look() == "flights: nothing to tell"
    assert len(webhook.taken) == 1


def test_a_check_that_a_run_has_only_planned_is_not_over(look, evaluate, instance, webhook):
    evaluate(RUNNING, "killed")
    look()
    instance.report_dagster_event(
        DagsterEvent(
            event_type_value=dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED.value,
            job_name="weir_audit",
            event_specific_data=AssetCheckEvaluationPlanned(asset_key=RUNNING.asset_key, check_name=RUNNING.name),
        ),
        "a-run",
    )
    assert look() == "flights: nothing to tell"
    assert len(webhook.taken) == 1


def test_a_failed_run_is_told_and_those_before_the_first_look_are_not(look, instance, webhook):
    def fails() -> dg.DagsterRun:
        run = instance.create_run_for_job(defs.resolve_job_def("weir_compaction"), tags=FLIGHTS.tags)
        instance.report_run_failed(run, "the disk is full")
        return run

    fails()
    look()
    run = fails()
    look()
    look()
    assert [each["message"] for each in webhook.taken] == [f"run {run.run_id} of weir_compaction failed"]


@pytest.mark.parametrize("asset", [FLIGHTS.tables["late_departures"], FLIGHTS.backfill])
def test_a_run_of_an_asset_that_failed_before_its_op_began_is_told_although_nothing_has_tagged_it(
    look, instance, webhook, asset
):
    """A launch time-out, or no memory; a run of somebody else's asset is not told."""

    def fails(key: dg.AssetKey) -> dg.DagsterRun:
        job = defs.resolve_implicit_global_asset_job_def()
        run = instance.create_run_for_job(job, asset_selection=frozenset({key}))
        instance.report_run_failed(run, "it took too long to start")
        return run

    look()
    run = fails(asset)
    fails(REPORT)
    look()
    assert look() == "flights: nothing to tell"
    assert [each["message"] for each in webhook.taken] == [f"run {run.run_id} of {IMPLICIT_ASSET_JOB_NAME} failed"]


def test_a_failure_that_is_stored_after_a_later_one_of_another_run_is_told(instance, webhook, tick):
    """As by a host whose clock is behind."""
    sensor, now_s = alerts_sensor([FLIGHTS], {"flights": []}), time.time()
    cursor = remembered(json.dumps({"run_s": now_s - 100.0}))

    def fails(job: str, ended_s: float, tags: dict[str, str]) -> dg.DagsterRun:
        run = instance.create_run_for_job(defs.resolve_job_def(job), tags=tags)
        event = DagsterEvent(event_type_value=dg.DagsterEventType.RUN_FAILURE.value, job_name=job)
        instance.report_dagster_event(event, run.run_id, timestamp=ended_s)
        return run

    fails("weir_compaction", now_s, {})
    cursor = tick(sensor, cursor).cursor
    run = fails("weir_compaction", now_s - 30.0, FLIGHTS.tags)
    cursor = tick(sensor, cursor).cursor
    assert isinstance(tick(sensor, cursor), dg.SkipReason)
    assert [each["message"] for each in webhook.taken] == [f"run {run.run_id} of weir_compaction failed"]


@pytest.mark.usefixtures("webhook")
def test_a_tick_asks_once_for_the_failed_runs_of_all_applications(instance, tick, monkeypatch):
    asked, get_run_records = [], instance.get_run_records

    def counted(filters=None, *args, **kwargs):
        asked.append(filters)
        return get_run_records(filters, *args, **kwargs)

    monkeypatch.setattr(instance, "get_run_records", counted)
    both = [FLIGHTS, Supervised(application=clicks("clicks"), reference="elsewhere:app", topics={})]
    sensor = alerts_sensor(both, {each.id: [] for each in both})
    cursor = tick(sensor).cursor
    instance.report_run_failed(
        instance.create_run_for_job(defs.resolve_job_def("flights_run"), tags=FLIGHTS.tags), "the disk is full"
    )
    cursor = tick(sensor, cursor).cursor
    assert isinstance(tick(sensor, cursor), dg.SkipReason)
    assert len(asked) == 3


def test_the_sensor_sends_mail_when_a_check_fails_and_when_it_is_over(tick, evaluate, monkeypatch):
    with serving(mailbox := Mailbox()) as address:
        monkeypatch.setenv("WEIR_ALERT_URLS", f"mailto://{address}?from=weir@example.org&to=ops@example.org")
        sensor = alerts_sensor([FLIGHTS], {"flights": [RUNNING]})
        evaluate(RUNNING, "the driver was killed")
        cursor = tick(sensor).cursor
        assert isinstance(tick(sensor, cursor), dg.SkipReason)
        evaluate(RUNNING)
        tick(sensor, cursor)
    began, over = mailbox.mails
    assert "ops@example.org" in began
    assert "the driver was killed" in began
    assert "over: flights/ingest running" in over


def test_what_is_wrong_is_said_without_secrets(monkeypatch):
    with pytest.raises(AlertError, match="Apprise does not know URL 2 of alert_urls") as error:
        send("json://ann:hunter2@127.0.0.1:1/?retry=0 nonsense://hunter2", "a", "b")
    assert "hunter2" not in str(error.value)
    monkeypatch.setenv("WEIR_ALERT_URLS", "slack://hunter2")
    assert "hunter2" not in repr(Settings.load())
    monkeypatch.setattr("weir.infra.alerts.find_spec", lambda name: None)
    with pytest.raises(AlertError, match=r"pip install 'weir-streams\[alerts\]'"):
        send("json://x", "a", "b")


def test_no_url_with_its_secret_is_kept_or_logged_by_a_tick(
    tick, evaluate, webhook, instance, monkeypatch, caplog, capfd
):
    """Told to one that takes it, refused by another."""
    secret = f"hidden-alert-{uuid.uuid4().hex}"
    taken, refused = (f"json://ann:{secret}@127.0.0.1:{port}/a?retry=0" for port in (webhook.server_port, 1))
    monkeypatch.setenv("WEIR_ALERT_URLS", f"{taken} {refused}")
    sensor = alerts_sensor([FLIGHTS], {"flights": [RUNNING]})
    evaluate(RUNNING, "killed")
    answer = tick(sensor, None)
    assert len(webhook.taken) == 1
    assert "not everybody" in str(answer)
    assert secret not in "".join((str(answer), caplog.text, *capfd.readouterr()))


def test_the_cursor_of_others_is_kept(tick, database):
    answer = tick(alerts_sensor([FLIGHTS], {"flights": []}), remembered(json.dumps({"failing": {}})))
    assert isinstance(answer, dg.SkipReason)
