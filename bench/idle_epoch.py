"""How long an epoch takes with a due punctuation in every task and no input: the minimum duration of an epoch.

``python -m bench.idle_epoch REFERENCE DIR BOOTSTRAP`` runs in a folder where the application has caught up. Prints one
JSON object: the median in ms and the number of epochs.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.weir_side import SLOTS
from weir.infra.kafka.admin import KafkaAdmin
from weir.infra.settings import Settings
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
from weir.state.types import TaskId

EPOCHS, WARM_UP = 200, 20


def main(arguments: Sequence[str]) -> None:
    reference, folder, bootstrap_servers = arguments
    settings = Settings(dir=Path(folder), bootstrap_servers=bootstrap_servers, slots=SLOTS)
    application, admin = load_application(reference), KafkaAdmin(bootstrap_servers)
    topology = application.topology
    counts = admin.partition_counts(topology.topics())
    tasks = [TaskId(index, p) for index, count in topology.partition_counts(counts).items() for p in range(count)]
    worker = WorkerSettings(
        reference=reference,
        kafka={"bootstrap.servers": bootstrap_servers},
        tasks=TaskSettings(
            application_folder=str(settings.warehouse / application.id),
            state_folder=str(settings.state_dir / application.id),
            partition_counts=topology.partition_counts(counts),
        ),
    )
    spark = slot_context(settings, application.id)
    committer = Committer(
        settings.warehouse, application.id, application_tables(topology), fingerprint=topology.fingerprint
    )
    slots = SlotPool(spark, SLOTS, worker, spread(tasks, SLOTS, {}))
    coordinator = Coordinator(application, settings.warehouse, committer, slots)
    coordinator.start(counts, Brokers(settings, bootstrap_servers, application))
    ends = admin.end_offsets([(topic, p) for topic, count in counts.items() for p in range(count)])
    limits = Limits(max_records=1, max_bytes=1 << 20, max_skew_ms=None)
    seconds = []
    for _ in range(WARM_UP + EPOCHS):
        for task in coordinator.tasks.values():
            task.next_punctuation_ms = 0
        started = time.perf_counter()
        result = coordinator.run_epoch(ends, limits, time.time_ns() // 1_000_000)
        seconds.append(time.perf_counter() - started)
        if result is None or result.records_in or result.failures or result.to_restore:
            raise RuntimeError(f"the epoch was not idle: {result}")
    committer.close()
    slots.close()
    spark.stop()
    print(json.dumps({"median_ms": 1000 * statistics.median(seconds[WARM_UP:]), "epochs": EPOCHS}))


if __name__ == "__main__":
    main(sys.argv[1:])
