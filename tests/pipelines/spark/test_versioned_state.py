"""A versioned table, and records that wait for it, in a real run: killed, lost and restored, verified, queried."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.faults.dying import KilledError
from tests.pipelines.spark.inline import Place, Topics
from weir import Application, Int64, StateReader, StreamsBuilder, String
from weir.infra.settings import Settings
from weir.pipelines.cli.app import app
from weir.pipelines.operations import registry
from weir.pipelines.operations.verify import verify_application
from weir.state.commit.tables import read_rows
from weir.state.engine.cache import TaskStoreCache
from weir.testing import TopologyTestDriver

START = 1_700_000_000_000
OUT = ["currency", "amount", "rate", "_ts"]


class Market(Place):
    @property
    def state_folder(self) -> Path:
        return self.folder / "state" / "market"

    def written(self) -> list[tuple]:
        return read_rows(self.warehouse / "market" / "converted").sort("_epoch", "_seq").select(OUT).rows()

    def rows_that_agree(self) -> int:
        return sum(agreement.rows for agreement in verify_application(Settings(dir=self.folder), self.application))


def application() -> Application:
    builder = StreamsBuilder()
    rates = builder.table(
        "rates",
        key=String("currency"),
        value=Int64("rate"),
        store="rates",
        history_retention=timedelta(milliseconds=400),
    )
    builder.stream("sales", key=String("currency"), value=Int64("amount")).left_join(
        rates, grace=timedelta(milliseconds=90), store="waiting"
    ).to_delta("converted")
    return Application("market", builder, commit_interval=timedelta(milliseconds=1))


def records(topic: str) -> list[tuple[bytes, bytes | None, int]]:
    """A record every 10 ms, a third of them up to 120 ms late, with some deletions among the rates; two very late."""
    found = []
    for index in range(60):
        lot = index * 7919 % 101
        late_ms = 900 if index in (40, 50) else lot if lot % 3 == 0 else 0
        value = None if topic == "rates" and lot % 11 == 5 else Int64().encode(index)
        found.append((b"e" if lot % 2 else b"d", value, START + 1_000 + index * 10 - late_ms))
    return found


@pytest.fixture
def market(tmp_path):
    yield Market(
        application(), Topics({(topic, 0): records(topic) for topic in ("rates", "sales")}), tmp_path, max_records=11
    )
    TaskStoreCache.close_all()


def of_single_records(market: Market) -> list[tuple]:
    """What the test driver writes, given the records in the order in which a task takes them."""
    queues = {topic: list(rows) for (topic, _), rows in market.topics.rows.items()}
    with TopologyTestDriver(application()) as driver:
        inputs = {topic: driver.create_input_topic(topic) for topic in ("rates", "sales")}
        while waiting := [topic for topic in inputs if queues[topic]]:
            topic = min(waiting, key=lambda topic: queues[topic][0][2])
            key, value, time_ms = queues[topic].pop(0)
            inputs[topic].pipe_input(key, value, timestamp_ms=time_ms)
        return [
            (*record.row.values(), record.timestamp)
            for record in driver.create_output_table("converted").read_records()
        ]


@pytest.mark.slow
def test_after_a_kill_and_with_the_state_lost_the_results_are_those_of_single_records(market):
    steps = []

    def on_step(name: str) -> None:
        steps.append(name)
        if steps.count("state written") == 4:
            raise KilledError

    with pytest.raises(KilledError):
        market.run(on_step)
    TaskStoreCache.close_all()
    committed = market.written()
    shutil.rmtree(market.state_of("0_0"))
    market.run()
    assert len(market.restores.done) == 1
    assert market.written()[: len(committed)] == committed
    assert 0 < len(committed) < len(market.written())
    assert market.written() == of_single_records(market)
    assert len({amount for _, amount, _, _ in market.written()}) > 40
    assert market.rows_that_agree() > 20


def test_a_query_as_of_a_time_gives_the_row_that_was_valid_then(market, monkeypatch):
    market.run()
    rates = sorted(
        (time_ms, index, value) for index, (key, value, time_ms) in enumerate(records("rates")) if key == b"e"
    )
    reader = StateReader(market.folder, market.application)
    for time_ms in range(START + 1_250, START + 1_600, 50):
        (*_, (_, _, value)) = [rate for rate in rates if rate[0] <= time_ms]
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
        found = reader.get("rates", "e", as_of=moment).rows["rate"].to_list()
        assert found == ([] if value is None else [int.from_bytes(value, "big")])
    monkeypatch.setattr(registry, "registered_application", lambda settings, name: market.application)
    shown = CliRunner().invoke(
        app, ["query", "market", "rates", "e", "--json", "--dir", str(market.folder), "--as-of", moment.isoformat()]
    )
    assert (shown.exit_code, f'"rate": {found[0]}' in shown.stdout) == (0, True)
