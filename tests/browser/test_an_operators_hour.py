"""An operator's hour: the bank in a deployment, with traffic, while things are killed, stopped, starved and damaged.

Whatever happens, the pages say so within 30 seconds, and the operator has nothing but the browser to put it right.
``OPERATE_SECONDS`` says how long the hour is; ``make faults`` sets it. A line for each trouble is printed and kept in
``build/hour``, beside the screenshots: what was done, what the page said, and after how many seconds.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import psutil
import pytest
from deltalake import DeltaTable
from playwright.sync_api import TimeoutError

from tests.browser.story import Story
from tests.busy import busy_processors
from tests.faults.bank import PARTITIONS, TRANSFERS, VISITS, app
from tests.faults.bank_run import BankRun
from tests.faults.traffic import Traffic
from tests.orchestration.deployment import START_LIMIT_S, Deployment, deployed
from tests.pipelines.spark.damage import flip_a_bit
from tests.waiting import wait_for
from weir.infra.kafka.admin import KafkaAdmin
from weir.infra.kafka.files import BrokerFiles
from weir.state.commit.protocol import newest_commit

OPERATE_S = float(os.environ.get("OPERATE_SECONDS", 0))
SEED = int(os.environ.get("OPERATE_SEED", 18))
pytestmark = [
    pytest.mark.browser,
    pytest.mark.dagster,
    pytest.mark.spark,
    pytest.mark.broker,
    pytest.mark.faults,
    pytest.mark.timed,
    pytest.mark.skipif(not OPERATE_S, reason="make faults sets OPERATE_SECONDS"),
]

TRUTH_LIMIT_S = 30.0
"""Within this a page says what has happened."""
WELL_LIMIT_S = 120.0
"""Within this it is well again, where a driver starts anew."""
TERMINATED_LIMIT_S = 15.0
"""Within this a terminated run is canceled, its driver having committed."""
LOOK_AGAIN_MS = 5_000
"""After this the operator reloads a page."""
PER_SECOND = 100
TROUBLE_S = 40.0
"""How long something stays stopped: longer than a page may take to say so."""
DEFS = """
from tests.faults.bank import app
from weir.dagster import definitions

