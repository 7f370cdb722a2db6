"""The flights topic, the ingest that reads it, and the tables that come out, as assets."""

import os
import sys
from collections.abc import Iterator

import dagster as dg

from infra.kafka.broker import broker_for
from orchestration.resources import WeirResource
from pipelines.examples.flights import app

REFERENCE = "pipelines.examples.flights:app"
GROUP = "flights"
TOPIC = dg.AssetKey([GROUP, "topic"])
INGEST = dg.AssetKey([GROUP, "ingest"])
TABLES = {spec.name: dg.AssetKey([GROUP, spec.name]) for spec in app.topology.table_specs()}


class IngestConfig(dg.Config):
    """How long the driver runs."""

    until_caught_up: bool = True
    """End once everything that was in the topic has been processed; False runs until the run is terminated."""
    take_over: bool = False
    """Start even if another driver holds the application; that one is fenced and stops."""


@dg.asset(key=TOPIC, group_name=GROUP, kinds={"kafka"})
def flights_topic(context: dg.AssetExecutionContext, weir: WeirResource) -> dg.MaterializeResult:
    """336,776 real departures from New York in 2013, in the Kafka topic `flights`. Loads what is missing."""
    from pipelines.examples.load_flights import load

    settings = weir.settings()
    with broker_for(settings) as bootstrap_servers:
        summary = load(bootstrap_servers, client_properties=settings.kafka)
    context.log.info("%d records were missing and have been loaded", summary.loaded)
    return dg.MaterializeResult(metadata={
        "dagster/row_count": summary.records, "loaded": summary.loaded, "seconds": summary.seconds,
        "offsets": dg.MetadataValue.json({str(p): end for p, end in sorted(summary.end_offsets.items())})})


@dg.multi_asset(
    name="flights_ingest", can_subset=False, group_name=GROUP,
    specs=[
        dg.AssetSpec(INGEST, deps=[TOPIC], kinds={"spark", "kafka"},
                     description="The flights application: one supervised driver that reads the topic and commits "
                                 "exactly once. Terminating the run ends it after the epoch, with a commit."),
        *(dg.AssetSpec(key, deps=[INGEST], kinds={"deltalake"},
                       description=f"The Delta table {name}, written by the ingest's commits alone.")
          for name, key in TABLES.items()),
    ])
def flights_ingest(context: dg.AssetExecutionContext, config: IngestConfig, weir: WeirResource,
                   pipes: dg.PipesSubprocessClient) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
    """Start a driver, follow it to its end, and take over what it reports."""
    finished = pipes.run(
        context=context, command=[sys.executable, "-m", "orchestration.worker"],
        extras={"reference": REFERENCE, "dir": str(weir.settings().dir), "parent": os.getpid(),
                "ingest": INGEST.to_user_string(),
                "tables": {name: key.to_user_string() for name, key in TABLES.items()},
                "until_caught_up": config.until_caught_up, "take_over": config.take_over})
    yield from finished.get_results()
