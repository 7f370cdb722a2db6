"""Spark Structured Streaming checkpoints: the newest committed batch, and nothing that was only planned."""

from __future__ import annotations

import re

import pytest
from pyspark.sql import SparkSession

from weir.pipelines.migrate.errors import MigrationError, OffsetFileError
from weir.pipelines.migrate.spark_checkpoint import read_spark_checkpoint

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{}}'
KAFKA = '{{"orders":{{"0":{0},"1":{1}}}}}'


def checkpoint(folder, batches, committed, version="v1"):
    """A checkpoint as Spark leaves it; ``batches`` are the sources' lines by batch."""
    for name in ("offsets", "commits", "sources/0"):
        (folder / name).mkdir(parents=True)
    for batch, sources in batches.items():
        (folder / "offsets" / str(batch)).write_text("\n".join([version, METADATA, *sources]))
        (folder / "offsets" / f".{batch}.crc").write_bytes(b"crc\x00")
    for batch in committed:
        (folder / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return folder


def test_the_newest_committed_batch_counts(tmp_path):
    folder = checkpoint(tmp_path, {batch: [KAFKA.format(batch * 10, batch)] for batch in (2, 9, 10, 11)}, (2, 9, 10))
    found = read_spark_checkpoint(folder)
    assert (found.batch, found.is_interrupted) == (10, True)
    assert found.positions == {("orders", 0): 100, ("orders", 1): 10}


def test_sources_other_than_kafka_and_those_that_read_nothing_are_left_out(tmp_path):
    folder = checkpoint(tmp_path, {0: [KAFKA.format(7, 8), '{"logOffset":3}', "-", "5", '{"clicks":{"0":4}}']}, (0,))
    assert read_spark_checkpoint(folder).positions == {("orders", 0): 7, ("orders", 1): 8, ("clicks", 0): 4}


def test_version_2_names_its_sources(tmp_path):
    folder = checkpoint(tmp_path, {0: ["0:" + KAFKA.format(7, 8), "1:-"]}, (0,), version="v2")
    assert read_spark_checkpoint(folder).positions == {("orders", 0): 7, ("orders", 1): 8}


@pytest.mark.parametrize(
    ("sources", "line", "reason"),
    [
        (['{"orders":{"0":'], 3, "is not the offset of a source"),
        (['{"orders":{"0":"many"}}'], 3, "is not offsets by topic and partition"),
        ([KAFKA.format(1, 2), '{"orders":{"0":-2}}'], 4, "the offset -2 of topic 'orders', partition 0, is negative"),
        ([KAFKA.format(1, 2), KAFKA.format(1, 3)], 4, "has topic 'orders' a second time"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(tmp_path, sources, line, reason):
    folder = checkpoint(tmp_path, {0: sources}, (0,))
    with pytest.raises(OffsetFileError, match=re.escape(f"{folder}/offsets/0, line {line}: {reason}")):
        read_spark_checkpoint(folder)


def test_another_version_is_refused(tmp_path):
    folder = checkpoint(tmp_path, {0: [KAFKA.format(1, 2)]}, (0,), version="v3")
    with pytest.raises(OffsetFileError, match=r"offsets/0, line 1: has version 'v3'.* v1 and v2"):
        read_spark_checkpoint(folder)


@pytest.mark.parametrize(
    ("batches", "committed", "reason"),
    [
        ({}, (), "has no offsets of a streaming query"),
        ({0: [KAFKA.format(1, 2)]}, (), "has no committed batch"),
        ({0: ["5"]}, (0,), "has no Kafka source"),
        ({0: ["-"]}, (0, 1), "offsets/1 is missing"),
    ],
)
def test_a_folder_without_committed_kafka_offsets_is_refused(tmp_path, batches, committed, reason):
    with pytest.raises(MigrationError, match=reason):
        read_spark_checkpoint(checkpoint(tmp_path, batches, committed))


@pytest.mark.spark
def test_the_layout_is_that_of_a_real_query(spark, tmp_path):
    """A query of the installed Spark writes the folder; then offsets of Kafka replace those of its source."""
    query = (
        SparkSession(spark)
        .readStream.format("rate")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "query"))
        .trigger(once=True)
        .start()
    )
    assert query.awaitTermination(60)
    with pytest.raises(MigrationError, match="offsets/0 has no Kafka source"):
        read_spark_checkpoint(tmp_path / "query")
    file = tmp_path / "query" / "offsets" / "0"
    version, metadata, _ = file.read_text().splitlines()
    file.write_text("\n".join([version, metadata, KAFKA.format(7, 8)]))
    assert read_spark_checkpoint(tmp_path / "query").positions == {("orders", 0): 7, ("orders", 1): 8}
