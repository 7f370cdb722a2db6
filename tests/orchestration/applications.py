"""Applications as Dagster knows them, for tests that need no driver."""

import dagster as dg

from weir import Application, Count, StreamsBuilder, String
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
"""One that reads a partition, and one after the repartition."""


def clicks(application: str) -> Application:
    """Counts clicks per user; its output has no days."""
    builder = StreamsBuilder()
    builder.stream("clicks", key=String("user"), value=String("page")).group_by_key().agg("counts", clicks=Count())
    return Application(application, builder)


def checked_orders() -> Application:
    """Sends orders to a topic: it has a sink and no output."""
    builder = StreamsBuilder()
    builder.stream("orders", key=String("user"), value=String("order")).to("checked", name="orders")
    return Application("shop", builder)


SHOP = Supervised(
    application=checked_orders(), reference="shop:app", topics={"orders": dg.AssetKey(["kafka", "orders"])}
)
