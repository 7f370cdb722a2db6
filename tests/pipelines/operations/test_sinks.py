"""What is known of an application's sinks before a run has told of them, and which way out is shown."""

import json
from contextlib import contextmanager
from threading import Thread

import msgspec
import pytest
from typer.testing import CliRunner

from tests.pipelines.publishing.batches import SINK, Orders, http_node
from tests.waiting import wait_for
from weir.infra.control import ControlDatabase, this_host
from weir.infra.settings import Settings
from weir.pipelines.cli.app import app
from weir.pipelines.operations import sinks
from weir.pipelines.operations.registry import register
from weir.pipelines.operations.sinks import known_sinks
from weir.pipelines.publishing.state import Resent, SinkState
from weir.state.commit.outbox import Mark, Outbox
from weir.state.commit.refused import Refused

PROGRAM = """
from polars import col
from weir import Application, StreamsBuilder, String

def topic_of(user, order):
    return order

builder = StreamsBuilder()
orders = builder.stream("orders", key=String("user"), value=String("order"))
orders.to_sql("totals", url="env:SHOP_DATABASE")
orders.to(topic_of, name="by-order")
orders.to(col("order"), name="by-column")
app = Application("shop", builder)
"""


@pytest.fixture
def settings(tmp_path, monkeypatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "shop_with_sinks.py").write_text(PROGRAM)
    settings = Settings(dir=tmp_path / ".weir")
    register(settings, "shop", "shop_with_sinks:app")
    return settings


def report(settings, *states):
    database = ControlDatabase(settings.control_database_url)
    database.acquire_lease("shop", owner="weir run", pid=1, host=this_host(), ttl_s=60, take_over=True)
    database.report_sinks("shop", [msgspec.to_builtins(state) for state in states])


def weir(*arguments):
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


def test_a_sink_that_no_run_has_told_of_is_shown_as_not_started(settings):
    listed = weir("sink", "list", "shop")
    assert [listed.count(word) for word in ("totals", "by-order", "not started yet")] == [2, 1, 3]
    assert "sink totals (sql table: totals): not started yet" in weir("status", "shop")
    report(settings, SinkState(sink="totals", target="sql table: totals", epoch=3))
    assert [(state.sink, state.has_begun) for state in known_sinks(settings, "shop")] == [
        ("totals", True),
        ("by-order", False),
        ("by-column", False),
    ]
    assert [entry["has_begun"] for entry in json.loads(weir("sink", "list", "shop", "--json"))] == [True, False, False]


def test_topics_that_records_name_are_shown_as_the_program_says_it(settings):
    status = weir("status", "shop")
    assert "sink by-order (topic: by topic_of): " in status
    assert "sink by-column (topic: by expression): " in status


def test_a_sink_that_waits_for_a_decision_shows_the_command(settings):
    report(settings, SinkState(sink="totals", target="sql table: totals", error="a value is missing", awaits="skip"))
    for shown in (weir("status", "shop"), weir("sink", "list", "shop")):
        assert "see `weir sink skip shop totals`" in shown


@contextmanager
def answering(settings, resent, refused_rows=0):
    """A driver that answers one request, tells that the refused rows were sent again as ``resent``, and ends."""
    database = ControlDatabase(settings.control_database_url)
    told = SinkState(sink="totals", target="sql table: totals", refused_rows=5)
    report(settings, told)

    def answer():
        wait_for(lambda: database.pending_requests("shop"), "it is asked")
        (request,) = database.pending_requests("shop")
        assert request.arguments["action"] == "retry"
        if resent is not None:
            after = msgspec.structs.replace(
                told, refused_rows=refused_rows, resent=Resent(id=request.arguments["id"], **resent)
            )
            database.report_sinks("shop", [msgspec.to_builtins(after)])
        database.finish_request(request.id, "the refused rows (5) are sent again")

    driver = Thread(target=answer)
    driver.start()
    yield
    driver.join()


REFUSAL = "row 1 of epoch 5, key user='ann': too large"


@pytest.mark.parametrize(
    ("resent", "refused_rows", "text", "code"),
    [
        ({"delivered_rows": 5}, 0, "5 refused rows delivered", 0),
        ({"delivered_rows": 1, "error": REFUSAL}, 4, f"1 refused row delivered, 4 still refused: {REFUSAL}", 1),
        (None, 0, "the refused rows (5) are sent again; `weir sink list shop` shows whether any is left", 0),
    ],
)
def test_a_retry_says_what_became_of_the_rows_once_that_is_known(
    settings, monkeypatch, resent, refused_rows, text, code
):
    monkeypatch.setattr(sinks, "OUTCOME_LIMIT_S", 0.0 if resent is None else 30.0)
    with answering(settings, resent, refused_rows):
        result = CliRunner().invoke(app, ["sink", "retry", "shop", "totals"])
    assert (" ".join(result.stdout.split()), result.exit_code) == (f"shop: sink totals: {text}", code)
    assert "totals" in weir("sink", "list", "shop")


@pytest.mark.parametrize("options", [(), ("--yes",)])
@pytest.mark.parametrize(
    ("sink", "answer"),
    [
        ("totals", "shop: no rows of the sink 'totals' are aside"),
        ("total", "shop has no sink 'total'; it has totals, by-order, by-column"),
    ],
)
def test_where_no_rows_are_aside_a_discard_says_so_and_asks_nothing(settings, sink, answer, options):
    result = CliRunner().invoke(app, ["sink", "discard", "shop", sink, *options], input="y\n")
    assert result.exit_code == 1
    assert " ".join(result.output.split()) == f"weir: {answer}"


def test_a_discard_asks_about_as_many_rows_as_are_aside(settings):
    orders = Orders(settings.warehouse / "shop", http_node("http://localhost"))
    orders.commit(1)
    refused = Refused(orders.folder, SINK, "shop")
    report(settings, SinkState(sink=SINK, target="http"))
    ((rows, reached),) = Outbox(orders.folder, SINK, "shop").rows(Mark(), at_most=1, size_bytes=1)
    refused.add(rows, reached, "too large")
    discard = lambda answer: CliRunner().invoke(app, ["sink", "discard", "shop", SINK], input=answer).output
    assert f"Delete the 1 row of shop that the sink {SINK} has refused? [y/N]" in " ".join(discard("n\n").split())
    assert refused.count() == 1
    assert f"shop: deleted 1 refused row of the sink {SINK}" in discard("y\n")
    assert refused.count() == 0


def test_what_the_program_no_longer_has_is_shown_as_last_told(settings):
    report(settings, SinkState(sink="gone", target="topic: gone", epoch=2))
    assert "sink gone (topic: gone): all is published" in weir("status", "shop")