defs = definitions(app)
"""
INGEST = "/assets/bank/ingest?view=checks&checkDetail={}"


class Hour:
    """The deployment, the operator's browser, and what came of each trouble."""

    def __init__(self, deployment: Deployment, story: Story, traffic: Traffic, run: BankRun, folder: Path) -> None:
        self.deployment, self.story, self.traffic, self.run = deployment, story, traffic, run
        self._log = folder / "hour.txt"
        self._began_s = time.monotonic()

    def note(self, line: str) -> None:
        line = f"{time.monotonic() - self._began_s:7.0f} s  {line}"
        with self._log.open("a") as log:
            log.write(line + "\n")
        print(line, flush=True)

    def sees(self, path: str, text: str, what: str, limit_s: float = TRUTH_LIMIT_S) -> None:
        """The page says so within ``limit_s``; the operator reloads it now and then."""
        began_s, wanted = time.monotonic(), re.compile(text)
        with self.story.step(re.sub(r"\W+", "-", what)):
            while True:
                self.story.open(path)
                with contextlib.suppress(TimeoutError):
                    self.story.text(wanted).wait_for(timeout=LOOK_AGAIN_MS)
                    break
                assert time.monotonic() - began_s < limit_s, f"{what}: {path} does not say {text!r} in {limit_s:g} s"
            said = self.story.text(wanted).inner_text()
        self.note(f"{what}: said after {time.monotonic() - began_s:.1f} s: {' '.join(said.split())[:300]}")

    def hears(self, text: str, what: str, limit_s: float = TRUTH_LIMIT_S) -> None:
        """``weir status`` says so within ``limit_s``: what Dagster's own page cannot know as soon."""
        wanted, answer = re.compile(text), ""

        def is_said() -> bool:
            nonlocal answer
            asked = [str(Path(sys.executable).with_name("weir")), "status", app.id]
            answer = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
            return wanted.search(answer) is not None

        took_s = wait_for(is_said, f"{what}: weir status says {text!r}", limit_s, every_s=1.0)
        said = next((line for line in answer.splitlines() if wanted.search(line)), "")
        self.note(f"{what}: weir status said after {took_s:.1f} s: {' '.join(said.split())[:300]}")

    def sees_running(self, limit_s: float = TRUTH_LIMIT_S) -> None:
        self.sees(INGEST.format("running"), f"running: process {self.pid} on", "runs", limit_s)

    def launch(self, job: str, limit_s: float = 120.0) -> str:
        """From the job's launchpad, as it opens; how the run ended."""
        began_s = time.monotonic()
        with self.story.step(job, limit_s):
            self.story.open(f"/locations/shop/jobs/{job}/playground")
            self.story.choose_partition(app.id)
            self.story.button("Launch Run").click()
            self.story.text(re.compile("RUN_ENQUEUED")).wait_for()
            ended = self.story.ended()
        self.note(f"{job} by clicks: {ended} after {time.monotonic() - began_s:.1f} s")
        return ended

    def start(self) -> None:
        """From the page of the ingest's job."""
        before = self.generation
        with self.story.step("start"):
            self.story.open("/locations/shop/jobs/bank_run")
            self.story.button("Materialize all").click()
            self.story.open_launched_run()
        self.wait_for_driver(before)

    def terminate(self) -> None:
        """From the page of the driver's run."""
        run = self.deployment.run()
        with self.story.step("terminate"):
            self.story.open(f"/runs/{run.run_id}")
            self.story.button("Terminate").click()
            dialog = self.story.page.get_by_role("dialog")
            dialog.get_by_role("button", name=re.compile("Terminate")).click()
        took_s = wait_for(
            lambda: self.deployment.is_in(run, dg.DagsterRunStatus.CANCELED), "it is canceled", TERMINATED_LIMIT_S
        )
        assert not self.is_driven
        self.note(f"terminated by clicks within {took_s:.1f} s")
        self.sees(INGEST.format("running"), "ended by itself or on request; bank_run goes on", "terminated")

    def wait_for_driver(self, before: int, limit_s: float = WELL_LIMIT_S) -> None:
        """Until one of a later generation reads."""
        took_s = wait_for(lambda: self.generation > before and self.is_reading, "a driver reads", limit_s)
        self.note(f"the next driver reads after {took_s:.1f} s")

    @property
    def generation(self) -> int:
        status = self.deployment.status()
        return 0 if status is None else status.generation or 0

    @property
    def is_reading(self) -> bool:
        status = self.deployment.status()
        return status is not None and status.is_running and status.state in ("running", "working")

    @property
    def is_driven(self) -> bool:
        status = self.deployment.status()
        return status is not None and status.is_running

    @property
    def pid(self) -> int:
        status = self.deployment.status()
        assert status is not None
        return status.pid

    @property
    def tables(self) -> Path:
        return self.run.tables

    def wait_until_equal(self) -> None:
        """Nothing is lost or doubled so far; afterwards there is traffic again."""
        self.traffic.stop()
        wait_for(lambda: self.run.difference(self.traffic.truth) == "", "outputs equal the truth", 300, every_s=1.0)
        self.note(f"outputs equal the truth of {len(self.traffic.truth.transfers):,} transfers")

    @contextlib.contextmanager
    def stopped(self, pid: int) -> Iterator[None]:
        """The process is stopped during the block, and for ``TROUBLE_S`` at least."""
        began_s = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
            time.sleep(max(0.0, TROUBLE_S - (time.monotonic() - began_s)))
        finally:
            os.kill(pid, signal.SIGCONT)


def driver_killed(hour: Hour) -> None:
    before, pid = hour.generation, hour.pid
    os.kill(pid, signal.SIGKILL)
    hour.sees(
        INGEST.format("running"),
        rf"\(process {pid} on .*\) was killed; the sensor weir_succession starts|"
        rf"(running|starting): process (?!{pid} )\d+",
        "the driver was killed",
    )
    hour.wait_for_driver(before)
    hour.sees_running()


def replacement_killed(hour: Hour) -> None:
    """The driver, then the worker of the next run before its driver has begun."""
    before, pid, killed = hour.generation, hour.pid, hour.deployment.run()
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: hour.deployment.run_after(killed), "the next run is there", WELL_LIMIT_S)
    stillborn = hour.deployment.run_after(killed)
    assert stillborn is not None
    wait_for(lambda: hour.deployment.kill_worker(stillborn), "its worker has started", WELL_LIMIT_S)
    assert hour.pid == pid, "no other driver had begun"
    hour.sees(
        INGEST.format("running"),
        rf"run {stillborn.run_id} failed before its driver began: .* the sensor weir_succession starts the next run|"
        rf"(running|starting): process (?!{pid} )\d+",
        "the next run was killed too",
    )
    hour.wait_for_driver(before, 2 * WELL_LIMIT_S)  # the run after that begins after a pause
    hour.sees_running()


