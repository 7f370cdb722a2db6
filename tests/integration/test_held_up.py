"""A function that is stuck, in a worker of real Spark: the others are committed without it, and a stop kills it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import polars as pl
import psutil
import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from tests.integration.held_up import HELD, RECORDS, TOPICS, USERS
from tests.waiting import wait_for
from weir.pipelines.cli.app import app
from weir.state.commit.log import newest_commit
from weir.state.commit.tables import read_table

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]

STOP_LIMIT_S = 10.0
TERMINATE_LIMIT_S = 15.0
"""With what Dagster itself does when a run ends."""
RUN = ("weir", "run", "tests.integration.held_up:app")
IN_DAGSTER = (
    *("dagster", "asset", "materialize", "-m", "tests.integration.held_up_in_dagster"),
    *("--select", "held_up/ingest"),
    *("--config-json", json.dumps({"ops": {"held_up_ingest": {"config": {"until_caught_up": False}}}})),
)
EXPECTED = {
    f"user-{user}": (len(numbers), sum(numbers)) for user in range(USERS) if (numbers := range(user, RECORDS, USERS))
}


class Site:
    """A folder of the application, and where its call waits."""

    def __init__(self, folder: Path, servers: str) -> None:
        self.folder, self.servers = folder, servers
        for name in ("held", "dagster"):
            (folder / name).mkdir()
        (folder / "dagster" / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")

    def start(self, how: str, *arguments: str) -> subprocess.Popen[bytes]:
        settings = {"DIR": str(self.folder), "BOOTSTRAP_SERVERS": self.servers, "SLOTS": "2"}
        return subprocess.Popen(
            [str(Path(sys.executable).with_name(arguments[0])), *arguments[1:]],
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / "log").open("w"),
            env={
                **os.environ,
                **{f"WEIR_{name}": value for name, value in settings.items()},
                "HELD_UP": str(self.folder / "held"),
                "HELD_UP_HOW": how,
                "DAGSTER_HOME": str(self.folder / "dagster"),
            },
        )

    def stop(self, run: subprocess.Popen[bytes], how: str) -> None:
        if how == "weir stop":
            answer = CliRunner().invoke(app, ["stop", "held_up", "--dir", str(self.folder)])
            assert answer.exit_code == 0, answer.output
        elif how == "Terminate":  # as Dagster's run launcher does it
            with dg.DagsterInstance.from_config(str(self.folder / "dagster")) as instance:
                [of_dagster] = instance.get_runs()
                instance.report_run_canceling(of_dagster)
                run.send_signal(signal.SIGINT)
                run.wait(TERMINATE_LIMIT_S)
                assert instance.get_run_by_id(of_dagster.run_id).status == dg.DagsterRunStatus.CANCELED
        else:
            run.send_signal(signal.Signals[how])

    def let_go(self) -> None:
        (self.folder / "held" / "go").touch()

    @property
    def calls(self) -> list[str]:
        found = self.folder / "held" / "calls"
        return found.read_text().splitlines() if found.exists() else []

    def position(self, topic: str) -> int:
        commit = newest_commit(self.folder / "warehouse", "held_up")
        tasks = commit.tasks.values() if commit else ()
        return sum(offset for task in tasks for offset in task.positions.get(topic, {}).values())

    def totals(self, table: str) -> dict[str, tuple[int, int]]:
        rows = pl.DataFrame(read_table(self.folder / "warehouse" / "held_up" / table))
        newest = rows.sort("_epoch", "_seq", maintain_order=True).select("user", "clicks", "total").rows()
        return {user: (clicks, total) for user, clicks, total in newest}


@pytest.fixture(scope="module")
def servers(broker, kafka_admin) -> str:
    producer = Producer({"bootstrap.servers": broker})
    for topic in TOPICS:
        kafka_admin.create_topic(topic, 1)
        for number in range(RECORDS):
            value = json.dumps({"number": number}).encode()
            producer.produce(topic, value, b"user-%d" % (number % USERS), timestamp=1_000 * number + 1)
    producer.flush()
    return broker


@pytest.mark.parametrize(
    ("how", "stop"),
    [
        pytest.param("waits", "SIGTERM", marks=pytest.mark.long),
        ("holds", "SIGINT"),
        ("waits", "weir stop"),
        pytest.param("waits", "Terminate", marks=pytest.mark.dagster),
    ],
)
def test_a_stuck_call_holds_nobody_up_and_neither_a_stop(tmp_path, servers, how, stop):
    site, (slow, fast) = Site(tmp_path, servers), TOPICS
    run = site.start(how, *(IN_DAGSTER if stop == "Terminate" else RUN))
    below: list[psutil.Process] = []
    try:
        wait_for(lambda: site.calls, "the call is being made")
        wait_for(lambda: site.position(fast) == RECORDS, "the others are committed to the end")
        assert site.position(slow) <= HELD
        assert site.totals(fast) == EXPECTED
        below = psutil.Process(run.pid).children(recursive=True)
        assert int(site.calls[0]) in [process.pid for process in below]
        said = "has been in one call of 'called'" if how == "waits" else "task 0_0 has given no sign of life for "
        log = tmp_path / "logs" / "held_up.log"
        wait_for(lambda: said in log.read_text(), "it is named")
        began_s = time.monotonic()
        site.stop(run, stop)
        assert run.wait(60) == (1 if stop == "Terminate" else 0)
        assert time.monotonic() - began_s < (TERMINATE_LIMIT_S if stop == "Terminate" else STOP_LIMIT_S)
        _, alive = psutil.wait_procs(below, 5)
        assert alive == []
        assert "the run ends without it, and the next one begins that part again" in log.read_text()
        assert site.position(slow) <= HELD
        marks = [mark.name for mark in tmp_path.glob("state/held_up/*/*/unproven.*")]
        assert marks == [] or how == "holds", "a kill for a stuck call counts against no store"
        run = site.start("waits", *RUN, "--until-caught-up")
        if how == "holds":
            site.let_go()
        else:  # it returns late in a run that goes on
            wait_for(lambda: len(site.calls) == 2, "the call is being made again")
            site.let_go()
        assert run.wait(90) == 0
        assert len(site.calls) == (2 if how == "waits" else 1)
    finally:
        for process in [*below, psutil.Process(run.pid)] if run.poll() is None else below:
            if process.is_running():
                process.kill()
        run.wait()
    assert [site.totals(topic) for topic in TOPICS] == [EXPECTED, EXPECTED]
