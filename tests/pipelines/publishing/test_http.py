"""An HTTP sink gets every committed row at least once and in order; a batch that comes again is the same, with its
key, whatever was committed meanwhile and wherever the publisher dies."""

import json
import signal
import time
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from threading import Event, Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.faults.dying import KilledError
from tests.forked import ended
from tests.pipelines.publishing.batches import APP, BATCH, SINK, Orders, drain, drain_until_killed, http_node
from tests.pipelines.publishing.requests_server import DROP, Answer, RequestsServer
from tests.waiting import wait_for
from weir.pipelines.publishing import publisher
from weir.pipelines.publishing.checks import check_sinks
from weir.pipelines.publishing.connect import connect
from weir.pipelines.publishing.connection import RefusedRowsError
from weir.pipelines.publishing.http import SinkHeaderError, retry_after_s
from weir.pipelines.publishing.publisher import Publisher
from weir.state.commit.outbox import Outbox
from weir.state.commit.refused import Refused
from weir.state.storage.places import table_at

STEPS = ("mark read", "rows read", "request answered", "rows published", "outbox emptied")


@pytest.fixture
def server():
    server = RequestsServer()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def is_impatient(monkeypatch):
    monkeypatch.setattr(publisher, "FIRST_WAIT_S", 0.02)


@pytest.fixture
def orders(tmp_path, server):
    return Orders(tmp_path, http_node(server.url))


def found(server):
    return [row["order"] for request in server.delivered() for row in request.rows]


def test_a_request_has_one_batch_with_its_key_over_one_connection(server, orders):
    orders.commit(45)
    orders.commit(3)
    drain(orders.publisher())
    assert found(server) == orders.sent
    outbox = orders.outbox().id
    assert [request.key for request in server.requests] == [
        f"{APP}/{SINK}/{place}/{outbox}" for place in ("1/0+20", "1/20+20", "1/40+5", "2/0+3")
    ]
    first = server.requests[0]
    assert (first.method, first.path, first.headers["Content-Type"]) == ("POST", "/orders", "application/json")
    assert first.rows[0] == {
        "user": "ann",
        "order": "1-0-0",
        "_ts": "1970-01-01T00:00:00.001000Z",
        "_deleted": False,
    }
    assert len({request.port for request in server.requests}) == 1
    assert not orders.files()
    drain(orders.publisher())
    assert len(server.requests) == 4


def test_form_method_and_headers_are_as_declared_and_secrets_come_from_the_environment(tmp_path, server, monkeypatch):
    monkeypatch.setenv("SHOP_TOKEN", "Bearer secret\n")
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login someone password else\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    headers = {"Authorization": "env:SHOP_TOKEN", "X-Shop": "tea"}
    orders = Orders(tmp_path, http_node(server.url, method="PUT", format="ndjson", headers=headers))
    orders.commit(2)
    drain(orders.publisher())
    (request,) = server.requests
    assert (request.method, request.headers["Content-Type"]) == ("PUT", "application/x-ndjson")
    assert (request.headers["Authorization"], request.headers["X-Shop"]) == ("Bearer secret", "tea")
    assert [json.loads(line)["order"] for line in request.body.decode().splitlines()] == orders.sent
    assert request.body.endswith(b"}\n")


@pytest.mark.parametrize("before", ["", "x" * 190])
def test_a_token_that_the_server_repeats_is_left_out_of_the_reason(tmp_path, server, monkeypatch, before):
    """Wherever it stands, even if only its beginning would be shown."""
    monkeypatch.setenv("SHOP_TOKEN", "Bearer hunter2-hunter2-hunter2")
    orders = Orders(tmp_path, http_node(server.url, headers={"Authorization": "env:SHOP_TOKEN", "X-Shop": "tea"}))
    orders.commit(2)
    server.next.append(Answer(401, body=f"{before}no hunter2-hunter2-hunter2 for tea".encode()))
    refused = Refused(orders.folder, SINK, APP)
    drain(orders.publisher(refused=refused))
    (reason,) = refused.all()["reason"]
    assert "hunter2" not in reason
    assert f"{before}no ***" in reason
    assert before or reason.endswith("no *** for tea")


