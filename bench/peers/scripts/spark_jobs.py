"""The benchmark's jobs in Spark Structured Streaming: ``spark_jobs.py JOB CLIENT IN OUT STATE BATCH KEY=VALUE...``.

The topic is read up to where it ended when the query began, in micro-batches of BATCH records, each a commit; a last
one without records emits what the watermark has closed since. Sessions have a second query, which goes on from the
checkpoint of the first: a record of the far future ends those that are still open. Prints one JSON object: records, and
seconds from the beginning of the first batch's work to the end of the last.
"""

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from login import properties
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

CONSUMER = {"max.poll.records": "5000", "fetch.max.bytes": "50000000", "max.partition.fetch.bytes": "4000000"}
PRODUCER = {"linger.ms": "50", "batch.size": "262144", "compression.type": "lz4"}
ADVANCES = {"window_final": "1 minute", "hopping_final": "15 seconds"}
FIELDS = {"repartition_sum": "page STRING, amount LONG"}
END = '{"ts": "2100-01-01T00:00:00Z"}'


class Job:
    """One job over one topic."""

    def __init__(self, job: str, session: SparkSession, client: str, topic: str, state: str) -> None:
        self._job, self._session, self._topic, self._state = job, session, topic, state
        reader = {**properties(client), **CONSUMER}
        self._reader = {"startingOffsets": "earliest", **{f"kafka.{name}": value for name, value in reader.items()}}

    def users(self) -> DataFrame:
        """``user`` and ``factor``, as they are when a batch begins."""
        rows = self._session.read.format("kafka").options(**self._reader, subscribe=f"{self._topic}_users").load()
        newest = rows.groupBy(sf.col("key").cast("string").alias("user")).agg(
            sf.max_by("value", "offset").alias("value")
        )
        return newest.select("user", sf.from_json(sf.col("value").cast("string"), "factor LONG").factor.alias("factor"))

    def totals(self, batch: str) -> DataFrame:
        """``key`` and ``total``, from micro-batches of ``batch`` records."""
        read = self._session.readStream.format("kafka")
        records = read.options(**self._reader, subscribe=self._topic, maxOffsetsPerTrigger=batch).load()
        event = sf.from_json(sf.col("value").cast("string"), FIELDS.get(self._job, "amount LONG"))
        fields = records.select(sf.col("key").cast("string").alias("user"), event.alias("event"), "timestamp")
        events = fields.select("user", "event.*", sf.col("timestamp").alias("ts"))
        user, total = sf.col("user").alias("key"), sf.sum("amount").alias("total")
        match self._job:
            case "sum_per_key":
                return events.groupBy(user).agg(total)
            case "repartition_sum":
                return events.groupBy(sf.col("page").alias("key")).agg(total)
            case "table_join_sum":
                weighted = sf.col("amount") * sf.col("factor")
                return (
                    events.join(sf.broadcast(self.users()), "user").groupBy(user).agg(sf.sum(weighted).alias("total"))
                )
            case "session_sum":
                end = self._session.readStream.schema(events.schema).json(self.end)
                sums = _sums(events.union(end), sf.session_window("ts", "3 seconds"))
                last = sf.col("window.end") - sf.expr("INTERVAL 3 SECONDS")
                return sums.select(_joined("user", _millis(sf.col("window.start")), _millis(last)), "total")
        sums = _sums(events, sf.window("ts", "1 minute", ADVANCES[self._job]))
        return sums.select(_joined("user", _millis(sf.col("window.start"))), "total")

    @property
    def end(self) -> str:
        """The folder of what comes after the topic."""
        return f"{self._state}/end"

    def run(self, totals: DataFrame, client: str, output: str) -> list[Any]:
        """Run one query; returns the progress of its batches."""
        mode = "append" if self._job in ADVANCES or self._job == "session_sum" else "update"
        writer = {f"kafka.{name}": value for name, value in {**properties(client), **PRODUCER}.items()}
        sink = totals.select("key", sf.col("total").cast("binary").alias("value")).writeStream.format("kafka")
        sink = sink.options(**writer, topic=output, checkpointLocation=f"{self._state}/checkpoint").outputMode(mode)
        query = sink.trigger(availableNow=True).start()
        query.awaitTermination()
        return [batch for batch in query.recentProgress if "addBatch" in batch.durationMs]


def _sums(events: DataFrame, windows: Column) -> DataFrame:
    grouped = events.withWatermark("ts", "10 seconds").groupBy("user", windows.alias("window"))
    return grouped.agg(sf.sum("amount").alias("total"))


def _joined(*parts: str | Column) -> Column:
    return sf.concat_ws("@", *parts).alias("key")


def _millis(time: Column) -> Column:
    return sf.unix_millis(time).cast("string")


def seconds(batches: Sequence[Any]) -> float:
    """From when the first batch is planned to the end of the last."""
    first, last = batches[0], batches[-1]
    began, ended = (datetime.fromisoformat(batch.timestamp).timestamp() for batch in (first, last))
    took = first.durationMs
    planned_ms = took["triggerExecution"] - took["addBatch"] - took.get("commitOffsets", 0)
    return ended - began + float(last.durationMs["triggerExecution"] - planned_ms) / 1000


def main(name: str, client: str, topic: str, output: str, state: str, batch: str, *settings: str) -> None:
    builder = SparkSession.builder.appName(output)
    for key, value in (setting.split("=", 1) for setting in settings):
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    job = Job(name, session, client, topic, state)
    Path(job.end).mkdir()
    batches = job.run(job.totals(batch), client, output)
    if name == "session_sum":
        Path(job.end, "end.json").write_text(END)
        batches += job.run(job.totals(batch), client, output)
    records = sum(batch.sources[0].numInputRows for batch in batches)
    if name == "table_join_sum":
        records += job.users().count()
    print(json.dumps({"records": records, "seconds": seconds(batches)}))
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
