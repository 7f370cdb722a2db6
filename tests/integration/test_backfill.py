"""Backfills from the command line, on a real broker and real Spark, while the live application runs."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer
from polars.testing import assert_frame_equal
from typer.testing import CliRunner

from tests.pipelines.backfill.program import OUTPUTS, app, archive, mended, readings
from tests.waiting import wait_for
from weir.infra.settings import Settings
from weir.pipelines.backfill.outputs import day_outputs
from weir.pipelines.cli.app import app as weir
from weir.pipelines.operations.registry import register
from weir.pipelines.operations.verify import verify_application
from weir.pipelines.spark.runner import run
from weir.state.changelog.as_of import state_as_of
from weir.state.commit.log import newest_commit
from weir.state.commit.tables import read_rows, read_table

pytestmark = [pytest.mark.broker, pytest.mark.spark]

REFERENCE = "tests.pipelines.backfill.program:app"
MENDED = "tests.pipelines.backfill.program:mended"
DAYS = ("2024-05-02", "2024-05-05")
LIMIT_S = 90.0


@pytest.fixture(scope="module")
def live(tmp_path_factory, broker, kafka_admin, spark):
    """Settings of a folder whose application is running and has read all readings except the last day's, a function
    that produces more of them, and one that ends the run."""
    settings = Settings(dir=tmp_path_factory.mktemp("backfill"), slots=2, bootstrap_servers=broker)
    kafka_admin.create_topic("readings", 2)
    rows = readings()
    produce(broker, rows[:200])
    register(settings, "sensors", REFERENCE)
    stop = threading.Event()
    driver = threading.Thread(
        target=run, args=(REFERENCE, settings), kwargs={"bootstrap_servers": broker, "stop": stop, "spark": spark}
    )
    driver.start()
    wait_for(lambda: records_in(settings) == 200, "it has caught up")

    def end() -> None:
        stop.set()
        driver.join(60)
        assert not driver.is_alive()

    yield settings, lambda first, end: produce(broker, rows[first:end]), end
    end()


def produce(broker: str, rows: list) -> None:
    producer = Producer({"bootstrap.servers": broker})
    for key, value, time_ms in rows:
        producer.produce("readings", value, key, partition=(key[-1] - ord("0")) % 2, timestamp=time_ms)
    producer.flush()


def records_in(settings: Settings) -> int:
    newest = newest_commit(settings.warehouse, "sensors")
    return sum(task.totals.get("records_in", 0) for task in newest.tasks.values() if task.positions) if newest else 0


def started(settings: Settings, *arguments: str, epoch_records: int = 1_000) -> subprocess.Popen:
    """A backfill in a separate process."""
    return command(settings, "run", "sensors", *DAYS, *arguments, "--set", f"max_epoch_records={epoch_records}")


def command(settings: Settings, *arguments: str) -> subprocess.Popen:
    """``weir backfill`` in a separate process."""
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from weir.pipelines.cli import main; main()",
            "backfill",
            *arguments,
            "--dir",
            str(settings.dir),
            "--bootstrap-servers",
            settings.bootstrap_servers,
            "--set",
            "slots=2",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen) -> str:
    out, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, errors
    return out


def weir_backfill(settings: Settings, *arguments: str) -> str:
    done = CliRunner().invoke(weir, ["backfill", *arguments, "--dir", str(settings.dir)])
    assert done.exit_code == 0, done.output
    return done.stdout


def listed(settings: Settings) -> list[dict]:
    return json.loads(weir_backfill(settings, "list", "sensors", "--json"))


def outputs(settings: Settings, tables=OUTPUTS) -> dict:
    found = {}
    for table in tables:
        rows = read_table(settings.warehouse / "sensors" / table).drop("_epoch", "_seq", "_deleted")
        found[table] = rows.sort(rows.columns)
    return found


def test_backfills_that_end_early_leave_the_outputs_alone_and_one_over_files_completes(live, tmp_path):
    settings, _, _ = live
    before = outputs(settings)
    archive(readings()).write_parquet(tmp_path / "readings.parquet")
    killed, interrupted = (started(settings, epoch_records=1) for _ in range(2))
    from_files = started(settings, "--from", str(tmp_path / "readings.parquet"))
    wait_for(
        lambda: [row["state"] for row in listed(settings) if row["source"] == "Kafka"] == ["running", "running"],
        "they have begun",
    )
    for process, number in ((killed, signal.SIGKILL), (interrupted, signal.SIGINT)):
        process.send_signal(number)
        process.communicate(timeout=LIMIT_S)
    assert interrupted.returncode == 1
    out, errors = from_files.communicate(timeout=LIMIT_S)
    assert "records in" in out, errors
    left = {row["state"]: row for row in listed(settings)}
    assert left.keys() == {"interrupted", "complete"}
    beyond_ms = day_outputs(app.topology).look_back_ms
    first_ms, end_ms = (datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() * 1000 for day in DAYS)
    assert left["complete"]["records_in"] == sum(
        first_ms - beyond_ms <= row[2] < end_ms + beyond_ms for row in readings()
    )
    assert_same(outputs(settings), before)
    for row in left.values():
        assert "discarded" in weir_backfill(settings, "discard", "sensors", row["id"])
    assert listed(settings) == []
    assert not list((settings.warehouse / "sensors" / "_backfills").iterdir())


def test_three_days_are_swapped_in_by_the_live_driver_and_nothing_changes(live):
    settings, produce_more, _ = live
    before, cut = outputs(settings), newest_commit(settings.warehouse, "sensors").epoch
    out, errors = started(settings, "--swap").communicate(timeout=LIMIT_S)
    assert "swapped in by the commit of epoch" in out, errors
    for table in OUTPUTS:
        assert re.search(rf"^{table} .*\(0 removed, 0 changed, 0 added, \d+ unchanged\)$", errors, re.MULTILINE), errors
    assert out.count("(0 removed, 0 changed, 0 added, ") == len(OUTPUTS), "the driver's answer has them too"
    assert "totals is not included: it is a running table" in out
    assert_same(outputs(settings), before)
    epochs = read_rows(settings.warehouse / "sensors" / "raised")["_epoch"]
    assert (epochs == cut).sum() > 50
    [row] = listed(settings)
    assert row["state"] == "swapped in"
    generation = newest_commit(settings.warehouse, "sensors").generation
    produce_more(200, 220)
    wait_for(lambda: records_in(settings) == 220, "it has read on")
    assert newest_commit(settings.warehouse, "sensors").generation == generation, "the same driver is still running"


def test_days_that_change_much_are_not_swapped_in_by_the_live_driver_unless_told_so(live):
    settings, _, _ = live
    before = outputs(settings)
    refused = command(settings, "run", MENDED, *DAYS, "--swap")
    _, errors = refused.communicate(timeout=LIMIT_S)
    assert refused.returncode == 1
    assert "more than 1 % of a table's rows: hours " in errors
    assert_same(outputs(settings), before)
    [name] = [row["id"] for row in listed(settings) if row["state"] == "complete"]
    where = f"--dir {settings.dir} --bootstrap-servers {settings.bootstrap_servers}"
    assert f"`weir backfill swap {MENDED} {name} --yes {where}`" in errors
    assert "swapped in by the commit of epoch" in weir_backfill(settings, "swap", MENDED, name, "--yes")
    assert outputs(settings)["raised"].height > before["raised"].height


@pytest.mark.long
def test_another_program_is_swapped_in_with_stores_as_if_it_had_run_from_the_beginning(live, broker, spark, tmp_path):
    settings, produce_more, end = live
    assert "220 records in" in finished(command(settings, "run", MENDED, "--everything"))
    [name] = [row["id"] for row in listed(settings) if row["state"] == "complete"]
    refused = CliRunner().invoke(weir, ["backfill", "swap", "sensors", name, "--dir", str(settings.dir)])
    assert (
        "sensors is running, but stores are swapped while it is stopped; run `weir stop sensors --drain --dir "
        in refused.stderr
    )
    produce_more(220, None)
    wait_for(lambda: records_in(settings) == len(readings()), "it has read on")
    end()
    before = outputs(settings)
    _, errors = command(settings, "swap", MENDED, name).communicate(timeout=LIMIT_S)
    assert "more than 1 % of a table's rows: hours " in errors
    assert_same(outputs(settings), before)
    assert "swapped in by the commit of epoch" in finished(command(settings, "swap", MENDED, name, "--yes"))
    undisturbed = Settings(dir=tmp_path, slots=2, bootstrap_servers=broker)
    for place in (settings, undisturbed):
        run(MENDED, place, bootstrap_servers=broker, until_caught_up=True, spark=spark)
    assert_same(outputs(settings, (*OUTPUTS, "totals")), outputs(undisturbed, (*OUTPUTS, "totals")))
    assert_same(stores(settings), stores(undisturbed))
    assert sum(agreement.rows for agreement in verify_application(settings, mended)) > 20
    assert [row["days"] for row in listed(settings)] == ["everything", *["2024-05-02 to 2024-05-04"] * 2]


def stores(settings: Settings) -> dict:
    epoch = newest_commit(settings.warehouse, "sensors").epoch
    return {
        store.name: state_as_of(settings.warehouse / "sensors", store, epoch).drop("_epoch")
        for sub_topology in mended.topology.sub_topologies
        for store in sub_topology.stores
    }


def assert_same(found: dict, wanted: dict) -> None:
    for table, rows in wanted.items():
        assert_frame_equal(found[table], rows)
