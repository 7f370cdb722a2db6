"""How long an epoch takes with a due punctuation in every task and no input, the minimum duration of an epoch, and how
long one with ``RECORDS`` records.

``python -m bench.idle_epoch REFERENCE DIR CLIENT`` runs in a folder where the application has caught up, and adds to
its only topic; CLIENT is the broker's file of client properties. The two kinds of epochs take turns, with a commit
after each pair. Prints one JSON object: their medians in ms, and the number of epochs of each kind.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Producer

from bench import cluster
from bench.events import SMALL_BYTES, event_frame
from bench.weir_side import SLOTS
from weir.infra.spark.session import slot_context
from weir.pipelines.application import load_application
from weir.pipelines.spark.brokers import Brokers
from weir.pipelines.spark.coordinator import Coordinator
from weir.pipelines.spark.planner import Limits
from weir.pipelines.spark.slots import SlotPool
from weir.pipelines.spark.spread import spread
from weir.pipelines.spark.worker import WorkerSettings
from weir.pipelines.tasks.epoch import TaskSettings
from weir.pipelines.tasks.tables import application_tables
from weir.state.commit.protocol import Committer
from weir.state.storage.places import folder_at
from weir.state.types import TaskId

EPOCHS, WARM_UP, RECORDS = 200, 20, 1_000
MOST_EPOCHS = 100
"""In which the records are read at the latest."""


def main(arguments: Sequence[str]) -> None:
    reference, folder, client = arguments
    settings = cluster.settings(Path(client), Path(folder), slots=SLOTS)
    kafka = cluster.properties(Path(client))
    application, admin = load_application(reference), cluster.admin(Path(client))
    topology = application.topology
    counts = admin.partition_counts(topology.topics())
    tasks = [TaskId(index, p) for index, count in topology.partition_counts(counts).items() for p in range(count)]
    worker = WorkerSettings(
        reference=reference,
        kafka=kafka,
        tasks=TaskSettings(
            application_folder=str(folder_at(settings.warehouse) / application.id),
            state_folder=str(settings.state_dir / application.id),
            partition_counts=topology.partition_counts(counts),
        ),
    )
    spark = slot_context(settings, application.id)
    committer = Committer(
        folder_at(settings.warehouse), application.id, application_tables(topology), fingerprint=topology.fingerprint
    )
    slots = SlotPool(spark, SLOTS, worker, spread(tasks, SLOTS, {}))
    coordinator = Coordinator(application, folder_at(settings.warehouse), committer, slots)
    coordinator.start(counts, Brokers(settings, admin.bootstrap_servers, application))
    (topic,) = counts
    places = [(topic, partition) for partition in range(counts[topic])]
    limits = Limits(max_records=RECORDS, max_bytes=1 << 20, max_skew_ms=None)
    producer = Producer(kafka)
    events = event_frame(0, RECORDS * (WARM_UP + EPOCHS), SMALL_BYTES).select("key", "value", "timestamp")

    def epochs_s(records: int) -> float | None:
        """How long an epoch took that read ``records``; None if it took several, as when a consumer is told of the end
        of its partition just before more comes."""
        for task in coordinator.tasks.values():
            task.next_punctuation_ms = 0
        ends, read, count = admin.end_offsets(places), 0, 0
        started = time.perf_counter()
        while count == 0 or read < records:
            result = coordinator.run_epoch(ends, limits, time.time_ns() // 1_000_000)
            if result is None or result.failures or result.to_restore or count == MOST_EPOCHS:
                raise RuntimeError(f"no epochs of {records} records, but {read} after {count}: {result}")
            read, count = read + result.records_in, count + 1
        return time.perf_counter() - started if count == 1 else None

    idle, busy = list[float | None](), list[float | None]()
    try:
        for turn in range(WARM_UP + EPOCHS):
            idle.append(epochs_s(0))
            for key, value, time_ms in events[turn * RECORDS : (turn + 1) * RECORDS].rows():
                producer.produce(topic, value, key, timestamp=time_ms)
            producer.flush()
            busy.append(epochs_s(RECORDS))
            coordinator.commit("bench")
    finally:
        committer.close()
        slots.close()
        spark.stop()
    medians = {
        name: 1000 * statistics.median(seconds for seconds in each[WARM_UP:] if seconds is not None)
        for name, each in (("median_ms", idle), ("records_ms", busy))
    }
    print(json.dumps({**medians, "records": RECORDS, "epochs": EPOCHS}))


if __name__ == "__main__":
    main(sys.argv[1:])
