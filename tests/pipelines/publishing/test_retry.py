"""Rows that are sent again count as refused until they are taken, and an interrupted retry is gone on with."""

import os
import signal
from contextlib import suppress
from functools import partial
from threading import Event

import msgspec
import pytest

from tests.faults.dying import KilledError
from tests.pipelines.publishing.batches import APP, BATCH, SINK, Orders, drain, http_node
from tests.pipelines.publishing.requests_server import Answer, RequestsServer
from tests.pipelines.spark.inline import Place, Topics
from tests.waiting import wait_for
from weir import Application, StreamsBuilder, String
from weir.pipelines.cli.sink import shown_state
from weir.pipelines.publishing import publisher
from weir.pipelines.publishing.connect import connect
from weir.pipelines.publishing.mark_file import MarkFile
from weir.pipelines.publishing.process import PublishingSettings, _Publishing
from weir.pipelines.publishing.retry import NAME, Retry
from weir.pipelines.publishing.state import Decision, RefusedPlace, Resent, SinkState
from weir.pipelines.spark.publishing import Publishers
from weir.state.commit import outbox
from weir.state.commit.outbox import refused_name
from weir.state.commit.refused import Refused
from weir.state.errors import ObjectStoreAwayError
from weir.state.storage.local import Local

BATCHES = 3


@pytest.fixture
def server():
    server = RequestsServer()
    yield server
    server.close()


@pytest.fixture
def orders(tmp_path, server, monkeypatch):
    """All of whose batches have been refused."""
    monkeypatch.setattr(publisher, "FIRST_WAIT_S", 0.02)
    made = Orders(tmp_path / APP, http_node(server.url))
    made.commit(BATCHES * BATCH)
    server.next += [Answer(400)] * BATCHES
    drain(made.publisher(refused=Refused(made.folder, SINK, APP)))
    return made


def retry(orders, **options):
    return Retry(orders.folder, orders.node.sink, APP, partial(connect, APP, kafka={}, sql_url=""), **options)


def aside(orders):
    return Refused(orders.folder, SINK, APP).count()


def delivered(server):
    return [row["order"] for request in server.delivered() for row in request.rows]


def test_what_was_taken_before_one_is_refused_once_more_no_longer_counts(orders, server):
    server.next += [Answer(), Answer(422)]
    resent = (again := retry(orders)).run("asked")
    assert (resent.id, resent.delivered_rows) == ("asked", BATCH)
    assert "rows 20 to 39 of epoch 1" in resent.error
    assert aside(orders) == 2 * BATCH
    assert not again.is_interrupted
    assert again.run() == Resent(id="", delivered_rows=2 * BATCH)
    assert aside(orders) == 0
    assert delivered(server) == orders.sent


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("step", ["rows read", "rows published", "outbox emptied"])
def test_a_retry_that_is_killed_is_gone_on_with_and_repeats_nothing_that_was_taken(orders, server, step, times):
    left = times

    def die(found):
        nonlocal left
        left -= found == step
        if left == 0:
            raise KilledError

    with suppress(KilledError):
        retry(orders, on_step=die).run()
    assert left == 0
    taken = len(server.delivered())
    assert aside(orders) == (BATCHES - taken) * BATCH + BATCH * (step == "rows published")
    again = retry(orders)
    assert again.is_interrupted
    assert not again.run().error
    assert not again.is_interrupted
    assert aside(orders) == 0
    assert delivered(server) == orders.sent
    assert len(server.requests) == 2 * BATCHES


def test_a_batch_that_was_taken_just_before_a_kill_comes_again_with_its_key(orders, server, monkeypatch):
    def die(*_):
        raise KilledError

    with monkeypatch.context() as patched, suppress(KilledError):
        patched.setattr(MarkFile, "write", die)
        retry(orders).run()
    assert not retry(orders).run().error
    keys = [request.key for request in server.requests[BATCHES:]]
    assert keys[0] == keys[1]
    assert len(set(keys)) == BATCHES
    assert delivered(server) == orders.sent


@pytest.fixture
def publishing(orders):
    """What the process has for the sink."""
    builder = StreamsBuilder()
    builder.stream("in", key=String("user"), value=String("order"))
    warehouse = str(orders.folder.parent)
    settings = PublishingSettings(driver=0, reference="", warehouse=warehouse, kafka={}, sql_url="", generation=1)
    return _Publishing(orders.node.sink, Application(APP, builder), settings)


def away_at_first(monkeypatch, owner, name):
    """The next three looks at the warehouse of this kind fail."""
    look, left = getattr(owner, name), [ObjectStoreAwayError("s3://bucket", "connection refused")] * 3

    def asked(*arguments):
        if left:
            raise left.pop()
        return look(*arguments)

    monkeypatch.setattr(owner, name, asked)
    return left


