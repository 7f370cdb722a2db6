"""The application that the examples of ``StateReader`` read, and one run of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.pipelines.spark.inline import Place, Topics
from weir import Application, Count, Int64, SessionWindows, StreamsBuilder, String, Sum, TimeWindows

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
    rows = {
        (topic, 0): [(key.encode(), cents.to_bytes(8, "big"), int(time.timestamp() * 1000)) for key, cents, time in all]
        for topic, all in topics.items()
    }
    place = Place(app, Topics(rows), folder)
    place.run()
    tasks = list((folder / "state").iterdir())
    (folder / "state" / app.id).mkdir()
    for task in tasks:
        task.rename(folder / "state" / app.id / task.name)
