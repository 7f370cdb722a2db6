"""Sinks of one's own get batches at least once and in order, each over a connection of its own."""

import errno
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Event, Thread

import polars as pl
import pytest

from tests.pipelines.publishing.batches import APP, BATCH, SINK, Orders, drain, own_node
from tests.waiting import wait_for
from weir import Batch, RefusedError, Sink
from weir.pipelines.publishing import publisher
from weir.pipelines.publishing.connection import Published, SinkError, SinkFencedError
from weir.pipelines.publishing.mark_file import FOLDER, MarkFile
from weir.pipelines.publishing.publisher import MarkLostError, Publisher
from weir.state.commit.outbox import Mark
from weir.state.commit.refused import Refused
from weir.state.storage.local import Local


@pytest.fixture(autouse=True)
def is_impatient(monkeypatch):
    monkeypatch.setattr(publisher, "FIRST_WAIT_S", 0.02)


class Kept(Sink):
    """Keeps what it gets; fails as it is told."""

    def __init__(self):
        self.batches: list[Batch] = []
        self.calls: list[str] = []
        self.failures: list[Exception | None] = []
        self.connection = None

    def open(self):
        assert self.connection is None, "each connection begins as the object that was passed"
        self.connection = object()
        self.calls.append("open")
        self._fail("open")

    def send(self, batch):
        assert self.connection is not None
        self.calls.append("send")
        self._fail("send")
        self.batches.append(batch)

    def close(self):
        self.calls.append("close")
        self._fail("close")

    def _fail(self, call):
        if self.failures and (self.failures[0] is None or self.failures[0].args[0] == call):
            failure = self.failures.pop(0)
            if failure is not None:
                raise failure


@dataclass
class SendOnly(Sink):
    """Has only what it must."""

    sent: list[str]

    def send(self, batch):
        self.sent += batch.rows["order"].to_list()


def sent(sink):
    return [order for batch in sink.batches for order in batch.rows["order"]]


def test_a_batch_has_rows_key_sink_and_epoch(tmp_path):
    sink = Kept()
    orders = Orders(tmp_path, own_node(sink))
    orders.commit(BATCH + 1)
    drain(orders.publisher())
    first, second = sink.batches
    assert first.rows.schema == {
        "user": pl.String(),
        "order": pl.String(),
        "_ts": pl.Datetime("ms", "UTC"),
        "_deleted": pl.Boolean(),
    }
    assert second.rows.to_dicts() == [
        {"user": "ann", "order": f"1-0-{BATCH}", "_ts": datetime(1970, 1, 1, 0, 0, 0, 1_000, UTC), "_deleted": False}
    ]
    assert (second.sink, second.epoch) == (SINK, 1)
    assert second.idempotency_key == f"{APP}/{SINK}/1/{BATCH}+1/{orders.outbox().id}"
    assert sink.calls == ["open", "send", "send", "close"]


def test_a_sink_needs_only_send(tmp_path):
    sink = SendOnly([])
    orders = Orders(tmp_path, own_node(sink))
    orders.commit(30)
    drain(orders.publisher())
    assert sink.sent == orders.sent


@pytest.mark.parametrize(
    "failure", [OSError("send", "gone"), KeyError("send"), SystemExit("send"), OSError("open", "gone")]
)
def test_after_any_exception_the_same_batch_comes_again_over_another_connection(tmp_path, failure):
    sink = Kept()
    orders = Orders(tmp_path, own_node(sink))
    orders.commit(30)
    sink.failures += [failure, failure, OSError("close", "closing fails, too")]
    drain(orders.publisher())
    assert sent(sink) == orders.sent
    call = failure.args[0]
    again = ["open", "send", "close"] if call == "send" else ["open", "close"]
    assert sink.calls == [*again, *again, "open", "send", "send", "close"]


def test_a_batch_that_is_refused_is_put_aside_and_the_next_one_follows(tmp_path):
    sink, refused = Kept(), None
    orders = Orders(tmp_path, own_node(sink))
    refused = Refused(tmp_path, SINK, APP)
    orders.commit(50)
    orders.commit(4)
    sink.failures += [RefusedError("send", "closed account")]
    drain(orders.publisher(refused=refused))
    assert sent(sink) == orders.sent[BATCH:]
    assert refused.count() == BATCH
    drain(orders.publisher(refused=refused))
    assert len(sink.batches) == 3


def test_why_it_waits_is_told(tmp_path):
    sink = Kept()
    orders = Orders(tmp_path, own_node(sink))
    orders.commit(3)
    sink.failures += [OSError("send", "no route")] * 99
    stop, waits = Event(), orders.publisher()
    thread = Thread(target=waits.run, args=(stop, Event()))
    thread.start()
    wait_for(lambda: waits.state.error == "send() failed: OSError: [Errno send] no route", "the reason is told")
    assert waits.state.waiting_rows == 3
    sink.failures.clear()
    wait_for(lambda: waits.state.published_rows == 3 and not waits.state.error, "it is sent once it works again")
    stop.set()
    thread.join(30)


