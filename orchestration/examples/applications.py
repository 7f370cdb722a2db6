"""The example applications in Dagster, and their topics as assets that load themselves."""

import importlib
from datetime import date

import dagster as dg

from weir.infra.kafka.broker import broker_for
from weir.orchestration.application import supervise
from weir.orchestration.resources import WeirResource
from weir.pipelines.examples import flights, weather


def loaded_topic(name: str, description: str) -> dg.AssetsDefinition:
    """The topic ``name`` as an asset; the example's loader adds the records that it lacks."""

    @dg.asset(key=[name, "topic"], group_name=name, kinds={"kafka"}, description=description)
    def topic(context: dg.AssetExecutionContext, weir: WeirResource) -> dg.MaterializeResult[None]:
        settings = weir.settings()
        loader = importlib.import_module(f"weir.pipelines.examples.load_{name}")
        with broker_for(settings) as (bootstrap_servers, settings):
            summary = loader.load(bootstrap_servers, client_properties=settings.kafka)
        context.log.info("%d records were missing and have been loaded", summary.loaded)
        return dg.MaterializeResult(
            metadata={
                "dagster/row_count": summary.records,
                "loaded": summary.loaded,
                "seconds": summary.seconds,
                "offsets": dg.MetadataValue.json({str(p): end for p, end in sorted(summary.end_offsets.items())}),
            }
        )

    return topic


FIRST_DAY, END_DAY = date(2013, 1, 1), date(2014, 1, 2)
"""New York's last evening of 2013 is the next day in UTC."""

flights_topic = loaded_topic("flights", "336,776 real departures from New York in 2013, in the Kafka topic `flights`.")
flights_app = supervise(
    flights.app,
    "weir.pipelines.examples.flights:app",
    topics={"flights": flights_topic},
    first_day=FIRST_DAY,
    end_day=END_DAY,
)
weather_topic = loaded_topic(
    "weather", "26,115 hourly observations at New York's airports in 2013, in the Kafka topic `weather`."
)
weather_app = supervise(
    weather.app,
    "weir.pipelines.examples.weather:app",
    topics={"weather": weather_topic},
    first_day=FIRST_DAY,
    end_day=END_DAY,
)