def test_a_variable_that_is_not_set_is_named_and_set_in_the_next_run_it_is_used(tmp_path, server, monkeypatch):
    orders = Orders(tmp_path, http_node(server.url, headers={"Authorization": "env:SHOP_TOKEN"}))
    orders.commit(2)
    stop, waits = Event(), orders.publisher()
    thread = Thread(target=waits.run, args=(stop, Event()))
    thread.start()
    wait_for(lambda: "variable SHOP_TOKEN, which is not set; end the run, set it" in waits.state.error, "it is named")
    stop.set()
    thread.join(30)
    monkeypatch.setenv("SHOP_TOKEN", "sec\nret")
    stop = Event()
    waits = orders.publisher()
    thread = Thread(target=waits.run, args=(stop, Event()))
    thread.start()
    wait_for(lambda: "SHOP_TOKEN has characters that the header" in waits.state.error, "a bad one is named")
    assert "ret" not in waits.state.error.replace("characters", "")
    stop.set()
    thread.join(30)
    monkeypatch.setenv("SHOP_TOKEN", "secret")
    drain(orders.publisher())
    assert [request.headers["Authorization"] for request in server.requests] == ["secret"]


def test_all_variables_that_cannot_be_headers_are_named_at_the_start_without_their_values(monkeypatch):
    headers = {"Authorization": "env:SHOP_TOKEN", "X-Shop": "env:SHOP_NAME", "X-Plain": "tea"}
    sinks = [http_node("http://localhost/orders", headers=headers).sink]
    monkeypatch.setenv("SHOP_NAME", "a\nb")
    with pytest.raises(SinkHeaderError) as raised:
        check_sinks(sinks, "")
    assert str(raised.value) == (
        "sink 'orders': the header 'Authorization' is that of the environment variable SHOP_TOKEN, which is not set; "
        "sink 'orders': the environment variable SHOP_NAME has characters that the header 'X-Shop' cannot have; "
        "set them and start again"
    )
    monkeypatch.setenv("SHOP_TOKEN", "secret")
    monkeypatch.setenv("SHOP_NAME", "tea")
    check_sinks(sinks, "")


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503, 599, DROP])
def test_what_may_pass_is_tried_again_with_the_same_request(server, orders, status):
    orders.commit(30)
    server.next += [Answer(), Answer(status), Answer(status)]
    drain(orders.publisher(refused=Refused(orders.folder, SINK, APP)))
    assert found(server) == orders.sent
    assert [request.status for request in server.requests] == [200, status, status, 200]
    server.check_repeats("order")


def test_an_outbox_that_is_append_only_keeps_what_is_published_and_nothing_comes_twice(server, orders, caplog):
    orders.commit(30)
    table = table_at(orders.outbox().folder)
    table.alter.set_table_properties({"delta.appendOnly": "true"}, raise_if_not_exists=False)
    for _ in range(2):
        drain(orders.publisher())
        orders.commit(5)
    assert found(server) == orders.sent[:35]
    assert "append-only (delta.appendOnly)" in caplog.text
    assert len(orders.files()) == 3
    table.alter.set_table_properties({"delta.appendOnly": "false"})
    drain(orders.publisher())
    assert found(server) == orders.sent
    assert not orders.files()


def test_a_server_that_is_away_is_waited_for(tmp_path, server):
    orders = Orders(tmp_path, http_node(server.url))
    orders.commit(30)
    server.close()
    stop, waits = Event(), orders.publisher()
    thread = Thread(target=waits.run, args=(stop, Event()))
    thread.start()
    wait_for(lambda: waits.state.error == f"POST {server.url}: connection refused", "the reason is told")
    assert waits.state.waiting_rows == 30
    stop.set()
    thread.join(30)
    assert not thread.is_alive()


def test_a_server_that_does_not_answer_in_time_gets_the_request_again(tmp_path, server):
    orders = Orders(tmp_path, http_node(server.url, timeout=timedelta(milliseconds=200)))
    orders.commit(2)
    answered = Event()
    server.next.append(Answer(after=answered))
    drain(orders.publisher())
    answered.set()
    assert len(server.requests) == 2
    server.check_repeats("order")