def test_what_is_committed_while_a_sink_cannot_be_opened_or_takes_its_time_counts_at_once(tmp_path):
    released, called, taken = Event(), Event(), Event()

    class Away(SendOnly):
        def open(self):
            if not released.is_set():
                raise OSError("no route")

        def send(self, batch):
            called.set()
            taken.wait(30)
            super().send(batch)

    orders = Orders(tmp_path, own_node(Away([])))
    stop, waits = Event(), orders.publisher()
    thread = Thread(target=waits.run, args=(stop, Event()), daemon=True)
    thread.start()
    wait_for(lambda: "no route" in waits.state.error, "it cannot be opened")
    orders.commit(3)
    wait_for(lambda: waits.state.waiting_rows == 3, "what is committed meanwhile waits")
    released.set()
    wait_for(called.is_set, "it gets a batch")
    before = waits.state
    orders.commit(4)
    wait_for(lambda: waits.state.waiting_rows == 7, "what is committed during a long call waits, too")
    assert waits.state.waiting_bytes > before.waiting_bytes
    assert waits.state.waiting_since_s == before.waiting_since_s
    taken.set()
    wait_for(lambda: waits.state.published_rows == 7, "all is delivered")
    stop.set()
    thread.join(30)


def test_a_slow_sink_does_not_stop_another(tmp_path):
    released = Event()

    class Slow(SendOnly):
        def send(self, batch):
            released.wait(30)
            super().send(batch)

    slow, quick = Orders(tmp_path / "slow", own_node(Slow([]))), Orders(tmp_path / "quick", own_node(SendOnly([])))
    slow.commit(3)
    stop, publishers = Event(), [slow.publisher(), quick.publisher()]
    threads = [Thread(target=each.run, args=(stop, Event())) for each in publishers]
    for thread in threads:
        thread.start()
    for _ in range(3):
        quick.commit(30)
    wait_for(lambda: publishers[1].state.published_rows == 90, "the quick one is through")
    assert publishers[0].state.published_rows == 0
    released.set()
    wait_for(lambda: publishers[0].state.published_rows == 3, "the slow one follows")
    stop.set()
    for thread in threads:
        thread.join(30)


def test_of_two_publishers_the_one_that_began_last_goes_on_and_moves_the_mark(tmp_path):
    older_is_in, may_go_on, ended = Event(), Event(), []
    sink = Kept()
    orders = Orders(tmp_path, own_node(sink))
    orders.commit(30)

    def wait(step):
        if step == "rows read":
            older_is_in.set()
            may_go_on.wait(30)

    older = orders.publisher(on_step=wait, is_newest=lambda: False)

    def run():
        try:
            older.run(Event(), Event())
        except SinkFencedError as error:
            ended.append(error)

    thread = Thread(target=run)
    thread.start()
    assert older_is_in.wait(30)
    drain(orders.publisher())
    may_go_on.set()
    thread.join(30)
    assert len(ended) == 1
    orders.commit(5)
    drain(orders.publisher())
    assert sent(sink) == orders.sent


def test_one_who_is_overtaken_while_a_batch_is_under_way_does_not_move_the_mark_back(tmp_path):
    is_sending, may_go_on, ended = Event(), Event(), []

    class Waits(SendOnly):
        def send(self, batch):
            if not is_sending.is_set():
                is_sending.set()
                may_go_on.wait(30)
            super().send(batch)

    sink = Waits([])
    orders = Orders(tmp_path, own_node(sink))
    orders.commit(30)
    older = orders.publisher(is_newest=lambda: False)

    def run():
        try:
            older.run(Event(), Event())
        except SinkFencedError as error:
            ended.append(error)

    thread = Thread(target=run)
    thread.start()
    assert is_sending.wait(30)
    drain(orders.publisher())
    may_go_on.set()
    thread.join(30)
    assert len(ended) == 1
    assert sink.sent == orders.sent + orders.sent[:BATCH]
    orders.commit(5)
    drain(orders.publisher())
    assert sink.sent[30 + BATCH :] == orders.sent[30:]


def test_a_mark_that_is_lost_stops_the_sink_until_somebody_decides(tmp_path):
    sink = Kept()
    orders = Orders(tmp_path, own_node(sink))
    orders.commit(30)
    drain(orders.publisher())
    marks = orders.outbox().folder / FOLDER
    marks.put(max(file.name for file in marks.list()), b"{")
    orders.commit(2)
    with pytest.raises(MarkLostError, match="rows up to epoch 1 have been published"):
        drain(orders.publisher())
    resumed = orders.publisher()
    resumed.decide("resume")
    drain(resumed)
    assert sent(sink) == orders.sent


