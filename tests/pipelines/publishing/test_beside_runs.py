"""Sinks beside real runs: a slow one holds nobody up before its limit; of two drivers only the newer one delivers."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from threading import Event

import psutil
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from typer.testing import CliRunner

from tests.pipelines.publishing.requests_server import Answer, RequestsServer
from tests.waiting import wait_for
from weir.pipelines.cli.app import app
from weir.state.commit.tables import read_rows

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow]

PROGRAM = """
from datetime import timedelta

from weir import Application, StreamsBuilder, String

builder = StreamsBuilder()
orders = builder.stream({source!r}, key=String("user"), value=String("order"))
orders.to_delta("all")
{sinks}
app = Application("shop", builder, commit_interval=timedelta(milliseconds=100))
"""
WEIR = [sys.executable, "-c", "from weir.pipelines.cli.app import main; main()"]
LIMIT_S = 150.0
OUTBOX_MAX_BYTES = 60_000


class Shop:
    """A folder with a program that writes orders to a table and to sinks, and its runs."""

    def __init__(self, folder, broker, source, sinks):
        self.folder, self.broker, self.source = folder, broker, source
        calls = "\n".join(f"orders.{sink}" for sink in sinks)
        (folder / "beside_shop.py").write_text(PROGRAM.format(source=source, sinks=calls))
        self.runs: list[subprocess.Popen] = []
        self.sent: list[str] = []

    def produce(self, *orders):
        producer = Producer({"bootstrap.servers": self.broker})
        for order in orders:
            producer.produce(self.source, order, "ann", timestamp=1_000)
        assert producer.flush(LIMIT_S) == 0
        self.sent += orders

    def start(self, *options):
        command = [*WEIR, "run", "beside_shop:app", *options]
        environment = {**os.environ, "WEIR_BOOTSTRAP_SERVERS": self.broker}
        self.runs.append(subprocess.Popen(command, cwd=self.folder, env=environment))
        return self.runs[-1]

    def table(self):
        folder = self.folder / ".weir" / "warehouse" / "shop" / "all"
        return read_rows(folder).sort("_epoch", "_seq")["order"].to_list() if DeltaTable.is_deltatable(folder) else []

    def asked(self, *command):
        return json.loads(CliRunner().invoke(app, [*command, "shop", "--json"]).stdout)


@pytest.fixture
def shop(tmp_path, broker, topic, monkeypatch):
    folder = tmp_path / "my shop"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("WEIR_BOOTSTRAP_SERVERS", broker)
    made: list[Shop] = []

    def make(*sinks):
        made.append(Shop(folder, broker, topic(), sinks))
        return made[0]

    yield make
    for run in made[0].runs:
        if run.poll() is None:
            for process in [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]:
                process.kill()
            run.wait()


def test_a_slow_sink_holds_up_nothing_until_its_outbox_is_full_and_gets_all_in_order_when_it_is_back(shop):
    server, gate = RequestsServer(), Event()
    try:
        place = shop(f'to_http({server.url!r}, name="slow", max_records=50)')
        server.next += [*[Answer(after=gate)] * 10, *[Answer(503)] * 3]
        place.start("--set", f"outbox_max_bytes={OUTBOX_MAX_BYTES}")
        for part in range(5):
            place.produce(*[f"{part}-{number}" for number in range(100)])
            wait_for(lambda: place.table() == place.sent, "the ingest goes on", LIMIT_S, every_s=0.2)
        assert server.delivered() == []
        waiting = lambda: [sink["waiting_rows"] for sink in place.asked("sink", "list")]
        wait_for(lambda: waiting() == [500], "all of them wait", LIMIT_S, every_s=0.3)

        place.produce(*[random.Random(number).randbytes(1_000).hex() for number in range(200)])
        wait_for(lambda: place.asked("status")["state"] == "waiting", "reading stops", LIMIT_S, every_s=0.3)
        place.produce("last")
        assert "bytes wait for sinks" in place.asked("status")["waits_for"]
        assert place.table()[-1] != "last"
        gate.set()
        delivered = lambda: [row["order"] for request in server.delivered() for row in request.rows]
        wait_for(lambda: delivered() == place.sent, "all is delivered, in order", LIMIT_S, every_s=0.3)
        assert place.table() == place.sent
        server.check_repeats("order")
    finally:
        gate.set()
        server.close()


def test_of_two_drivers_of_which_one_was_frozen_only_the_newer_ones_sinks_deliver(shop, topic, postgresql):
    """An endpoint may get a request twice, which its key tells."""
    server, copies = RequestsServer(), topic()
    of_topic = lambda: CliRunner().invoke(app, ["kafka", "consume", copies, "--json"]).stdout.splitlines()
    is_there = lambda: postgresql.query("SELECT to_regclass('copies') AS it")[0]["it"]
    of_table = lambda: postgresql.rows("copies") if is_there() else []
    read = {
        "topic": lambda: [json.loads(line)["value"] for line in of_topic()],
        "table": lambda: [row["order"] for row in of_table()],
        "endpoint": lambda: [row["order"] for request in server.delivered() for row in request.rows],
    }
    place = shop(
        f'to({copies!r}, name="topic")',
        f'to_sql("copies", url={postgresql.url!r})',
        f'to_http({server.url!r}, name="endpoint")',
    )
    sent = lambda: dict.fromkeys(read, place.sent)
    published = lambda: {name: found() for name, found in read.items()}
    try:
        place.produce(*[f"first {number}" for number in range(300)])
        old = place.start()
        wait_for(lambda: published() == sent(), "the first are published", LIMIT_S, every_s=0.3)
        place.produce(*[f"second {number}" for number in range(300)])
        frozen = [psutil.Process(old.pid), *psutil.Process(old.pid).children(recursive=True)]
        for process in frozen:
            process.send_signal(signal.SIGSTOP)
        new = place.start("--take-over")
        wait_for(lambda: published() == sent(), "the newer driver publishes the rest", LIMIT_S, every_s=0.3)
        place.produce(*[f"third {number}" for number in range(300)])
        for process in frozen:
            process.send_signal(signal.SIGCONT)
        assert old.wait(LIMIT_S) != 0, "the older driver finds the newer one"
        place.produce(*[f"fourth {number}" for number in range(300)])
        is_all = lambda: all(len(found) >= len(place.sent) for found in published().values())
        wait_for(is_all, "the newer driver goes on", LIMIT_S, every_s=0.3)
        new.send_signal(signal.SIGINT)
        assert new.wait(LIMIT_S) in (0, -signal.SIGINT)
        assert published() == sent()
        assert place.table() == place.sent
        server.check_repeats("order")
    finally:
        server.close()
