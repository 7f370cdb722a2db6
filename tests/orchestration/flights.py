"""The flights application as Dagster knows it, for tests that need no driver."""

import dagster as dg

from weir.orchestration.supervised import Supervised
from weir.pipelines.examples.flights import app
from weir.state.types import TaskId

START_S = 1_700_000_000
FLIGHTS = Supervised(
    application=app,
    reference="weir.pipelines.examples.flights:app",
    topics={"flights": dg.AssetKey(["flights", "topic"])},
)
TASKS = [app.topology.task_name(TaskId(sub_topology, 0)) for sub_topology in (0, 1)]
"""One that reads a partition, one behind the repartition."""