def test_the_mark_that_an_earlier_version_kept_in_one_file_counts(tmp_path):
    sink = Kept()
    orders = Orders(tmp_path, own_node(sink))
    orders.commit(BATCH)
    orders.commit(7)
    outbox = orders.outbox()
    outbox.folder.put(
        "_published.json", f'{{"owner":"a","outbox":"{outbox.id}","epoch":1,"rows":{BATCH},"refusals":0}}'.encode()
    )
    drain(orders.publisher())
    assert sent(sink) == orders.sent[BATCH:]


def test_one_who_slept_until_the_number_of_its_next_mark_was_cleaned_up_is_fenced_and_changes_nothing(tmp_path):
    outbox = Orders(tmp_path, own_node(Kept())).outbox()
    older, newer = MarkFile(outbox.folder), MarkFile(outbox.folder)
    for epoch in (1, 2, 3):
        newer.write(Published(outbox.id, Mark(epoch, epoch)))
    assert len([*(outbox.folder / FOLDER).list()]) == 1
    for call in (older.read, older.refusals, older.count_refusal, lambda: older.write(Published(outbox.id, Mark(9)))):
        with pytest.raises(SinkFencedError, match="another publisher has taken over"):
            call()
    assert newer.read() == MarkFile(outbox.folder).read() == Published(outbox.id, Mark(3, 3))


@pytest.mark.parametrize(("failing_write", "is_repeated"), [(1, False), (2, True)])
def test_a_mark_that_cannot_be_written_is_tried_again(tmp_path, monkeypatch, failing_write, is_repeated):
    """At the connection's first write nothing has been sent yet; at its second the batch has."""
    sink, writes, write = Kept(), [], Local.put_if_absent
    orders = Orders(tmp_path, own_node(sink))
    orders.commit(3)

    def full_disk(folder, name, content):
        writes.append(name)
        if len(writes) == failing_write:
            raise OSError(28, "No space left on device")
        return write(folder, name, content)

    monkeypatch.setattr(Local, "put_if_absent", full_disk)
    drain(orders.publisher())
    assert sent(sink) == orders.sent * (1 + is_repeated)
    assert len({batch.idempotency_key for batch in sink.batches}) == 1


def test_pauses_double_with_jitter_up_to_the_longest_and_are_longer_if_asked(tmp_path, monkeypatch):
    orders = Orders(tmp_path, own_node(Kept()))
    waited = []
    monkeypatch.setattr(publisher, "FIRST_WAIT_S", 0.2)
    sends = Publisher(orders.outbox(), SINK, lambda: None, application=APP)
    monkeypatch.setattr(sends, "_wait", lambda wait_s, *_: waited.append(wait_s))
    for _ in range(3_000):
        sends._fail(SinkError("no"), Event())
    for failures, wait_s in enumerate(waited):
        longest_s = min(30.0, 0.2 * 2.0 ** min(failures, 99))
        assert longest_s / 2 <= wait_s <= longest_s
    assert len(set(waited)) == len(waited)
    for wish_s, expected_s in ((45.0, 45.0), (math.inf, 3600.0)):
        sends._fail(SinkError("no", wait_s=wish_s), Event())
        assert waited[-1] == expected_s


def test_a_disk_that_is_full_while_a_batch_is_put_aside_is_waited_for(tmp_path, monkeypatch):
    sink, aside, full = Kept(), Refused(tmp_path, SINK, APP), [OSError(errno.ENOSPC, "No space left on device")]
    sink.failures = [RefusedError("send"), RefusedError("send")]
    add = aside.add

    def adding(*rows):
        if full:
            raise full.pop()
        add(*rows)

    monkeypatch.setattr(aside, "add", adding)
    orders = Orders(tmp_path, own_node(sink))
    orders.commit(BATCH + 1)
    drain(orders.publisher(refused=aside))
    assert aside.count() == BATCH
    assert sent(sink) == orders.sent[BATCH:]


def test_a_publisher_that_cannot_see_whether_its_driver_is_the_newest_goes_on(tmp_path):
    sink, others, away = Kept(), [1], [TimeoutError("no answer")]
    orders = Orders(tmp_path, own_node(sink))
    orders.commit(1)

    def on_step(name):
        if name == "rows read" and others:
            others.pop()
            MarkFile(orders.outbox().folder)

    def is_newest():
        if away:
            raise away.pop()
        return True

    drain(orders.publisher(on_step=on_step, is_newest=is_newest))
    assert not others
    assert not away
    assert sink.calls.count("open") == 2, "it does not connect again before it can see that"
    assert sent(sink) == orders.sent
