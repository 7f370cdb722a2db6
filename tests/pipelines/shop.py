"""The application that the examples of ``StateReader`` read, and functions that run applications in this process."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.pipelines.spark.inline import Place, Row, Topics
from weir import Application, Count, Int64, SessionWindows, StreamsBuilder, String, Sum, TimeWindows
from weir.pipelines.spark.planner import TopicPartition

NINE = datetime(2026, 1, 1, 9, tzinfo=UTC)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)

builder = StreamsBuilder()
orders = builder.stream("orders", key=String("customer"), value=Int64("cents")).group_by_key()
orders.agg("spent", orders=Count(), cents=Sum("cents")).to_delta("customers")
orders.windowed_by(TimeWindows.of_size_with_no_grace(HOUR)).count("hourly")
orders.windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(30 * MINUTE)).count("visits")
builder.table("prices", key=String("item"), value=Int64("cents"), store="prices", history_retention=24 * HOUR)
app = Application("shop", builder)


def run(folder: Path) -> None:
    """Leaves in ``folder`` what ``weir run shop:app`` leaves in ``.weir``."""
    topics = {
        "orders": [("ann", 500, NINE), ("bob", 200, NINE + 5 * MINUTE), ("ann", 700, NINE + 10 * MINUTE)],
        "prices": [("tea", 300, NINE), ("tea", 350, NINE + HOUR)],
    }
    records = {
        (topic, 0): [(key.encode(), cents.to_bytes(8, "big"), int(time.timestamp() * 1000)) for key, cents, time in all]
        for topic, all in topics.items()
    }
    run_over(app, records, folder)


def run_over(application: Application, records: dict[TopicPartition, list[Row]], folder: Path) -> None:
    """Leaves in ``folder`` what a run of ``application`` over ``records`` leaves below ``--dir``."""
    Place(application, Topics(records), folder, max_records=10_000).run()
    tasks = list((folder / "state").iterdir())
    (folder / "state" / application.id).mkdir()
    for task in tasks:
        task.rename(folder / "state" / application.id / task.name)