@pytest.mark.parametrize("status", [300, 302, 304, 400, 401, 404, 409, 413, 422])
def test_a_batch_that_is_refused_is_put_aside_whole_and_the_next_one_follows(server, orders, status):
    refused = Refused(orders.folder, SINK, APP)
    orders.commit(50)
    server.next += [Answer(), Answer(status, {"Location": server.url}, b"" if status == 304 else b"no such tea")]
    sends = orders.publisher(refused=refused)
    drain(sends)
    assert found(server) == orders.sent[:BATCH] + orders.sent[2 * BATCH :]
    assert refused.count() == sends.state.refused_rows == BATCH
    assert f"POST {server.url} answered {status}" in sends.state.refused_reason
    (place,) = map(str, sends.state.refused)
    assert place.startswith(f"rows 20 to 39 of epoch 1, first key user='ann': POST {server.url} answered {status}")
    assert status == 304 or sends.state.refused_reason.endswith(": no such tea")
    assert sends.state.waiting_rows == 0
    assert len(server.requests) == 3


def test_what_is_aside_is_known_before_the_sink_has_answered(server, orders):
    orders.commit(BATCH)
    server.next.append(Answer(400))
    drain(orders.publisher(refused=Refused(orders.folder, SINK, APP)))
    again = orders.publisher(refused=Refused(orders.folder, SINK, APP))
    assert again.state.refused_rows == BATCH
    assert len(again.state.refused) == 1


def of_refused(orders):
    """A publisher as ``weir sink retry`` has it."""
    aside = Outbox(orders.folder, SINK, APP, is_of_refused=True)
    sink = replace(orders.node.sink, name=f"{SINK}.refused")
    again = Publisher(
        aside,
        sink.name,
        lambda: connect(APP, sink, aside, {}, ""),
        application=APP,
        shown_key=sink.shown_key,
    )
    again.decide("resume")
    return again


def test_refused_rows_that_are_sent_again_are_a_batch_with_another_key(server, orders):
    """A server may answer a key that it knows as before."""
    orders.commit(50)
    server.next += [Answer(), Answer(400), Answer(400)]
    drain(orders.publisher(refused=Refused(orders.folder, SINK, APP)))
    first = [request for request in server.requests if request.status == 400]
    drain(of_refused(orders))
    again = server.requests[len(server.requests) - len(first) :]
    assert [request.body for request in again] == [request.body for request in first]
    assert [request.key for request in again] == [f"{request.key}/retry-1" for request in first]


def test_each_attempt_to_send_refused_rows_again_has_a_key_of_its_own_and_a_repeat_of_it_has_the_same(server, orders):
    orders.commit(BATCH)
    server.next += [Answer(400)]
    drain(orders.publisher(refused=Refused(orders.folder, SINK, APP)))
    server.next += [Answer(503), Answer(400), Answer(503), Answer(422), Answer(DROP)]
    for _ in range(2):
        with pytest.raises(RefusedRowsError):
            drain(of_refused(orders))
    drain(of_refused(orders))
    keys = [request.key for request in server.requests]
    assert keys[1] == keys[2]
    assert keys[3] == keys[4]
    assert keys[5] == keys[6]
    assert [keys[1], keys[3], keys[5]] == [f"{keys[0]}/retry-{number}" for number in (1, 2, 3)]
    assert [request.body for request in server.requests] == [server.requests[0].body] * 7


def test_a_batch_that_is_sent_again_in_smaller_pieces_has_keys_of_their_rows(tmp_path, server):
    """A program with other limits may send again what one before it had refused."""
    orders = Orders(tmp_path, http_node(server.url))
    orders.commit(50)
    server.next += [Answer(), Answer(400)]
    drain(orders.publisher(refused=Refused(orders.folder, SINK, APP)))
    orders.node = http_node(server.url, max_records=8)
    drain(of_refused(orders))
    outbox = orders.outbox().id
    assert [(request.key, len(request.rows)) for request in server.requests[3:]] == [
        (f"{APP}/{SINK}/1/{place}/{outbox}/retry-1", rows) for place, rows in (("20+8", 8), ("28+8", 8), ("36+4", 4))
    ]


def test_a_crash_between_a_refusal_and_putting_aside_repeats_no_key(server, orders):
    orders.commit(BATCH)
    server.next += [Answer(400), Answer(400)]
    refused = Refused(orders.folder, SINK, APP)

    def dies(*_):
        raise KilledError

    first = orders.publisher(refused=refused)
    first._goes_on_after = dies
    with suppress(KilledError):
        drain(first)
    drain(orders.publisher(refused=refused))
    drain(of_refused(orders))
    keys = [request.key for request in server.requests]
    assert keys == [keys[0], f"{keys[0]}/1", f"{keys[0]}/retry-1"]


