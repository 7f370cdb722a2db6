"""Several topics in one task through the driver: the order of records does not depend on how epochs are cut."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.pipelines.spark.inline import Place, Topics
from weir import Application, StreamsBuilder, String
from weir.pipelines.tasks import batch_sizes
from weir.state.commit.tables import read_table


def rows(count: int, every_ms: int, partition: int = 0) -> list:
    return [(b"k", b"%d@%d" % (partition, number * every_ms), number * every_ms) for number in range(count)]


def place(folder, program, topics, **settings) -> Place:
    builder = StreamsBuilder()
    program(builder)
    application = Application("several", builder, commit_interval=timedelta(milliseconds=1), **settings)
    return Place(application, Topics(topics), folder, max_records=7)


def stream(builder: StreamsBuilder, topic: str):
    return builder.stream(topic, key=String("key"), value=String("value"))


def written(place: Place, table: str = "out") -> list[str]:
    return read_table(place.warehouse / "several" / table).sort("_epoch", "_seq")["value"].to_list()


@pytest.mark.slow
@pytest.mark.parametrize("uncommitted_max_bytes", [-1, 40])
def test_topics_of_different_pace_are_taken_in_time_order(tmp_path, monkeypatch, uncommitted_max_bytes):
    monkeypatch.setattr(batch_sizes, "FIRST_ROWS", 3)

    def program(builder):
        merged = stream(builder, "sparse").merge(stream(builder, "dense"))
        merged.to_delta("out")
        merged.to_table("newest")

    sparse, dense = rows(10, 100), rows(60, 7, 1)
    run = place(
        tmp_path, program, {("sparse", 0): sparse, ("dense", 0): dense}, uncommitted_max_bytes=uncommitted_max_bytes
    )
    assert run.run().records_in == 70
    assert written(run) == [value.decode() for _, value, _ in sorted(sparse + dense, key=lambda row: row[2])]


def test_without_waiting_a_topic_overtakes_another(tmp_path):
    run = place(
        tmp_path,
        lambda b: stream(b, "sparse").merge(stream(b, "dense")).to_delta("out"),
        {("sparse", 0): rows(10, 100), ("dense", 0): rows(60, 7, 1)},
        max_task_idle=None,
    )
    run.run()
    assert len(written(run)) == 70
    assert written(run).index("0@500") < written(run).index("1@49")


def test_a_row_leaves_its_group_only_after_it_entered_even_if_it_leaves_with_an_older_time(tmp_path):
    def program(builder):
        towns = builder.table("towns", key=String("town"), value=String("country"), store="towns")
        towns.group_by("country").count("towns_of").to_delta("out")

    run = place(tmp_path, program, {("towns", 0): [(b"rome", b"it", 10), (b"rome", b"fr", 5)]})
    run.run()
    found = read_table(run.warehouse / "several" / "out")
    assert dict(found.select("country", "count").rows()) == {"it": 0, "fr": 1}


def test_rows_after_a_repartition_wait_for_older_records_of_a_topic(tmp_path):
    def program(builder):
        moved = stream(builder, "moved").select_key(lambda_key).repartition("moves")
        moved.merge(stream(builder, "still")).to_delta("out")

    moved, still = rows(7, 10), rows(40, 3, 1)
    run = place(tmp_path, program, {("moved", 0): moved, ("still", 0): still})
    run.run()
    assert written(run) == [value.decode() for _, value, _ in sorted(moved + still, key=lambda row: row[2])]


def lambda_key(key: str, value: str) -> str:
    return key


def test_a_global_table_is_loaded_completely_before_the_first_record_and_then_followed(tmp_path):
    def program(builder):
        table = builder.global_table("names", key=String("id"), value=String("name"), store="names")
        stream(builder, "in").left_join(table, key="key").map_values(value="name").to_delta("out")

    names = {
        ("names", partition): [(b"k", b"%d" % number, 0) for number in range(partition, 30, 2)] for partition in (0, 1)
    }
    names["names", 1] = [(b"other", b"x", 0)]
    run = place(tmp_path, program, {("in", 0): rows(3, 1), **names})
    run.run()
    assert written(run) == ["28"] * 3
    run.topics.rows["names", 0].append((b"k", b"newest", 0))
    run.topics.rows["in", 0] += rows(2, 1)
    run.run()
    assert written(run) == ["28"] * 3 + ["newest"] * 2


def test_a_topic_with_fewer_partitions_leaves_the_other_tasks_alone(tmp_path):
    run = place(
        tmp_path,
        lambda b: stream(b, "one").merge(stream(b, "two")).to_delta("out"),
        {("one", 0): rows(5, 1), ("two", 0): rows(5, 1, 1), ("two", 1): rows(5, 1, 2)},
    )
    assert run.run().records_in == 15
    assert len(written(run)) == 15
    again = replace(run)
    assert again.run().records_in == 0
