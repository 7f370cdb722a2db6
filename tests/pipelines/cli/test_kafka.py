"""``weir kafka list|produce|consume|delete`` against a real broker, and against none."""

import json
import re
import subprocess
import sys
import time

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from weir.infra.kafka.admin import KafkaAdmin, UnknownTopicError
from weir.infra.kafka.login import read_properties
from weir.pipelines.cli.app import app
from weir.pipelines.serdes.partitioner import murmur2


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture
def weir(broker, tmp_path, monkeypatch):
    """``weir kafka ...`` with the broker's address from the environment, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEIR_BOOTSTRAP_SERVERS", broker)
    runner = CliRunner()
    return lambda *arguments, **options: runner.invoke(app, ["kafka", *map(str, arguments)], **options)


def records(weir, *arguments):
    result = weir("consume", "--json", *arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.broker
def test_what_is_produced_is_consumed_with_its_key_time_and_partition(weir, topic, tmp_path):
    name = topic(3)
    lines = [f'{{"customer": "c{each}", "at": "2024-01-31T00:00:{each:02}Z"}}' for each in range(40)]
    (tmp_path / "orders.jsonl").write_text("\n".join(lines) + "\n")
    sent = weir("produce", name, "--file", "orders.jsonl", "--key-field", "customer", "--time-field", "at")
    assert sent.exit_code == 0, sent.output
    assert f"40 records sent to the topic '{name}' at " in flat(sent.stdout)
    found = records(weir, name)
    assert sorted((each["key"], each["value"]) for each in found) == sorted(
        (f"c{number}", line) for number, line in enumerate(lines)
    )
    assert {each["key"]: each["time"] for each in found} == {
        f"c{each}": f"2024-01-31T00:00:{each:02}.000Z" for each in range(40)
    }
    assert all(each["partition"] == (int(murmur2([each["key"].encode()])[0]) & 0x7FFFFFFF) % 3 for each in found)
    for partition in range(3):
        offsets = [each["offset"] for each in found if each["partition"] == partition]
        assert offsets == list(range(len(offsets)))
    assert records(weir, name, "--partition", 1) == [each for each in found if each["partition"] == 1]


@pytest.mark.broker
def test_lines_of_standard_input_are_keys_and_values(weir, topic):
    name = topic(2)
    sent = weir("produce", name, "--partition", 1, input='ann\t{"amount": 5}\nbob\t\n\nplain\n')
    assert f"3 records sent to the topic '{name}'" in flat(sent.stdout)
    assert flat(sent.stdout).endswith("; 1 blank line left out")
    assert [(each["partition"], each["key"], each["value"]) for each in records(weir, name)] == [
        (1, "ann", '{"amount": 5}'),
        (1, "bob", None),
        (1, None, "plain"),
    ]


@pytest.mark.broker
def test_headers_are_sent_and_shown_where_they_are_asked_for(weir, topic, broker):
    name = topic(1)
    sent = weir("produce", name, "--header", "source=shop", "--header", "trace=a=b", input="ann\t5\n")
    assert sent.exit_code == 0, sent.output
    producer = Producer({"bootstrap.servers": broker})
    producer.produce(name, b"6", b"bob", headers=[("n", None), ("n", b"\xff")])
    producer.produce(name, b"7", b"cid")
    assert producer.flush(10) == 0
    assert [each["headers"] for each in records(weir, name, "--headers")] == [
        [{"name": "source", "value": "shop"}, {"name": "trace", "value": "a=b"}],
        [{"name": "n", "value": None}, {"name": "n", "value_base64": "/w=="}],
        [],
    ]
    assert all("headers" not in each for each in records(weir, name))
    lines = [line.split()[3:] for line in weir("consume", name, "--headers").stdout.splitlines()]
    assert lines == [
        ["headers", "key", "value"],
        ["source=shop,", "trace=a=b", "ann", "5"],
        ["n=-,", "n=base64:/w==", "bob", "6"],
        ["-", "cid", "7"],
    ]
    assert "--header takes KEY=VALUE, for example --header source=shop" in flat(
        weir("produce", name, "--header", "source", input="a\tb\n").stderr
    )


@pytest.mark.broker
def test_consume_begins_where_it_is_told(weir, topic):
    name = topic(1)
    for day in range(1, 6):
        weir("produce", name, "--timestamp", f"2024-01-0{day}T12:00:00Z", input=f"day {day}\n")

    def values(*arguments):
        return [each["value"] for each in records(weir, name, *arguments)]

    every = [f"day {day}" for day in range(1, 6)]
    assert values() == values("--from", "beginning") == values("--from", "0") == every
    assert values("--from", "3") == every[3:]
    assert values("--from", "5") == []
    assert values("--from", "2024-01-02T12:00:00Z") == every[1:]
    assert values("--from", "2024-01-02T12:00:01Z") == every[2:]
    assert values("--from", "2030-01-01") == []
    assert values("--limit", "2") == every[:2]
    assert values("--from", "1", "--limit", "2") == every[1:3]
    beyond = weir("consume", name, "--from", "6")
    assert beyond.exit_code == 1
    assert "reaches offset 6; they end at offset 5 at most" in flat(beyond.stderr)
    assert "--from cannot be 'start'; write beginning, end" in flat(weir("consume", name, "--from", "start").stderr)


@pytest.mark.broker
def test_records_are_printed_for_people(weir, topic, broker):
    name = topic(1)
    producer = Producer({"bootstrap.servers": broker})
    producer.produce(name, b"\x00\x00\x00\x07", b"k\n1", timestamp=1_704_067_200_000)
    producer.produce(name, None, None, timestamp=1_704_067_200_001)
    assert producer.flush(10) == 0
    shown = weir("consume", name)
    assert [line.split() for line in shown.stdout.splitlines()] == [
        ["partition", "offset", "time", "key", "value"],
        ["0", "0", "2024-01-01T00:00:00.000Z", "k\\n1", "base64:AAAABw=="],
        ["0", "1", "2024-01-01T00:00:00.001Z", "-", "-"],
    ]
    nothing = weir("consume", topic(1))
    assert nothing.exit_code == 0
    assert nothing.stdout == ""
    assert "has no records there" in flat(nothing.stderr)


@pytest.mark.broker
def test_records_of_aborted_transactions_are_not_read_and_the_end_is_still_found(weir, topic, broker):
    name = topic(1)
    producer = Producer({"bootstrap.servers": broker, "transactional.id": name})
    producer.init_transactions(10)
    for value, is_committed in ((b"kept", True), (b"aborted", False)):
        producer.begin_transaction()
        producer.produce(name, value)
        producer.flush(10)
        producer.commit_transaction(10) if is_committed else producer.abort_transaction(10)
    started = time.monotonic()
    assert [each["value"] for each in records(weir, name)] == ["kept"]
    assert time.monotonic() - started < 8


@pytest.mark.broker
@pytest.mark.parametrize("arguments", [["--follow"], ["--from", "end"]])
def test_following_prints_new_records_until_it_has_enough(weir, topic, broker, arguments):
    name = topic(2)
    weir("produce", name, "--partition", 0, input="old\n")
    is_from_end = arguments[0] == "--from"
    command = [sys.executable, "-c", "from weir.pipelines.cli import main; main()", "kafka", "consume", name, "--json"]
    follower = subprocess.Popen(
        [*command, *arguments, "--limit", "1" if is_from_end else "2", "--bootstrap-servers", broker],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        if not is_from_end:
            assert json.loads(follower.stdout.readline())["value"] == "old"
        until = time.monotonic() + 60  # where the end was met is not told, so offer records until one comes
        while follower.poll() is None and time.monotonic() < until:
            weir("produce", name, "--partition", 1, input="new\n")
            time.sleep(0.5)
        assert follower.wait(10) == 0
        assert json.loads(follower.stdout.readline())["value"] == "new"
    finally:
        follower.kill()
        follower.wait()


@pytest.mark.broker
def test_topics_are_listed_with_partitions_records_and_retention(weir, topic):
    plain, brief, compacted = topic(2), topic(1, retention_ms="86400000"), topic(1, cleanup_policy="compact")
    weir("produce", plain, input="a\tb\nc\td\n")
    listed = weir("list", "--json")
    assert listed.exit_code == 0, listed.output
    found = {each["topic"]: each for each in json.loads(listed.stdout)["topics"]}
    assert found[plain] == {"topic": plain, "partitions": 2, "records": 2, "retention": "for ever"}
    assert found[brief] == {"topic": brief, "partitions": 1, "records": 0, "retention": "1 day, 0:00:00"}
    assert found[compacted]["retention"] == "newest of each key"
    assert not any(name.startswith("__") for name in found)
    row = next(line for line in weir("list").stdout.splitlines() if line.startswith(plain))
    assert re.fullmatch(rf"{plain}\s+2\s+2\s+for ever", row)


@pytest.mark.broker
def test_a_topic_is_deleted_once_confirmed(weir, topic, kafka_admin):
    name = topic(1)
    weir("produce", name, input="a\tb\n")
    asked = weir("delete", name, input="n\n")
    assert asked.exit_code == 1
    assert f"Delete the topic '{name}' with 1 record at" in flat(asked.output)
    assert kafka_admin.partition_count(name) == 1
    assert f"topic '{name}' deleted, with 1 record" in flat(weir("delete", name, "--yes").stdout)
    with pytest.raises(UnknownTopicError):
        kafka_admin.partition_count(name)


@pytest.mark.broker
def test_a_topic_that_exists_is_not_created_with_another_number_of_partitions(weir, topic, kafka_admin):
    name = topic(2)
    refused = weir("create", name, "--partitions", 3)
    assert refused.exit_code == 1
    said = f"topic '{name}' already exists with 2 partitions, not 3; leave --partitions out to use it as it is"
    assert said in flat(refused.stderr)
    assert kafka_admin.partition_count(name) == 2
    for same in (("create", name), ("create", name, "--partitions", 2)):
        assert f"topic '{name}' already exists, with 2 partitions at" in flat(weir(*same).stdout)
    assert "created, with 3 partitions" in flat(weir("create", f"{name}-other", "--partitions", 3).stdout)
    assert "created, with 4 partitions" in flat(weir("create", f"{name}-default").stdout)


@pytest.mark.broker
def test_a_topic_that_does_not_exist_is_not_deleted(weir, topic):
    there = topic(1)
    refused = weir("delete", "ordrs", "--yes")
    assert refused.exit_code == 1
    assert "topic 'ordrs' does not exist at" in flat(refused.stderr)
    assert "`weir kafka list` shows those that do" in flat(refused.stderr)
    assert there in weir("list").stdout


@pytest.mark.broker
@pytest.mark.parametrize("command", ["produce", "consume"])
def test_an_unknown_topic_is_named_with_a_way_out_that_works(weir, command, request, kafka_admin):
    name = f"missing-{abs(hash(request.node.name))}"
    refused = weir(command, name, input="a\n")
    assert refused.exit_code == 1
    assert f"topic '{name}' does not exist at" in flat(refused.stderr)
    assert f"`weir kafka create {name}`" in flat(refused.stderr)
    assert "unexpected" not in refused.stderr
    assert weir("create", name).exit_code == 0
    assert weir(command, name, input="a\n").exit_code == 0


@pytest.mark.broker
@pytest.mark.parametrize("command", ["produce", "consume"])
def test_a_partition_that_does_not_exist_is_named(weir, topic, command):
    refused = weir(command, name := topic(2), "--partition", 2, input="a\n")
    assert refused.exit_code == 1
    assert f"partition 2 of '{name}' does not exist" in flat(refused.stderr)
    assert "numbered from 0" in flat(refused.stderr)


@pytest.mark.broker
def test_a_line_that_does_not_fit_says_so_after_those_before_it_were_sent(weir, topic):
    name = topic(1)
    refused = weir("produce", name, "--key-field", "k", input='{"k": 1}\n{"other": 2}\n')
    assert refused.exit_code == 1
    assert "line 2 has no field 'k'; it has other" in flat(refused.stderr)
    assert "1 record before it was sent: leave it out when you try again" in flat(refused.stderr)
    assert [each["key"] for each in records(weir, name)] == ["1"]
    assert weir("produce", name, "--key-field", "k", input='{"k": 2}\n').exit_code == 0
    assert [each["key"] for each in records(weir, name)] == ["1", "2"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--timestamp", "1970-01-01"], "--timestamp cannot be '1970-01-01'; write a time after 1970-01-01T00:00:00Z"),
        (["--timestamp", "2024-01-31", "--time-field", "at"], "leave it out, or leave out --time-field"),
    ],
)
def test_a_time_that_no_record_can_have_and_two_times_are_refused(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(app, ["kafka", "produce", "t", *options], input="a\n")
    assert refused.exit_code == 1
    assert message in flat(refused.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["list"], ["produce", "t"], ["consume", "t"], ["delete", "t", "--yes"]])
def test_brokers_that_are_away_are_one_sentence(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("weir.infra.kafka.admin.TIME_LIMIT_S", 0.5)
    monkeypatch.setattr(KafkaAdmin.__init__, "__kwdefaults__", {"time_limit_s": 0.5})
    refused = CliRunner().invoke(app, ["kafka", *arguments, "--bootstrap-servers", "127.0.0.1:1"], input="a\n")
    assert refused.exit_code == 1
    assert "no answer from Kafka at 127.0.0.1:1" in flat(refused.stderr)
    assert "Traceback" not in refused.stderr


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(app, ["kafka", "produce", "t", "--file", "nowhere", "--bootstrap-servers", "h:1"])
    assert refused.exit_code == 1
    assert "nowhere cannot be read: No such file or directory; name another --file" in flat(refused.stderr)


@pytest.mark.broker
def test_without_an_address_the_embedded_broker_is_meant(tmp_path, monkeypatch):
    """One that another command of the folder has started is used, not a second one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WEIR_BOOTSTRAP_SERVERS", raising=False)
    run = lambda *arguments, **options: CliRunner().invoke(app, ["kafka", *arguments], **options)
    started = run("start")
    assert started.exit_code == 0
    folder = tmp_path / ".weir" / "kafka"
    assert {f"{folder}/client.properties", f"{folder}/client-java.properties"} <= set(started.stdout.split())
    assert read_properties(folder / "client.properties")["sasl.password"] not in started.output
    try:
        assert "there are no topics at" in flat(run("list").stdout)
        assert run("create", "orders", "--partitions", "1").exit_code == 0
        assert run("produce", "orders", input="ann\t5\n").exit_code == 0
        assert "ann  5" in run("consume", "orders").stdout
        assert run("delete", "orders", "--yes").exit_code == 0
    finally:
        assert run("stop").exit_code == 0