def test_a_sink_that_begins_while_the_warehouse_is_away_waits_and_goes_on_with_the_retry(
    orders, server, publishing, monkeypatch
):
    (orders.folder / refused_name(SINK) / NAME).touch()
    orders.commit(BATCH)
    left, drained = away_at_first(monkeypatch, Local, "find"), Event()
    drained.set()
    publishing.run(drained)
    assert not left
    wait_for(lambda: publishing.state.refused_rows == 0, "the retry goes on", 30)
    assert sorted(delivered(server)) == sorted(orders.sent)


@pytest.mark.parametrize(("owner", "name"), [(outbox, "table_at"), (Refused, "count")])
def test_refused_rows_that_are_to_be_sent_again_wait_for_the_warehouse(
    orders, server, publishing, monkeypatch, owner, name
):
    left = away_at_first(monkeypatch, owner, name)
    publishing.decide(Decision(sink=SINK, action="retry"))
    assert not left
    assert publishing.state.refused_rows == aside(orders) == 0
    assert delivered(server) == orders.sent


@pytest.mark.parametrize(("answers", "rows"), [((), BATCHES * BATCH), ((Answer(), Answer(422)), BATCH)])
def test_how_a_retry_has_ended_is_told_with_the_id_of_its_decision(orders, server, publishing, answers, rows):
    server.next += answers
    publishing.decide(Decision(sink=SINK, action="retry", id="asked"))
    resent = publishing.state.resent
    assert (resent.id, resent.delivered_rows) == ("asked", rows)
    assert publishing.state.refused_rows == BATCHES * BATCH - rows
    assert ("rows 20 to 39 of epoch 1" in resent.error) == bool(answers)


def test_beside_refused_rows_all_else_is_published():
    assert SinkState(sink="out", target="").summary == "all is published"
    aside = SinkState(sink="out", target="", refused_rows=2)
    assert aside.summary == "all else is published"


def test_the_reason_of_a_row_that_is_listed_is_said_once():
    place = RefusedPlace(epoch=3, first_row=1, rows=1, key="ann", reason="too large")
    aside = SinkState(sink="out", target="", refused_rows=1, refused_reason="too large", refused=(place,))
    assert aside.summary == "all else is published; refused: too large", "where no rows are listed"
    assert shown_state(aside) == "all else is published"
    retried = msgspec.structs.replace(aside, refused_reason=f"{place}; correct it")
    assert shown_state(retried) == "all else is published"
    again = msgspec.structs.replace(aside, refused_reason="not sent again: away")
    assert shown_state(again) == "all else is published; refused: not sent again: away"


PROGRAM = """
from weir import Application, StreamsBuilder, String

builder = StreamsBuilder()
builder.stream("in", key=String("user"), value=String("order")).to_http({url!r}, name="out", max_records=3)
app = Application("again", builder)
"""


def test_a_process_that_is_killed_in_the_middle_goes_on_with_the_retry_when_it_begins_again(
    tmp_path, server, monkeypatch
):
    (tmp_path / "again_program.py").write_text(PROGRAM.format(url=server.url))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    from again_program import app

    rows = [(b"ann", b"%d" % number, 1_000) for number in range(9)]
    Place(app, Topics({("in", 0): rows}), tmp_path).run()
    server.next += [Answer(400)] * BATCHES
    publishers, gate = Publishers(), Event()
    publishers.start(
        PublishingSettings(
            driver=os.getpid(),
            reference="again_program:app",
            warehouse=str(tmp_path / "warehouse"),
            kafka={},
            sql_url="",
            generation=1,
        )
    )
    try:
        wait_for(lambda: publishers.states and publishers.states[0].refused_rows == 9, "all is refused", 30)
        server.next += [Answer(), Answer(after=gate)]
        publishers.decide(Decision(sink="out", action="retry"))
        wait_for(lambda: len(server.requests) == BATCHES + 2, "the second batch is under way", 30)
        publishers._process.send_signal(signal.SIGKILL)
        publishers._process.wait()
        publishers._listener.join()
        publishers.states = []
        publishers.keep_alive()
        wait_for(lambda: publishers.states and publishers.states[0].refused_rows == 0, "the retry goes on", 30)
        assert [row["order"] for request in server.delivered() for row in request.rows] == [str(n) for n in range(9)]
        keys = [request.key for request in server.requests[BATCHES:]]
        assert keys[1] == keys[2]
        assert len(keys) == BATCHES + 1
    finally:
        gate.set()
        publishers.close(0.0)
