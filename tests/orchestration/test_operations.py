"""A running ingest in operation: what sensors and jobs do to it, and what happens when it is killed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import dagster as dg
import psutil
import pytest
from confluent_kafka import Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable
from polars.testing import assert_frame_equal

from tests.orchestration.held import COOLDOWN_S, SPARE_FILES_MAX, defs
from tests.orchestration.history import make_history
from tests.waiting import wait_for
from weir.infra.control import ApplicationStatus, ControlDatabase, RequestRow
from weir.infra.kafka.broker import broker_for
from weir.infra.settings import Settings
from weir.orchestration.resources import WeirResource
from weir.pipelines.examples import load_weather
from weir.state.changelog.rows import SEGMENT_EPOCHS
from weir.state.commit.protocol import newest_commit
from weir.state.commit.record import CommitRecord
from weir.state.commit.tables import read_table

pytestmark = [pytest.mark.dagster, pytest.mark.spark, pytest.mark.broker]

OBSERVATIONS = 26_115
EARLIER_EPOCHS = SEGMENT_EPOCHS - 30
START_LIMIT_S = 120.0
END_LIMIT_S = 30.0
TERMINATED_LIMIT_S = 15.0
LOOK_LIMIT_S, LOOKS = 0.2, 5
RUN_ON = {"ops": {"held_ingest": {"config": {"until_caught_up": False}}}}
TABLES = [key for key in defs.resolve_asset_graph().materializable_asset_keys if key.path[-1] != "ingest"]
SENSORS = {sensor.name: sensor for sensor in defs.sensors}


class Ingest:
    """One folder and one Dagster instance on it, with its current run."""

    def __init__(self, settings: Settings, home: Path, kafka: dict[str, str]) -> None:
        self.settings, self.home, self.kafka = settings, home, kafka
        self.instance = dg.DagsterInstance.from_config(str(home))
        self.database = ControlDatabase(settings.control_database_url)
        self.run: subprocess.Popen[bytes] | None = None
        self.cursors: dict[str, str | None] = {}
        self.records = OBSERVATIONS

    def start(self, run_config: dict) -> None:
        """Materialize in a separate process; returns once the whole topic has been read."""
        log = (self.home / "run.log").open("ab")
        self.run = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "dagster",
                "asset",
                "materialize",
                "-m",
                "tests.orchestration.held",
                "--select",
                "held/ingest",
                "--config-json",
                json.dumps(run_config),
            ],
            env={**os.environ, "DAGSTER_HOME": str(self.home)},
            stdout=log,
            stderr=log,
        )
        log.close()
        wait_for(lambda: self.run.poll() is not None or self.has_read_all(), "the topic is read", START_LIMIT_S)
        assert self.has_read_all(), (self.home / "run.log").read_text()

    def has_read_all(self) -> bool:
        status = self.database.application_status("held")
        return (
            status is not None
            and status.is_running
            and status.state == "running"
            and bool(status.tasks)
            and sum(task.records_in for task in status.tasks) == self.records
        )

    def produce(self, *airports: str) -> list[Message]:
        """One more observation each."""
        produced: list[Message] = []
        producer = Producer({**self.kafka, "partitioner": "murmur2"})  # as the loader
        for airport in airports:
            producer.produce(
                "weather",
                key=airport.encode(),
                value=b'{"temp": 1.0}',
                on_delivery=lambda error, message: produced.append(message),
            )
        assert producer.flush(END_LIMIT_S) == 0
        self.records += len(airports)
        return produced

    def materialized(self, asset: str) -> Sequence[dg.EventLogRecord]:
        """The asset's materializations, the newest first."""
        return self.instance.fetch_materializations(dg.AssetKey(["held", asset]), limit=10).records

    def newest(self, asset: str) -> dg.AssetMaterialization:
        event = self.materialized(asset)[0].asset_materialization
        assert event is not None
        return event

    def commit_log(self) -> CommitRecord:
        newest = newest_commit(self.settings.warehouse, "held")
        assert newest is not None
        return newest

    def commit(self, airport: str) -> None:
        """One more observation, read and committed."""
        self.produce(airport)
        wait_for(self.has_read_all, "it is read", END_LIMIT_S)
        assert "committed" in self.job("weir_commit_now")["answer"]

    def observed(self) -> set[str | None]:
        """The ingest's observations."""
        records = self.instance.fetch_observations(dg.AssetKey(["held", "ingest"]), limit=20).records
        return {record.asset_observation.description for record in records if record.asset_observation}

    def failure(self, run_id: str) -> str:
        """The error of the run's only failed step."""
        [entry] = self.instance.all_logs(run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
        return entry.get_dagster_event().step_failure_data.error_display_string

    def status(self) -> ApplicationStatus:
        status = self.database.application_status("held")
        assert status is not None
        return status

    def tick(self, name: str) -> dg.SensorResult | dg.SkipReason:
        answer = SENSORS[name](
            dg.build_sensor_context(
                instance=self.instance, cursor=self.cursors.get(name), resources={"weir": WeirResource()}
            )
        )
        self.cursors[name] = getattr(answer, "cursor", None) or self.cursors.get(name)
        for event in getattr(answer, "asset_events", None) or ():
            self.instance.report_runless_asset_event(event)
        return answer

    def next_result(self, name: str) -> dg.SensorResult:
        """Look until the sensor has something to report or to start."""
        answers: list[dg.SensorResult | dg.SkipReason] = []
        wait_for(
            lambda: answers.append(self.tick(name)) or isinstance(answers[-1], dg.SensorResult),
            f"{name} has something to report",
            END_LIMIT_S,
        )
        return answers[-1]

    def next_report(self, name: str) -> dict[str, int]:
        """Look until the sensor reports something; returns when each condition was reported, in ms since 1970."""
        assert self.next_result(name).cursor is not None
        return self.remembered(name)

    def reported(self, name: str) -> dict[str, int]:
        """Look once; returns the same as ``next_report``."""
        self.tick(name)
        return self.remembered(name)

    def remembered(self, name: str) -> dict[str, int]:
        """The sensor's cursor, as far as it is the application's."""
        return json.loads(json.loads(self.cursors[name] or "{}").get("held", "{}"))

    def look_until_over(self, name: str) -> None:
        wait_for(lambda: self.tick(name) and not self.remembered(name), f"{name} reports that it is over", END_LIMIT_S)

    def last_request(self, sensor: str) -> RequestRow:
        request = self.database.latest_request("held", "commit", f"dagster sensor {sensor}")
        assert request is not None
        return request

    def delete_before(self, message: Message) -> None:
        """As a topic's retention does."""
        oldest = TopicPartition(message.topic(), message.partition(), message.offset())
        admin = AdminClient(self.kafka)  # ends its calls when nobody holds it
        admin.delete_records([oldest])[oldest].result(END_LIMIT_S)

    def job(self, name: str, config: dict | None = None, **options) -> dict[str, object]:
        """Run a job and return the metadata of its only step as plain values."""
        result = defs.resolve_job_def(name).execute_in_process(
            instance=self.instance, run_config={"ops": config} if config else None, **options
        )
        assert result.success
        [output] = [event.step_output_data for event in result.all_events if event.is_successful_output]
        return {key: entry.value for key, entry in output.metadata.items()}


@pytest.fixture(scope="module")
def ingest(tmp_path_factory) -> Iterator[Ingest]:
    """The held application after many epochs, with the rest of the weather read but not committed."""
    home = tmp_path_factory.mktemp("dagster-home")
    (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    settings = Settings(dir=tmp_path_factory.mktemp("held") / "weir", slots=2)
    with pytest.MonkeyPatch.context() as patch, broker_for(settings) as (servers, with_login):
        patch.setenv("WEIR_DIR", str(settings.dir))
        patch.setenv("WEIR_SLOTS", "2")
        load_weather.load(servers, client_properties=with_login.kafka)
        make_history(settings, EARLIER_EPOCHS)
        ingest = Ingest(settings, home, {**with_login.kafka, "bootstrap.servers": servers})
        try:
            ingest.start(RUN_ON)
            yield ingest
        finally:
            if ingest.run is not None and ingest.run.poll() is None:
                ingest.run.send_signal(signal.SIGINT)
                ingest.run.wait(END_LIMIT_S)
            ingest.instance.dispose()


def test_uncommitted_state_makes_a_running_ingest_commit_and_the_answer_is_observed(ingest):
    assert newest_commit(ingest.settings.warehouse, "held").epoch == EARLIER_EPOCHS
    asked = ingest.tick("weir_uncommitted")
    assert "bytes uncommitted, the limit is 100 bytes" in asked.skip_message
    wait_for(lambda: newest_commit(ingest.settings.warehouse, "held").epoch > EARLIER_EPOCHS, "it commits", END_LIMIT_S)
    commit = newest_commit(ingest.settings.warehouse, "held")
    assert commit.reason == "request by dagster sensor weir_uncommitted"
    ingest.next_result("weir_uncommitted")
    assert read_table(ingest.settings.warehouse / "held" / "airports")["observations"].sum() == OBSERVATIONS
    [record] = ingest.instance.fetch_observations(dg.AssetKey(["held", "ingest"]), limit=1).records
    assert record.asset_observation.description == f"committed epoch {commit.epoch}"
    assert "bytes uncommitted, the limit is 100 bytes" in record.asset_observation.metadata["reason"].value
    ingest.tick("weir_uncommitted")
    assert ingest.database.pending_requests("held") == [], "it makes no further request"
    first = ingest.last_request("weir_uncommitted")
    ingest.produce("EWR", "JFK", "LGA")
    wait_for(
        lambda: ingest.tick("weir_uncommitted") and ingest.last_request("weir_uncommitted") != first,
        "it requests another",
        END_LIMIT_S,
    )
    second = ingest.last_request("weir_uncommitted")
    assert second.id > first.id
    assert second.requested_at_ms - first.requested_at_ms >= COOLDOWN_S * 1000


def test_lag_is_reported_in_records_in_seconds_and_as_it_grows_and_again_after_the_cooldown_and_when_it_is_over(ingest):
    ingest.job("weir_pause")
    wait_for(lambda: ingest.status().state == "paused", "it is paused", END_LIMIT_S)
    assert isinstance(ingest.tick("weir_health"), dg.SkipReason)
    ingest.produce("EWR", "JFK")
    first = ingest.next_report("weir_health")
    assert first.keys() == {"lag in records", "lag in seconds"}
    assert any("2 records are waiting, more than 0" in sentence for sentence in ingest.observed())
    assert any("records/s, more than 0 s" in sentence for sentence in ingest.observed())
    again = ingest.next_report("weir_health")
    assert again.keys() == first.keys()
    assert min(again[name] - first[name] for name in first) >= COOLDOWN_S * 1000
    wait_for(
        lambda: ingest.produce("EWR") and "lag grows" in ingest.reported("weir_health"), "it is reported", END_LIMIT_S
    )
    [growing] = [sentence for sentence in ingest.observed() if sentence.startswith("lag has grown ")]
    assert re.search(r"\b6 s, from \d+ to \d+ records\b", growing)
    ingest.job("weir_resume")
    ingest.look_until_over("weir_health")
    assert {"over: lag in records", "over: lag in seconds", "over: lag grows"} <= ingest.observed()


def test_records_that_a_topic_is_about_to_delete_are_reported_until_they_have_been_read_and_committed(ingest):
    ingest.job("weir_pause")
    [message] = ingest.produce("EWR")
    partition = f"weather-{message.partition()}"
    assert isinstance(ingest.tick("weir_retention"), dg.SkipReason)
    ingest.delete_before(message)
    first = ingest.next_report("weir_retention")
    assert first.keys() == {f"{partition} near retention"}
    [near] = [
        sentence for sentence in ingest.observed() if sentence.startswith(f"{partition}: offset {message.offset()} ")
    ]
    assert f"1 kept is {message.offset()}: " in near
    assert "lengthen the topic's retention" in near
    again = ingest.next_report("weir_retention")
    assert min(again[name] - first[name] for name in first) >= COOLDOWN_S * 1000
    ingest.job("weir_resume")
    wait_for(ingest.has_read_all, "it is read", END_LIMIT_S)
    ingest.job("weir_commit_now")
    ingest.look_until_over("weir_retention")
    assert f"over: {partition} near retention" in ingest.observed()


def test_files_that_commits_left_are_compacted_next_to_the_running_ingest_and_again_after_the_cooldown(ingest):
    table = ingest.settings.warehouse / "held" / "airports"

    def files() -> int:
        return len(DeltaTable(table).file_uris())

    def due() -> tuple[dg.RunRequest, float]:
        for _ in range(SPARE_FILES_MAX + 1):
            ingest.commit("EWR")
        answer = ingest.next_result("weir_compaction_due")
        [request] = answer.run_requests
        return request, float(json.loads(answer.cursor)["held"].split()[1])

    request, first_s = due()
    assert re.search(r"^0 of 1 segments\b.* \d+ files, the limit is 2$", request.tags["weir/reason"])
    many, rows = files(), read_table(table).sort("origin")
    ingest.next_result("weir_commits")
    before = ingest.newest("airports")
    tables = ingest.job("weir_compaction", tags=request.tags)["tables"]
    assert {record.data["table"] for record in tables.records} == {
        "airports",
        "_changelog/by_airport",
        "_dead_letters",
        "_commits",
    }
    assert files() == 1 < many
    assert_frame_equal(read_table(table).sort("origin"), rows)
    of_table, of_all = ingest.newest("airports"), ingest.newest("compaction")
    assert of_table.tags == before.tags, "nothing downstream turns stale"
    assert {name: entry for name, entry in of_table.metadata.items() if name in before.metadata} == before.metadata
    assert (of_table.metadata["files_before"].value, of_table.metadata["files_after"].value) == (many, 1)
    assert of_all.metadata["files_before"].value > many
    assert isinstance(ingest.tick("weir_compaction_due"), dg.SkipReason), "there is nothing left to merge"
    _, second_s = due()
    assert second_s - first_s >= COOLDOWN_S
    assert ingest.status().is_running


def test_a_segment_of_changelogs_that_has_closed_is_compacted_once(ingest):
    changelog = ingest.settings.warehouse / "held" / "_changelog" / "by_airport"

    def files() -> int:
        return len(DeltaTable(changelog).file_uris([("segment", "=", "0")]))

    assert ingest.status().metric.epoch < SEGMENT_EPOCHS
    while ingest.status().metric.epoch < SEGMENT_EPOCHS:
        assert ingest.status().is_running
        ingest.produce("EWR")
    ingest.commit("EWR")
    [request] = ingest.tick("weir_compaction_due").run_requests
    assert request.tags["weir/reason"].startswith("1 of 1 segments have closed")
    many = files()
    ingest.job("weir_compaction", tags=request.tags)
    assert files() == len(ingest.status().tasks) < many, "one of each task"
    assert "0 of 1 segments have closed" in ingest.tick("weir_compaction_due").skip_message
    assert ingest.status().is_running


def test_jobs_steer_the_running_ingest(ingest):
    assert "epoch" in ingest.job("weir_commit_now")["answer"]
    ingest.job("weir_pause", {"weir_ask_pause": {"config": {"reason": "the broker is being moved"}}})
    wait_for(lambda: ingest.status().state == "paused", "it is paused", END_LIMIT_S)
    assert ingest.job("weir_resume")["answer"] == "running"
    for slots, before in ((1, 2), (2, 1)):
        answer = ingest.job("weir_scale", {"weir_ask_scale": {"config": {"slots": slots}}})["answer"]
        assert re.match(rf"{slots} slots? instead of {before}; moved: ", answer)
    before = newest_commit(ingest.settings.warehouse, "held")
    ingest.instance.add_dynamic_partitions("weir_tasks", ["held:0_0", "held:0_1"])
    ingest.job("weir_restore", {"weir_ask_restore": {"config": {"from_changelog": True}}}, partition_key="held:0_1")
    ingest.job("weir_commit_now")
    after = newest_commit(ingest.settings.warehouse, "held")
    moved = [name for name, task in after.tasks.items() if task.instance != before.tasks[name].instance]
    assert [name.rpartition("_")[2] for name in moved] == ["1"]
    restored = ingest.newest("checkpoints")
    assert (restored.partition, restored.metadata["source"].value) == ("0_1", "changelog")
    assert restored.metadata["kind"].value == "restore"
    ingest.job("weir_snapshot")
    listed = {name.rpartition("_")[2]: task.snapshot for name, task in ingest.commit_log().tasks.items()}
    made = [record.asset_materialization for record in ingest.materialized("checkpoints")[:2]]
    found = {event.partition: {name: entry.value for name, entry in event.metadata.items()} for event in made}
    assert found.keys() == {"0_0", "0_1"}
    for partition, snapshot in listed.items():
        of_task = found[f"0_{partition}"]
        assert (of_task["kind"], of_task["path"]) == ("snapshot", snapshot.path)
        assert (of_task["state"], of_task["rows"]) == (str(snapshot.state), snapshot.rows)
        assert of_task["bytes"] == (ingest.settings.warehouse / "held" / snapshot.path).stat().st_size
    assert restored.metadata["rows"].value == listed["1"].rows
    assert ingest.job("weir_dead_letters")["dagster/row_count"] == 0
    assert ingest.job("weir_compaction", {"weir_compact": {"config": {"dry_run": True}}})["is_dry_run"]
    verified = defs.resolve_job_def("weir_verify").execute_in_process(instance=ingest.instance)
    evaluations = {evaluation.check_name: evaluation for evaluation in verified.get_asset_check_evaluations()}
    assert set(evaluations) == {"state_equals_changelog", "files_readable"}
    assert all(evaluation.passed for evaluation in evaluations.values())
    assert evaluations["state_equals_changelog"].metadata["rows"].value == 3


def test_every_sensor_looks_at_a_running_ingest_in_a_fifth_of_a_second(ingest):
    for name in SENSORS:
        taken_s: list[float] = []
        while min(taken_s, default=1.0) >= LOOK_LIMIT_S and len(taken_s) < LOOKS:  # the machine may be busy
            started = time.monotonic()
            ingest.tick(name)
            taken_s.append(time.monotonic() - started)
        assert min(taken_s) < LOOK_LIMIT_S, (name, taken_s)


def test_a_driver_that_hangs_is_killed_its_run_fails_with_the_reason_and_the_next_resumes(ingest):
    """Its commit reads an entry of the log that never comes, as on a disk that does not answer."""
    run, life, committed = ingest.run, ingest.status(), newest_commit(ingest.settings.warehouse, "held")
    assert "all is well" in ingest.tick("weir_stalled").skip_message
    workers = [process for process in psutil.Process(life.pid).children(recursive=True) if "python" in process.name()]
    ingest.produce("EWR")
    wait_for(ingest.has_read_all, "it is read", END_LIMIT_S)
    log = ingest.settings.warehouse / "held" / "_commits" / "_delta_log"
    entry = log / f"{max(int(entry.stem) for entry in log.glob('*.json')) + 1:020}.json"
    os.mkfifo(entry)
    ingest.database.request("held", "commit", by="a test")
    ingest.next_result("weir_stalled")
    entry.unlink()  # whoever reads the log now would hang, too; the driver does anyway
    [first] = ingest.instance.fetch_observations(dg.AssetKey(["held", "ingest"]), limit=1).records
    assert "the driver has done nothing for " in first.asset_observation.description
    assert "_commit" in first.asset_observation.metadata["stacks"].value
    assert ingest.status().is_running, "heartbeats hold the lease"
    killed = ingest.next_result("weir_stalled")
    assert f"its process {life.pid} was killed" in killed.asset_events[0].description
    assert run.wait(END_LIMIT_S) != 0
    psutil.wait_procs(workers, timeout=END_LIMIT_S)
    [ended] = [found for found in ingest.instance.get_runs() if life.owner.endswith(found.run_id)]
    assert ended.status == dg.DagsterRunStatus.FAILURE
    assert f"(process {life.pid}) was killed" in ingest.failure(ended.run_id)
    [request] = ingest.tick("weir_succession").run_requests
    ingest.start({**request.run_config, "execution": {"config": {"in_process": {}}}})
    assert newest_commit(ingest.settings.warehouse, "held").epoch == committed.epoch, "nothing was read again"
    assert ingest.status().generation == life.generation + 1
    assert isinstance(ingest.tick("weir_succession"), dg.SkipReason)


def test_a_second_run_fails_and_says_who_holds_the_lease(ingest):
    life = ingest.status()
    second = defs.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=ingest.instance, asset_selection=[dg.AssetKey(["held", "ingest"]), *TABLES], raise_on_error=False
    )
    assert not second.success
    assert f"already driven by {life.owner} (process {life.pid} on " in ingest.failure(second.run_id)
    assert ingest.status().is_running


def test_a_run_without_a_process_for_its_step_is_terminated_like_others(ingest):
    """It uses the in-process executor; the process is ended as Dagster's run launcher does it."""
    life = ingest.status()
    [run] = [found for found in ingest.instance.get_runs() if life.owner.endswith(found.run_id)]
    ingest.produce("EWR")
    ingest.instance.report_run_canceling(run)
    ingest.run.send_signal(signal.SIGINT)
    ingest.run.wait(TERMINATED_LIMIT_S)
    assert ingest.instance.get_run_by_id(run.run_id).status == dg.DagsterRunStatus.CANCELED
    assert (ingest.status().state, ingest.status().error) == ("stopped", None)
    reports = ingest.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
    assert {entry.get_dagster_event().asset_key for entry in reports} == {dg.AssetKey(["held", "ingest"]), *TABLES}
    assert newest_commit(ingest.settings.warehouse, "held").generation == life.generation
