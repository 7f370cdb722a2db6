"""``weir demo customers``: delivers the events of a thousand customers in batches, to PostgreSQL and to Kafka."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import polars as pl

from weir.infra.kafka.admin import KafkaAdmin
from weir.infra.kafka.broker import broker_for
from weir.infra.kafka.records import read
from weir.pipelines.cli.progress import TerminalWarnings, counting, following
from weir.pipelines.cli.render import console, notices, print_table
from weir.pipelines.examples import load_customers
from weir.pipelines.examples.customers import app
from weir.pipelines.operations.drive import drive
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.text import counted
from weir.pipelines.publishing.sql_address import address_of, engine_of
from weir.pipelines.sinks.sql import SqlTable

if TYPE_CHECKING:
    from weir.infra.settings import Settings
    from weir.pipelines.examples.loading import LoadSummary
    from weir.pipelines.spark.progress import RunSummary

REFERENCE = "weir.pipelines.examples.customers:app"
TABLE = TOPIC = "deliveries"
LARGEST = 8


def deliver(settings: Settings) -> None:
    """Load the events, run the example until it has caught up, and show what reached the table and the topic.

    The database is that of the setting ``sql_url``; without one, a PostgreSQL in the folder, which runs meanwhile.
    """
    with _database(settings) as url, broker_for(settings) as (bootstrap_servers, settings):
        settings = settings.model_copy(update={"sql_url": url})
        with counting("loading events") as show:
            loaded = load_customers.load(
                bootstrap_servers,
                client_properties=settings.kafka,
                on_progress=lambda done, total: show(done, total, ""),
            )
        admin = KafkaAdmin(bootstrap_servers, settings.kafka)
        admin.create_topic(TOPIC, load_customers.PARTITIONS)
        with following("running customers") as on_progress:
            summary = drive(
                REFERENCE,
                settings,
                until_caught_up=True,
                owner="weir run",
                on_progress=on_progress,
                console=TerminalWarnings(),
            )
        if summary.reason != "caught_up":
            console.print("Stopped and committed; `weir demo customers` continues from here.")
            return
        _print_results(settings, admin, loaded, summary)


@contextmanager
def _database(settings: Settings) -> Iterator[str]:
    if settings.sql_url:
        yield settings.sql_url
        return
    if importlib.util.find_spec("pgserver") is None:
        raise OperationError(
            'this demo needs a PostgreSQL: install one with `pip install "weir-streams[demo]"`, or name yours with '
            "`--set sql_url=postgresql://USER@HOST/DATABASE`"
        )
    from pgserver.postgres_server import get_server

    notices.print("starting PostgreSQL", markup=False)
    settings.dir.mkdir(parents=True, exist_ok=True)
    server = get_server(settings.dir / "postgresql", cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


def _print_results(settings: Settings, admin: KafkaAdmin, loaded: LoadSummary, summary: RunSummary) -> None:
    """The customers with most events as the table has them, and whether table and topic have every event."""
    rows = _table_rows(settings)
    in_topic = [_DELIVERIES.decode(value).count for value in _topic_values(settings, admin)]
    per_customer = rows.group_by("customer").agg(
        deliveries=pl.len(), events=pl.col("count").sum(), largest=pl.col("count").max()
    )
    console.print()
    print_table(
        per_customer.sort("events", "customer", descending=[True, False]).head(LARGEST),
        f"The customers with most events, of {per_customer.height:,} (table {TABLE})",
    )
    console.print(
        f"\n{counted(loaded.records, 'event')} in the topic {loaded.topic}\n"
        f"{counted(int(rows['count'].sum()), 'event')} in {counted(rows.height, 'row')} of the table {TABLE}\n"
        f"{counted(sum(in_topic), 'event')} in {counted(len(in_topic), 'record')} of the topic {TOPIC}",
        markup=False,
        soft_wrap=True,
    )
    if summary.records_in:
        seconds = summary.seconds + summary.publishing_s
        console.print(f"This time: {summary.records_in:,} processed and delivered in {seconds:.1f} s.", soft_wrap=True)
    weir = "weir" if shutil.which("weir") else os.path.relpath(sys.argv[0])
    where = "" if settings.dir == Path.cwd() / ".weir" else f" --dir {settings.dir}"
    console.print(
        f"\nTry next:\n  {weir} sink list {summary.application}{where}"
        f"\n  {weir} kafka consume {TOPIC} --limit 3{where}\n  {weir} describe {REFERENCE}",
        markup=False,
        soft_wrap=True,
    )


def _table_rows(settings: Settings) -> pl.DataFrame:
    """``customer`` and ``count`` of each delivery."""
    sink = next(sink for sink in app.topology.outside_sinks if isinstance(sink, SqlTable))
    engine = engine_of(sink, address_of(sink, settings.sql_url), known_as="weir demo", writes=False)
    with engine.connect() as connection:
        found = connection.exec_driver_sql(f"SELECT customer, count FROM {TABLE}").all()
    return pl.DataFrame(found, schema={"customer": pl.String(), "count": pl.Int64()}, orient="row")


def _topic_values(settings: Settings, admin: KafkaAdmin) -> Iterator[bytes]:
    partitions = [(TOPIC, each) for each in range(admin.partition_count(TOPIC))]
    ends = {each: end for (_, each), end in admin.end_offsets(partitions).items()}
    for record in read(admin, settings.kafka, TOPIC, dict.fromkeys(ends, 0), ends=ends):
        yield record.value or b"{}"


class _Delivery(msgspec.Struct):
    count: int = 0


_DELIVERIES = msgspec.json.Decoder(_Delivery)
