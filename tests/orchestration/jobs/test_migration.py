"""The migration jobs against a real broker: each first shows what it would change, then does it on request."""

import dagster as dg
import pytest
from confluent_kafka import Producer

from tests.orchestration.jobs import moved as program
from weir import Application, Count, Int64, StreamsBuilder, String
from weir.orchestration.application import definitions, supervise
from weir.orchestration.resources import WeirResource
from weir.state.commit.protocol import newest_commit

pytestmark = pytest.mark.broker
PARTITIONS = 2


@pytest.fixture
def moved(broker, topic, settings, instance, monkeypatch):
    """``moved(direction, dry_run=..., **config)`` runs that job; the metadata of each step that was not skipped."""
    name, producer = topic(partitions=PARTITIONS), Producer({"bootstrap.servers": broker})
    for number in range(40):
        producer.produce(name, key=b"k", value=number.to_bytes(8, "big"), partition=number % PARTITIONS)
    assert producer.flush(30) == 0
    builder = StreamsBuilder()
    builder.stream(name, key=String("k"), value=Int64("v")).group_by_key().agg("n", n=Count()).to_delta("n")
    monkeypatch.setattr(program, "app", Application("moved", builder), raising=False)
    defs = definitions(
        supervise(program.app, "tests.orchestration.jobs.moved:app"),
        weir=WeirResource(dir=str(settings.dir), bootstrap_servers=broker),
    )

    def run(direction: str, *, dry_run: bool, **config) -> list[dict[str, object]]:
        job = f"weir_migrate_{direction}"
        result = defs.resolve_job_def(job).execute_in_process(
            instance=instance,
            raise_on_error=False,
            run_config={"ops": {f"{job}_shown": {"config": {"dry_run": dry_run, **config}}}},
        )
        if not result.success:
            [failed] = [event for event in result.all_events if event.is_step_failure]
            pytest.fail(failed.step_failure_data.error_display_string)
        outputs = [event.step_output_data.metadata for event in result.all_events if event.is_successful_output]
        return [{key: entry.value for key, entry in metadata.items()} for metadata in outputs if metadata]

    def recorded() -> list[dict[str, object]]:
        records = instance.fetch_materializations(dg.AssetKey(["moved", "positions"]), limit=10).records
        made = [record.asset_materialization for record in reversed(records)]
        return [{key: entry.value for key, entry in event.metadata.items()} for event in made]

    run.topic, run.warehouse, run.recorded = name, settings.warehouse, recorded
    return run


def positions(moved) -> dict[int, int] | None:
    newest = newest_commit(moved.warehouse, "moved")
    return newest and {number: task.positions[moved.topic][number] for number, task in enumerate(newest.tasks.values())}


def test_positions_are_taken_from_a_group_and_given_to_another_group_and_to_files(moved, kafka_admin, tmp_path):
    group, out = f"old-{moved.topic}", f"new-{moved.topic}"
    kafka_admin.set_group_offsets(group, {(moved.topic, 0): 5, (moved.topic, 1): 20})
    with pytest.raises(pytest.fail.Exception, match="accept that with empty_stores: true in the run's config"):
        moved("from_group", dry_run=True, group=group)
    [shown] = moved("from_group", dry_run=True, group=group, empty_stores=True)
    assert f"- topic {moved.topic}, partition 0: starts at offset 5\n" in shown["changes"]
    assert "- note: store n starts empty" in shown["changes"]
    assert positions(moved) is None
    shown, done = moved("from_group", dry_run=False, group=group, empty_stores=True)
    assert (shown["outcome"], done["outcome"]) == (
        "nothing was changed (--dry-run)",
        "committed as the application's epoch 1",
    )
    assert positions(moved) == {0: 5, 1: 20}
    [shown] = moved("to_group", dry_run=True, group=out)
    assert f"- topic {moved.topic}, partition 1: offset 20" in shown["changes"]
    assert kafka_admin.group_offsets(out) == {}
    moved("to_group", dry_run=False, group=out)
    assert kafka_admin.group_offsets(out) == {(moved.topic, 0): 5, (moved.topic, 1): 20}
    moved("to_checkpoints", dry_run=True, folder=str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    moved("to_checkpoints", dry_run=False, folder=str(tmp_path / "out"))
    assert (tmp_path / "out" / "0_0" / ".checkpoint").read_text() == f"0\n1\n{moved.topic} 0 4\n"
    offsets = {moved.topic: {"0": 5, "1": 20}}
    assert [(each["direction"], each["outcome"], each["offsets"]) for each in moved.recorded()] == [
        ("from group", "committed as the application's epoch 1", offsets),
        ("to group", "now has the application's positions", offsets),
        ("to checkpoints", "2 files written", offsets),
    ], "in this order, and none of a dry run"


def test_positions_are_taken_from_kafka_streams_files_a_spark_checkpoint_and_an_application_with_its_state(
    moved, broker, kafka_admin, tmp_path
):
    (tmp_path / "0_0").mkdir()
    (tmp_path / "0_0" / ".checkpoint").write_text(f"0\n1\n{moved.topic} 0 11\n")
    [shown] = moved("from_checkpoints", dry_run=True, paths=[str(tmp_path / "0_0")], empty_stores=True)
    assert "partition 0: starts at offset 12" in shown["changes"]
    for folder, text in (("offsets", f'v1\n{{}}\n{{"{moved.topic}": {{"0": 3, "1": 4}}}}'), ("commits", "v1\n{}")):
        (tmp_path / "query" / folder).mkdir(parents=True)
        (tmp_path / "query" / folder / "7").write_text(text)
    [shown] = moved("from_spark", dry_run=True, folder=str(tmp_path / "query"), empty_stores=True)
    assert "partition 1: starts at offset 4" in shown["changes"]
    id = f"ks-{moved.topic[-8:]}"
    kafka_admin.create_topic(f"{id}-n-changelog", PARTITIONS)
    producer = Producer({"bootstrap.servers": broker})
    producer.produce(f"{id}-n-changelog", key=b"k", value=bytes(7) + b"\x0f", partition=0)
    assert producer.flush(30) == 0
    kafka_admin.set_group_offsets(id, {(moved.topic, 0): 15, (moved.topic, 1): 20})
    assert positions(moved) is None
    shown, done = moved("from_kafka_streams", dry_run=False, application_id=id)
    assert "- store n, task 0_0: 1 row" in shown["changes"]
    assert done["outcome"] == "committed as the application's epoch 1"
    assert positions(moved) == {0: 15, 1: 20}
    [again] = moved("from_kafka_streams", dry_run=True, application_id=id)
    assert again["outcome"] == "is already in place; nothing was changed"
    shown, done = moved("to_kafka_streams", dry_run=False, application_id=f"{id}-2")
    assert f"- topic {id}-2-n-changelog: 1 record in a new topic" in shown["changes"]
    assert done["outcome"] == "now has the application's stores and positions; start it"
    assert kafka_admin.group_offsets(f"{id}-2") == {(moved.topic, 0): 15, (moved.topic, 1): 20}
    offsets = {moved.topic: {"0": 15, "1": 20}}
    assert [(each["direction"], each["offsets"]) for each in moved.recorded()] == [
        ("from kafka streams", offsets),
        ("to kafka streams", offsets),
    ]
