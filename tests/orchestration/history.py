"""A long history of the held application, made quickly: real epochs of real tasks and a commit, without Spark.

The weather is read as if from the topic that the example's loader fills, so that a driver can continue with that topic.
"""

import time

from tests.orchestration.held import app
from tests.pipelines.spark.inline import InlineSlots, Topics
from weir.infra.settings import Settings
from weir.pipelines.examples.load_weather import weather_records
from weir.pipelines.spark.coordinator import Coordinator
from weir.pipelines.spark.planner import Limits
from weir.pipelines.tasks.epoch import EpochRunner, TaskSettings
from weir.pipelines.tasks.tables import application_tables
from weir.state.commit.protocol import Committer
from weir.state.engine.cache import TaskStoreCache

PARTITIONS = 2
OBSERVATIONS = 40
"""How many have been read; most epochs had nothing to read."""


def make_history(settings: Settings, epochs: int) -> None:
    """Bring the application to its first commit, that of epoch ``epochs``."""
    topics = Topics({("weather", partition): [] for partition in range(PARTITIONS)})
    for key, value, at_ms, partition in (
        weather_records(PARTITIONS).head(OBSERVATIONS).select("key", "value", "timestamp_ms", "partition").iter_rows()
    ):
        topics.rows["weather", partition].append((key.encode(), value.encode(), at_ms))
    runner = EpochRunner(
        app.topology,
        TaskSettings(
            application_folder=str(settings.warehouse / app.id),
            state_folder=str(settings.state_dir / app.id),
            partition_counts=app.topology.partition_counts(topics.partition_counts()),
        ),
        topics.reader,
        lambda step: None,
    )
    committer = Committer(
        settings.warehouse, app.id, application_tables(app.topology), fingerprint=app.topology.fingerprint
    )
    coordinator = Coordinator(app, settings.warehouse, committer, InlineSlots(runner))
    coordinator.start(topics.partition_counts(), topics)
    ends, limits = topics.end_offsets(list(topics.rows)), Limits(max_records=10, max_bytes=1 << 20, max_skew_ms=None)
    while coordinator.epoch < epochs:
        for task in coordinator.tasks.values():
            task.visited = False  # so that it gets a plan although there is nothing to read
        coordinator.run_epoch(ends, limits, time.time_ns() // 1_000_000)
    coordinator.commit("interval")
    coordinator.settle(close=True)
    TaskStoreCache.close_all()
    committer.close()