def run_worker_killed(hour: Hour) -> None:
    before, pid = hour.generation, hour.pid
    above = psutil.Process(pid).parents()[1]
    above.kill()
    hour.sees(
        INGEST.format("running"),
        rf"was killed, and its driver \(process {pid} on .*\) has committed and ended; the sensor weir_succession|"
        rf"(running|starting): process (?!{pid} )\d+",
        "the run worker was killed",
    )
    hour.wait_for_driver(before)
    hour.sees_running()


def spark_worker_killed(hour: Hour) -> None:
    """Which the driver puts right by itself."""
    workers = [each for each in psutil.Process(hour.pid).children(recursive=True) if each.name().startswith("python")]
    random.choice(workers).kill()
    hour.sees_running()


def paused(hour: Hour) -> None:
    assert hour.launch("weir_pause") == "Success"
    hour.sees(INGEST.format("running"), "paused, and reads nothing; launch weir_resume with the partition", "paused")
    given = hour.traffic.given
    wait_for(lambda: hour.traffic.given > given + 1_000, "there is traffic")
    hour.sees(INGEST.format("lag"), r"^[1-9][\d,]* records wait, and the driver is paused", "records wait")
    assert hour.launch("weir_resume") == "Success"
    hour.sees_running()


def driver_stopped(hour: Hour) -> None:
    with hour.stopped(hour.pid):
        hour.sees(INGEST.format("running"), "has given no sign of life for", "the driver hangs")
    hour.sees_running()


def broker_stopped(hour: Hour) -> None:
    with hour.stopped(broker_pid(hour)):
        hour.sees(INGEST.format("running"), "no answer from Kafka at", "Kafka does not answer")
        hour.sees(INGEST.format("lag"), "the lag is unknown", "lag cannot be known")
    hour.sees_running()


def broker_killed(hour: Hour) -> None:
    os.kill(broker_pid(hour), signal.SIGKILL)
    hour.sees_running()


def starved(hour: Hour) -> None:
    """Busy processes on all cores."""
    with busy_processors():
        time.sleep(TROUBLE_S / 2)
        hour.sees_running()
        time.sleep(TROUBLE_S / 2)


def state_damaged(hour: Hour) -> None:
    """A bit of a counter that nothing but a comparison finds, and nothing writes meanwhile."""
    hour.wait_until_equal()
    instances = [
        file.parent
        for file in (hour.deployment.settings.state_dir / app.id).rglob("data.mdb")
        if "quarantine" not in file.parts and b"page-7\x00" in file.read_bytes()
    ]
    flip_a_bit(instances[0], "page-7")
    verified = hour.launch("weir_verify")
    hour.sees(
        INGEST.format("running"), rf"corrupted|being restored|running: process {hour.pid}", f"verified: {verified}"
    )
    hour.sees(INGEST.format("state_equals_changelog"), r"page-7|restored", "the difference is named")
    assert verified == "Failure"
    hour.sees_running(WELL_LIMIT_S)
    hour.sees(INGEST.format("state_equals_changelog"), "^Passed$", "the check was made again", WELL_LIMIT_S)
    hour.traffic.start()


def output_damaged(hour: Hour) -> None:
    """A file is gone, and comes back."""
    folder = hour.tables / "journal"
    file = folder / DeltaTable(folder).get_add_actions().column("path")[0].as_py()
    kept = file.rename(hour.deployment.folder / file.name)
    check = "/assets/bank/journal?view=checks&checkDetail=files_present"
    assert hour.launch("weir_audit") == "Success", "all checks could be made"
    hour.sees(check, re.escape(file.name), "a file is gone")
    kept.rename(file)
    assert hour.launch("weir_audit") == "Success"
    hour.sees(check, "^Passed$", "the file is back")


def daemon_killed(hour: Hour) -> None:
    """Dagster's own page of daemons believes a heartbeat for half an hour."""
    hour.deployment.kill_daemon()
    try:
        hour.hears("unwatched: Dagster's sensors looked last at", "the daemon is dead")
        time.sleep(TROUBLE_S)
    finally:
        hour.deployment.start_daemon()
    hour.sees_running(WELL_LIMIT_S)
    hour.hears(r"\A(?![\s\S]*unwatched:)", "the daemon is back", WELL_LIMIT_S)


