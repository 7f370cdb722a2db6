"""A SQL sink's table has every committed row once, in order, or the newest of each key, whoever publishes and wherever
it dies."""

import os
import signal
import time
from collections import defaultdict
from threading import Event, Thread

import psutil
import pytest

from tests.databases import Database, PostgresqlServer
from tests.forked import end_of, ended, started
from tests.pipelines.publishing.sql_shop import APP, STEPS, TABLE, SqlShop, drain, drain_until, tombstone
from tests.waiting import wait_for
from weir.pipelines.publishing import publisher, sql_address
from weir.pipelines.publishing.connection import RefusedRowsError, SinkFencedError
from weir.pipelines.publishing.publisher import MarkLostError, OtherOutboxError
from weir.state.commit.outbox import Outbox

MODES = ("append", "upsert")


def by_user(rows):
    """The rows of each user in order: those of several tasks come in any."""
    found = defaultdict(list)
    for row in rows:
        found[row["user"]].append(row)
    return found


def holds(database, shop) -> bool:
    """Whether the table is what plain Python makes of the records."""
    found = database.rows(TABLE)
    if shop.sink.mode == "append":
        return by_user(found) == by_user(shop.sent)
    return len(found) == len(shop.newest) and {row["user"]: row for row in found} == shop.newest


@pytest.mark.parametrize("mode", MODES)
def test_committed_rows_are_in_the_table_and_leave_the_outbox(tmp_path, database, mode):
    shop = SqlShop(tmp_path, database.url, mode)
    shop.commit(30, 50)
    drain(shop.publisher())
    shop.commit(1)
    shop.commit(40, 3)
    drain(shop.publisher())
    assert holds(database, shop)
    assert not list((tmp_path / "_outbox" / TABLE).glob("*.parquet"))
    assert Outbox(tmp_path, TABLE, APP).floor == 3
    (mark,) = database.rows("weir_progress")
    assert (mark["application"], mark["sink"], mark["epoch"], mark["rows"]) == (APP, TABLE, 3, 43)


@pytest.mark.faults
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("step", STEPS)
def test_a_sql_publisher_may_be_killed_at_any_step(tmp_path, database, mode, step):
    """At the first or a later time that it comes to the step; making tables is a commit, too."""
    shop = SqlShop(tmp_path, database.url, mode)
    for times in (1, 1) if step == "outbox emptied" else (1, 2, 3):
        shop.commit(30, 50)
        shop.commit(7)
        code = ended(drain_until, tmp_path, database.url, mode, signal.SIGKILL, step, times)
        assert code == -signal.SIGKILL
    drain(shop.publisher())
    assert holds(database, shop)


@pytest.mark.parametrize("mode", MODES)
def test_of_two_sql_publishers_the_one_that_began_last_goes_on(tmp_path, database, mode):
    shop = SqlShop(tmp_path, database.url, mode)
    shop.commit(30, 50)
    has_read, may_go_on, ended = Event(), Event(), []

    def on_step(step):
        if step == "rows read":
            has_read.set()
            may_go_on.wait(30)

    older = shop.publisher(on_step=on_step, is_newest=lambda: False)

    def run():
        try:
            older.run(Event(), Event())
        except SinkFencedError as error:
            ended.append(error)

    thread = Thread(target=run)
    thread.start()
    assert has_read.wait(30)
    drain(shop.publisher())
    shop.commit(4)
    may_go_on.set()
    thread.join(60)
    assert len(ended) == 1
    drain(shop.publisher())
    assert holds(database, shop)


def test_the_newest_drivers_publisher_takes_over_a_table_again_from_an_older_one(tmp_path, database):
    shop = SqlShop(tmp_path, database.url)
    shop.commit(5)
    stop = Event()
    newest = shop.publisher()
    thread = Thread(target=newest.run, args=(stop, Event()))
    thread.start()
    wait_for(lambda: newest.state.published_rows == 5, "the first rows are published")
    drain(shop.publisher(is_newest=lambda: False))  # one of a driver that slept
    shop.commit(6)
    wait_for(lambda: newest.state.published_rows == 11, "it connects again")
    stop.set()
    thread.join(30)
    assert holds(database, shop)


