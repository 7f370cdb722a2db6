"""How a run with SQL sinks begins: a table that does not fit refuses it, a database that is away does not."""

import time
from contextlib import contextmanager
from threading import Event, Thread

import pytest
from confluent_kafka import Producer

from tests.pipelines.publishing.sql_program import DATABASE
from weir.infra.control import ControlDatabase
from weir.pipelines.publishing.sql_address import SinkAddressError
from weir.pipelines.publishing.sql_table import SinkTableError
from weir.pipelines.spark import publishing, runner
from weir.pipelines.spark.runner import run

pytestmark = pytest.mark.broker

PROGRAM, TOPIC = "tests.pipelines.publishing.sql_program:app", "orders"


@pytest.fixture
def orders(broker, kafka_admin):
    """The program's topic with two orders; it is that of all tests here, since the program is loaded once."""
    if TOPIC not in kafka_admin.topics():
        kafka_admin.create_topic(TOPIC, 1)
        producer = Producer({"bootstrap.servers": broker})
        for customer, cents in (("ann", 500), ("bob", 700)):
            producer.produce(TOPIC, cents.to_bytes(8, "big"), customer)
        producer.flush()


def start(settings, broker):
    return run(PROGRAM, settings, bootstrap_servers=broker, until_caught_up=True)


def test_a_run_does_not_begin_over_a_table_that_does_not_fit(orders, settings, broker, sqlite, monkeypatch):
    monkeypatch.setenv(DATABASE, sqlite.url)
    sqlite.run("CREATE TABLE checked (customer text, cents text)")
    with pytest.raises(SinkTableError, match="sink 'checked': its rows do not fit the table checked: the column cents"):
        start(settings, broker)
    assert not (settings.warehouse / "shop").exists()
    assert sqlite.query("SELECT name FROM sqlite_master") == [{"name": "checked"}]


def test_a_run_does_not_begin_without_a_database(orders, settings, broker, monkeypatch):
    monkeypatch.delenv(DATABASE, raising=False)
    with pytest.raises(SinkAddressError, match=f"the variable {DATABASE} is not set"):
        start(settings, broker)
    assert not (settings.warehouse / "shop").exists()


@contextmanager
def seen_meanwhile(settings):
    """What the control database says within the block: the run's state, and how many rows wait for the first sink."""
    seen, is_over, database = set(), Event(), ControlDatabase(settings.control_database_url)

    def look():
        while not is_over.wait(0.2):
            if (status := database.application_status("shop")) is not None and status.sinks:
                seen.add((status.state, status.sinks[0]["waiting_rows"]))

    thread = Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()


@pytest.mark.spark
def test_a_run_without_an_answer_of_its_database_commits_and_the_next_one_delivers(
    orders, settings, broker, postgresql, monkeypatch
):
    monkeypatch.setenv(DATABASE, "postgresql://127.0.0.1:1/shop")
    monkeypatch.setattr(runner, "CAUGHT_UP_LIMIT_S", 4.0)
    with seen_meanwhile(settings) as seen:
        assert start(settings, broker).records_in == 2
    assert ("stopping", 2) in seen, "it says that it waits for its sinks, and for how many rows"
    stop, stopped_s = Event(), []
    monkeypatch.setattr(runner, "CAUGHT_UP_LIMIT_S", 60.0)
    monkeypatch.setattr(publishing, "STOP_LIMIT_S", 1.0)
    with seen_meanwhile(settings) as seen:

        def stop_while_it_waits():
            while ("stopping", 2) not in seen:
                time.sleep(0.1)
            stopped_s.append(time.monotonic())
            stop.set()

        Thread(target=stop_while_it_waits, daemon=True).start()
        run(PROGRAM, settings, bootstrap_servers=broker, until_caught_up=True, stop=stop)
    assert time.monotonic() - stopped_s[0] < 30, "a stop ends that wait"
    monkeypatch.setenv(DATABASE, postgresql.url)
    start(settings, broker)
    ann, bob = {"customer": "ann", "cents": 500}, {"customer": "bob", "cents": 700}
    assert postgresql.rows("checked") == [ann, bob]
    assert postgresql.query("SELECT customer, total, orders FROM customer_totals ORDER BY 1") == [
        {"customer": "ann", "total": 500, "orders": 1},
        {"customer": "bob", "total": 700, "orders": 1},
    ]