def code_server_killed(hour: Hour) -> None:
    before = hour.generation
    hour.deployment.kill_code_server()
    try:
        hour.sees("/deployment/locations", "Failed|[Ee]rror|[Uu]nreachable", "the code server is dead")
    finally:
        hour.deployment.start_code_server()
    wait_for(hour.deployment.is_up, "the program is loaded", START_LIMIT_S)
    hour.wait_for_driver(before)
    hour.sees("/deployment/locations", "Loaded", "the code server is back")
    hour.sees_running()


def terminated(hour: Hour) -> None:
    try:
        hour.terminate()
    finally:  # the other troubles need a driver
        hour.start()
    hour.sees_running()


def terminated_while_paused_and_starved(hour: Hour) -> None:
    assert hour.launch("weir_pause") == "Success"
    hour.sees(INGEST.format("running"), "paused, and reads nothing; launch weir_resume with the partition", "paused")
    try:
        with busy_processors():
            hour.terminate()
    finally:
        hour.start()
    hour.sees_running()


def state_lost(hour: Hour) -> None:
    """With the driver: all of the local state."""
    before, pid = hour.generation, hour.pid
    os.kill(pid, signal.SIGKILL)
    shutil.rmtree(hour.deployment.settings.state_dir / app.id, ignore_errors=True)
    hour.wait_for_driver(before)
    hour.sees_running(WELL_LIMIT_S)
    hour.wait_until_equal()
    hour.traffic.start()


def kept(hour: Hour) -> None:
    """What an operator does when nothing is wrong."""
    for job in ("weir_snapshot", "weir_commit_now", "weir_compaction", "weir_audit", "weir_verify"):
        assert hour.launch(job) == "Success"
    hour.sees("/locations/shop/asset-groups/bank/lineage", "8 / 8 Passed", "all checks pass")
    hour.sees("/assets/bank/checkpoints?view=events", r"snapshot of [\d.]+, listed by commit", "the newest snapshots")


TROUBLES: list[Callable[[Hour], None]] = [
    driver_killed,
    replacement_killed,
    run_worker_killed,
    spark_worker_killed,
    paused,
    driver_stopped,
    broker_stopped,
    broker_killed,
    starved,
    state_damaged,
    output_damaged,
    daemon_killed,
    code_server_killed,
    terminated,
    terminated_while_paused_and_starved,
    state_lost,
    kept,
]


def broker_pid(hour: Hour) -> int:
    pid: int = BrokerFiles(hour.deployment.settings.kafka_dir).read_status()["kafka_pid"]
    return pid


@pytest.fixture
def hour(tmp_path, page, pytestconfig, monkeypatch) -> Iterator[Hour]:
    monkeypatch.setenv("PYTHONPATH", str(pytestconfig.rootpath))
    folder = pytestconfig.rootpath / "build" / "hour"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with deployed(tmp_path, app.id, DEFS) as (deployment, bootstrap_servers, settings):
        admin = KafkaAdmin(bootstrap_servers, settings.kafka)
        for topic in (TRANSFERS, VISITS):
            admin.create_topic(topic, PARTITIONS)
        client = {**settings.kafka, "bootstrap.servers": bootstrap_servers}
        traffic = Traffic(client, seed=SEED, per_second=PER_SECOND)
        story = Story(page, f"http://127.0.0.1:{deployment.port}", folder)
        try:
            wait_for(deployment.is_up, "the UI is up", START_LIMIT_S)
            yield Hour(deployment, story, traffic, BankRun(settings, tmp_path / "unused.log"), folder)
        finally:
            traffic.abandon()


def test_every_page_is_true_whatever_happens(hour):
    """Each trouble once in a random order, then again, until the time is over; nothing is lost or doubled."""
    rng, ends = random.Random(SEED), time.monotonic() + OPERATE_S
    hour.start()
    hour.sees_running()
    hour.traffic.start()
    failures: list[str] = []
    while time.monotonic() < ends:
        for trouble in rng.sample(TROUBLES, len(TROUBLES)):
            if time.monotonic() >= ends:
                break
            hour.note(f"--- {trouble.__name__}")
            try:
                trouble(hour)
            except Exception as error:  # the others are tried all the same
                failures.append(f"{trouble.__name__}: {error}")
                hour.note(f"FAILED {failures[-1]}")
                hour.traffic.start()
                wait_for(lambda: hour.is_reading, "a driver reads", 300)
        hour.wait_until_equal()
        hour.traffic.start()
    hour.wait_until_equal()
    assert newest_commit(hour.deployment.settings.warehouse, app.id) is not None
    assert not failures, "\n".join(failures)
