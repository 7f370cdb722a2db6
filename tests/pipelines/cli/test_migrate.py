"""``weir migrate`` against a real broker: positions in from groups and files, and out again."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from weir.pipelines.cli.app import app
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_table

pytestmark = pytest.mark.broker
PROGRAM = """
from weir import Application, Count, Int64, StreamsBuilder, String
builder = StreamsBuilder()
stream = builder.stream("{topic}", key=String("k"), value=Int64("v"))
{sink}
app = Application("moved", builder)
"""
SINKS = {"stateless": 'stream.to_delta("copies")', "counted": 'stream.group_by_key().agg("n", n=Count()).to_delta("n")'}


@pytest.fixture
def moved(broker, topic, tmp_path, monkeypatch):
    """``moved(command, *arguments)`` runs ``weir migrate`` for programs over a topic of 40 records in 2 partitions."""
    name, producer = topic(partitions=2), Producer({"bootstrap.servers": broker})
    for number in range(40):
        producer.produce(name, key=b"k", value=number.to_bytes(8, "big"), partition=number % 2)
    assert producer.flush(30) == 0
    monkeypatch.syspath_prepend(str(tmp_path))
    for program, sink in SINKS.items():
        (tmp_path / f"{program}_{name[-8:]}.py").write_text(PROGRAM.format(topic=name, sink=sink))

    def run(command, *arguments, program="stateless"):
        reference = [f"{program}_{name[-8:]}:app"] if command.startswith("from-") else ["moved"]
        servers = [] if command == "to-checkpoints" else ["--bootstrap-servers", broker]
        return CliRunner().invoke(
            app, ["migrate", command, *reference, *map(str, arguments), *servers, "--dir", str(tmp_path / "weir")]
        )

    run.topic, run.warehouse = name, tmp_path / "weir" / "warehouse"
    return run


def positions(moved):
    newest = newest_commit(moved.warehouse, "moved")
    return (
        {number: task.positions.get(moved.topic, {}).get(number) for number, task in enumerate(newest.tasks.values())}
        if newest
        else None
    )


def test_group_offsets_become_positions_and_positions_become_group_offsets(moved, kafka_admin):
    group = f"old-{moved.topic}"
    kafka_admin.set_group_offsets(group, {(moved.topic, 0): 5, (moved.topic, 1): 20})
    shown = moved("from-group", group, "--dry-run")
    assert (shown.exit_code, positions(moved)) == (0, None), shown.output
    assert f"topic {moved.topic}, partition 0: starts at offset 5" in shown.stdout
    assert moved("from-group", group).exit_code == 0
    assert positions(moved) == {0: 5, 1: 20}
    assert newest_commit(moved.warehouse, "moved").topic_ids == kafka_admin.topic_ids([moved.topic])
    again = moved("from-group", group)
    assert (again.exit_code, "already in place" in again.stdout) == (0, True), again.output
    kafka_admin.set_group_offsets(group, {(moved.topic, 0): 6})
    refused = moved("from-group", group)
    assert (refused.exit_code, "has commits already" in " ".join(refused.stderr.split())) == (1, True)

    out = f"new-{moved.topic}"
    assert moved("to-group", out, "--dry-run").exit_code == 0
    assert kafka_admin.group_offsets(out) == {}
    assert moved("to-group", out).exit_code == 0
    assert kafka_admin.group_offsets(out) == {(moved.topic, 0): 5, (moved.topic, 1): 20}
    assert "already" in moved("to-group", out).stdout
    assert moved("to-group", group).exit_code == 1, "another position there is not overwritten"
    assert kafka_admin.group_offsets(group) == {(moved.topic, 0): 6, (moved.topic, 1): 20}


def test_a_group_without_the_topic_and_a_program_with_state_are_refused_with_the_way_out(moved, kafka_admin):
    unknown = moved("from-group", "nobody")
    assert (unknown.exit_code, "it has nothing: check the name" in unknown.stderr) == (1, True), unknown.output
    group = f"old-{moved.topic}"
    kafka_admin.set_group_offsets(group, {(moved.topic, 0): 5})
    stateful = moved("from-group", group, program="counted")
    assert (stateful.exit_code, "--empty-stores" in stateful.stderr) == (1, True)
    accepted = moved("from-group", group, "--empty-stores", program="counted")
    assert "note: store n starts empty" in accepted.stdout
    assert f"topic {moved.topic}, partition 1: has no offset, starts at the earliest" in accepted.stdout


def test_checkpoint_files_become_positions_and_positions_become_checkpoint_files(moved, tmp_path):
    state = tmp_path / "kafka-streams" / "0_0"
    state.mkdir(parents=True)
    (state / ".checkpoint").write_text(f"0\n2\nshop-n-changelog 0 99\n{moved.topic} 0 11\n")
    broken = moved("from-checkpoints", tmp_path / "kafka-streams", tmp_path / "nothing")
    assert (broken.exit_code, positions(moved)) == (1, None)
    done = moved("from-checkpoints", tmp_path / "kafka-streams")
    assert done.exit_code == 0, done.output
    assert "note: topic shop-n-changelog is not read by the application" in done.stdout
    assert positions(moved) == {0: 12, 1: None}
    out = tmp_path / "out"
    assert "--dry-run" in moved("to-checkpoints", out, "--dry-run").stdout
    assert not out.exists()
    assert moved("to-checkpoints", out).exit_code == 0
    assert (out / "0_0" / ".checkpoint").read_text() == f"0\n1\n{moved.topic} 0 11\n"
    assert "nothing was changed" in moved("to-checkpoints", out).stdout
    (out / "0_0" / ".checkpoint").write_text(f"0\n1\n{moved.topic} 0 3\n")
    assert "other offsets" in moved("to-checkpoints", out).stderr


def test_a_spark_checkpoint_becomes_positions(moved, tmp_path):
    offsets = json.dumps({moved.topic: {"0": 3, "1": 4}})
    for folder, text in (("offsets", f"v1\n{{}}\n{offsets}"), ("commits", "v1\n{}")):
        (tmp_path / "query" / folder).mkdir(parents=True)
        (tmp_path / "query" / folder / "7").write_text(text)
    (tmp_path / "query" / "offsets" / "8").write_text("v1\n{}\n-")
    done = moved("from-spark", tmp_path / "query", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["notes"][0].startswith("a batch after 7 was started but not committed")
    assert positions(moved) == {0: 3, 1: 4}


def test_a_kafka_streams_application_is_migrated_with_its_own_serdes(moved, broker, kafka_admin, tmp_path):
    """Its group and changelog topic are made by hand; ``tests/integration`` migrates a real one."""
    id = f"ks-{moved.topic[-8:]}"
    kafka_admin.create_topic(f"{id}-n-changelog", 2)
    producer = Producer({"bootstrap.servers": broker})
    producer.produce(f"{id}-n-changelog", key=b"k", value=bytes(7) + b"\x63" + bytes(7) + b"\x0f", partition=0)
    assert producer.flush(30) == 0
    kafka_admin.set_group_offsets(id, {(moved.topic, 0): 15, (moved.topic, 1): 20})
    name = f"serdes_{moved.topic[-8:]}"
    (tmp_path / f"{name}.py").write_text(
        "from weir import Int64, String\n"
        "from weir.pipelines.migrate import StoreSerdes\n"
        "n = StoreSerdes(key=String(), value=Int64(), has_timestamps=True)\n"
    )
    plain = moved("from-kafka-streams", id, program="counted")
    assert (plain.exit_code, "expected 8 bytes, found 16" in plain.stderr) == (1, True), plain.output
    wrong = moved("from-kafka-streams", id, "--serdes", f"m={name}:n", program="counted")
    assert "no store 'm'; it has n" in wrong.stderr
    options = (id, "--serdes", f"n={name}:n")
    shown = moved("from-kafka-streams", *options, "--dry-run", program="counted")
    for line in ("starts at offset 15", "store n, task 0_0: 1 row\n", "output n: 1 row\n", "--dry-run"):
        assert line in shown.stdout
    assert positions(moved) is None
    assert moved("from-kafka-streams", *options, program="counted").exit_code == 0
    assert positions(moved) == {0: 15, 1: 20}
    assert read_table(moved.warehouse / "moved" / "n").select("k", "n").rows() == [("k", 15)]
    back = ("to-kafka-streams", id, "--serdes", f"n={name}:n")
    assert "already has everything; nothing was changed" in moved(*back).stdout, "it has just come from there"
    producer.produce(f"{id}-n-changelog", key=b"else", value=bytes(15) + b"\x01", partition=1)
    assert producer.flush(30) == 0
    refused = moved(*back)
    assert (refused.exit_code, "overwrite it with --replace" in refused.stderr) == (1, True), refused.output
    assert f"topic {id}-n-changelog: 1 record" in moved(*back, "--replace").stdout
    assert "already has everything" in moved(*back).stdout

    other = ("to-kafka-streams", f"{id}-2", "--serdes", f"n={name}:n", "--state-dir", tmp_path / "state")
    assert "no store 'm'; it has n" in moved("to-kafka-streams", id, "--changelog", "m=t").stderr
    shown = moved(*other, "--dry-run").stdout
    for line in (f"topic {id}-2-n-changelog: 1 record in a new topic", f"topic {moved.topic}, partition 0: offset 15"):
        assert line in shown
    assert kafka_admin.partition_counts([f"{id}-2-n-changelog"]) == {}
    assert moved(*other).exit_code == 0
    assert kafka_admin.group_offsets(f"{id}-2") == {(moved.topic, 0): 15, (moved.topic, 1): 20}
    entries = f"{id}-2-n-changelog 0 -4\n{moved.topic} 0 14\n"
    assert (tmp_path / "state" / "0_0" / ".checkpoint").read_text() == f"0\n2\n{entries}"
    assert "already has everything" in moved(*other).stdout