def test_retry_after_lengthens_the_pause(server, orders):
    orders.commit(1)
    server.next.append(Answer(503, {"Retry-After": "1"}))
    begin = time.monotonic()
    drain(orders.publisher())
    assert time.monotonic() - begin >= 1
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("header", "wait_s"),
    [
        (None, 0.0),
        ("", 0.0),
        ("7", 7.0),
        (" 120 ", 120.0),
        ("-3", 0.0),
        ("soon", 0.0),
        ("Fri, 01 Jan 2100 00:00:30 GMT", 30.0),
        ("Thu, 31 Dec 2099 23:59:00 GMT", 0.0),
    ],
)
def test_retry_after_has_seconds_or_a_date(header, wait_s):
    assert retry_after_s(header, 4_102_444_800.0) == wait_s


def test_a_body_is_within_its_bytes_unless_a_single_row_is_larger(tmp_path, server):
    orders = Orders(tmp_path, http_node(server.url, max_bytes=1_000))
    orders.commit_orders(["é" * 10] * 9 + ["x" * 3_000] + ["y" * 200] * 7)
    drain(orders.publisher())
    assert found(server) == orders.sent
    large = [request for request in server.requests if len(request.body) > 1_000]
    assert [len(request.rows) for request in large] == [1]
    for one, other in zip(server.requests, server.requests[1:], strict=False):
        if one not in large:
            assert len(one.body) + len(json.dumps(other.rows[0], ensure_ascii=False).encode()) > 900, (
                "none is cut short"
            )


@settings(max_examples=examples(25), deadline=None)
@given(
    heights=st.lists(st.lists(st.integers(1, 45), min_size=1, max_size=3), min_size=1, max_size=4),
    answers=st.lists(st.sampled_from([200, 200, 503, DROP]), max_size=12),
    stops=st.lists(st.integers(0, 4), min_size=4, max_size=4),
    are_killed=st.lists(st.booleans(), min_size=4, max_size=4),
    max_bytes=st.integers(100, 2_000),
)
def test_the_same_key_always_has_the_same_rows_whatever_is_committed_meanwhile(
    tmp_path_factory, heights, answers, stops, are_killed, max_bytes
):
    """Publishers end in the middle, after a request and before its mark too; epochs are committed in between."""

    server = RequestsServer()
    try:
        orders = Orders(tmp_path_factory.mktemp("app"), http_node(server.url, max_bytes=max_bytes))
        server.next += [Answer(status) for status in answers]
        for number, each in enumerate(heights):
            orders.commit(*each)
            left = len(server.requests) + stops[number]

            def end(step, left=left):
                if step == "rows read" and len(server.requests) > left:
                    raise KilledError

            with suppress(KilledError):
                drain(orders.publisher(on_step=end))
            if are_killed[number]:
                orders.commit(1)
                _ends_after_a_request(orders)
        drain(orders.publisher())
        assert found(server) == orders.sent
        server.check_repeats("order")
    finally:
        server.close()


def _ends_after_a_request(orders):
    """As a kill between an answer and the mark."""
    sends = orders.publisher()
    connect = sends._connect

    def without_mark():
        connection = connect()
        connection._mark.write = lambda published: (_ for _ in ()).throw(KilledError)
        return connection

    sends._connect = without_mark
    with suppress(KilledError):
        drain(sends)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_publisher_may_be_killed_at_any_step(server, orders, step):
    """At the first or a later time that it comes to the step; only the batch in flight is repeated."""
    deaths = 0
    for times in (1, 2, 1, 3):
        orders.commit(30, 50)
        orders.commit(7)
        code = ended(drain_until_killed, orders.folder, server.url, step, times)
        assert code in (0, -signal.SIGKILL)
        deaths += code == -signal.SIGKILL
    drain(orders.publisher())
    assert deaths >= 2
    assert found(server) == orders.sent
    server.check_repeats("order")
    keys = [request.key for request in server.requests]
    assert len(keys) - len(set(keys)) == (deaths if step == "request answered" else 0)
    for number, key in enumerate(keys):
        assert key not in keys[:number] or key == keys[number - 1], "only the batch in flight"


def test_after_a_reset_everything_is_sent_again_under_other_keys(server, orders, tmp_path_factory):
    orders.commit(5)
    drain(orders.publisher())
    again = Orders(tmp_path_factory.mktemp("reset"), orders.node)
    again.commit(5)
    drain(again.publisher())
    assert found(server) == orders.sent + again.sent