def test_a_publisher_that_sleeps_in_a_transaction_is_ended_by_the_next(tmp_path, postgresql, monkeypatch):
    monkeypatch.setattr(sql_address, "ANSWER_LIMIT_S", 1)
    monkeypatch.setattr(publisher, "FIRST_WAIT_S", 0.05)
    shop = SqlShop(tmp_path, postgresql.url)
    shop.commit(30)
    sleeper = started(drain_until, tmp_path, postgresql.url, "append", signal.SIGSTOP, "before commit", 3)
    wait_for(lambda: psutil.Process(sleeper.pid).status() == psutil.STATUS_STOPPED, "it sleeps before its rows are in")
    assert postgresql.rows(TABLE) == []
    began_s = time.monotonic()
    drain(shop.publisher())
    assert time.monotonic() - began_s < sql_address.SLEEP_LIMIT_S / 2, "it did not wait for the sleeper's own limit"
    assert holds(postgresql, shop)
    shop.commit(7)
    os.kill(sleeper.pid, signal.SIGCONT)
    assert end_of(sleeper) == 0  # it has connected again, and gone on after what is in
    assert holds(postgresql, shop)


def test_a_database_that_stops_and_starts_is_written_again(tmp_path, monkeypatch):
    monkeypatch.setattr(publisher, "FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(publisher, "LONGEST_WAIT_S", 0.5)
    server = PostgresqlServer()
    shop = SqlShop(tmp_path, server.url())
    stop, publishing = Event(), shop.publisher()
    thread = Thread(target=publishing.run, args=(stop, Event()))
    try:
        shop.commit(5)
        thread.start()
        wait_for(lambda: publishing.state.published_rows == 5, "the first rows are published")
        server.stop()
        shop.commit(6)
        wait_for(lambda: publishing.state.error, "the reason is told")
        assert publishing.state.waiting_rows == 6
        server.start()
        wait_for(lambda: publishing.state.published_rows == 11, "the rows are delivered")
        stop.set()
        thread.join(30)
        database = Database(server.url())
        assert holds(database, shop)
        database.close()
    finally:
        stop.set()
        thread.join(30)
        server.close()


def test_a_table_made_anew_is_not_filled_a_second_time_without_a_word(tmp_path, database):
    shop = SqlShop(tmp_path, database.url)
    shop.commit(5)
    drain(shop.publisher())
    database.run(f"DROP TABLE {TABLE}")
    shop.commit(6)
    with pytest.raises(
        MarkLostError, match="rows up to epoch 1 have been published, but its target has no record of this"
    ):
        drain(shop.publisher())
    with pytest.raises(MarkLostError):
        drain(shop.publisher())
    assert database.rows(TABLE) == []
    decided = shop.publisher()
    decided.decide("resume")
    drain(decided)
    assert database.rows(TABLE) == shop.sent[5:]


def test_of_two_folders_with_one_application_the_older_one_stops_writing(tmp_path, tmp_path_factory, database):
    shop = SqlShop(tmp_path, database.url)
    shop.commit(5)
    drain(shop.publisher())
    other = SqlShop(tmp_path_factory.mktemp("other"), database.url)
    other.commit(3)
    drain(other.publisher())
    shop.commit(2)
    with pytest.raises(OtherOutboxError, match="in another folder has published to its target; end one of the two"):
        drain(shop.publisher())


def skipping(publisher):
    """A publisher for which somebody decides to skip whatever is refused."""

    class Skips(type(publisher)):
        def _goes_on_after(self, error):
            self.decide("skip")
            return super()._goes_on_after(error)

    publisher.__class__ = Skips
    return publisher


def test_refused_rows_are_sent_again_up_to_the_first_that_is_refused_once_more(tmp_path, database):
    columns = '"user" text, item text, cents bigint'
    database.run(f"CREATE TABLE {TABLE} ({columns}, CHECK (cents < 20))")
    shop = SqlShop(tmp_path, database.url)
    users = [{"user": f"user-{cents}", "item": "pen", "cents": cents} for cents in (10, 20, 21, 30, 22)]
    shop.commit_rows(users)
    drain(skipping(shop.publisher(refused=shop.refused())))
    assert database.rows(TABLE) == users[:1]
    database.run(f"ALTER TABLE {TABLE} RENAME TO narrow")
    database.run(f"CREATE TABLE {TABLE} ({columns}, CHECK (cents < 25))")
    for _ in range(2):
        with pytest.raises(RefusedRowsError, match=r"^row 3 of epoch 1, key user='user-30': the table orders does not"):
            drain(shop.publisher_of_refused())
        assert database.rows(TABLE) == users[1:3]
    assert shop.refused().count() == 2, "those that the table has are aside no longer"


def test_a_row_that_the_database_refuses_is_told_with_its_reason_and_may_be_put_aside(tmp_path, database):
    database.run(f'CREATE TABLE {TABLE} ("user" text, item text, cents bigint, CHECK (cents < 20))')
    shop = SqlShop(tmp_path, database.url)
    shop.commit(30)
    assert any((row["cents"] or 0) >= 20 for row in shop.sent)
    with pytest.raises(
        RefusedRowsError, match=r"the table orders does not take the row: .*(violates check|CHECK constraint)"
    ):
        drain(shop.publisher())
    aside = shop.refused()
    drain(skipping(shop.publisher(refused=aside)))
    assert database.rows(TABLE) == [row for row in shop.sent if (row["cents"] or 0) < 20]
    refused = [row for row in shop.sent if (row["cents"] or 0) >= 20]
    assert aside.count() == len(refused)
    database.run(f"ALTER TABLE {TABLE} RENAME TO narrow")
    going_on = shop.publisher(refused=aside)  # the new table knows of no row
    going_on.decide("resume")
    drain(going_on)
    drain(shop.publisher_of_refused())
    assert database.rows(TABLE) == refused


@pytest.mark.parametrize(
    ("declared", "item", "reason"),
    [
        ("item varchar(3)", "abcd", "value too long for type character varying"),
        ("item text NOT NULL", None, 'null value in column "item"'),
        ("item text REFERENCES items", "none", "violates foreign key constraint"),
        ("item text", "a\0b", "invalid byte sequence"),
    ],
)
def test_values_that_postgresql_never_takes_are_refused(tmp_path, postgresql, declared, item, reason):
    postgresql.run("CREATE TABLE items (item text PRIMARY KEY)")
    postgresql.run(f'CREATE TABLE {TABLE} ("user" text, {declared}, cents bigint)')
    shop = SqlShop(tmp_path, postgresql.url)
    shop.commit_rows([{"user": "ann", "item": item, "cents": 1}])
    with pytest.raises(RefusedRowsError, match=reason):
        drain(shop.publisher())


def test_an_upsert_whose_key_is_null_is_refused(tmp_path, database):
    shop = SqlShop(tmp_path, database.url, "upsert")
    shop.commit_rows([{"user": None, "item": "tea", "cents": 1}])
    with pytest.raises(RefusedRowsError, match="the table orders does not take a row whose key has a null"):
        drain(shop.publisher())


def test_keys_that_only_the_database_takes_for_one_become_one_row(tmp_path, postgresql):
    postgresql.run(f'CREATE TABLE {TABLE} ("user" char(4) PRIMARY KEY, item text, cents bigint)')
    shop = SqlShop(tmp_path, postgresql.url, "upsert")
    shop.commit_rows([{"user": user, "item": "tea", "cents": cents} for cents, user in enumerate(["ann", "ann "])])
    drain(shop.publisher(refused=shop.refused()))
    assert [(row["user"], row["cents"]) for row in postgresql.rows(TABLE)] == [("ann ", 1)]


def test_a_deleted_key_may_come_again(tmp_path, database):
    shop = SqlShop(tmp_path, database.url, "upsert")
    tea = {"user": "ann", "item": "tea", "cents": 1}
    for rows in ([tea], [tombstone("ann"), tombstone("bob")], [tea, tombstone("ann")], [tombstone("ann"), tea]):
        shop.commit_rows(rows)
        drain(shop.publisher())
        assert holds(database, shop)
