"""An application that commits once an hour, so that every earlier commit is a test's doing."""

from datetime import timedelta

from weir import Application, Count, Json, Max, StreamsBuilder, String
from weir.dagster import Thresholds, definitions, supervise
from weir.pipelines.examples.weather import Observation

UNCOMMITTED_MAX_BYTES = 100
STALLED_MAX_S = 10.0
COOLDOWN_S = 2.0
SPARE_FILES_MAX = 2
LAG_GROWS_MAX_S = 6.0

builder = StreamsBuilder()
(
    builder.stream("weather", key=String("origin"), value=Json(Observation))
    .group_by_key()
    .agg("by_airport", observations=Count(), hottest=Max("temp"))
    .to_delta("airports")
)
app = Application("held", builder, commit_interval=timedelta(hours=1))

defs = definitions(
    supervise(
        app,
        thresholds=Thresholds(
            uncommitted_max_bytes=UNCOMMITTED_MAX_BYTES,
            stalled_max_s=STALLED_MAX_S,
            lag_max_records=0,
            lag_max_s=0.0,
            cooldown_s=COOLDOWN_S,
            lag_grows_max_s=LAG_GROWS_MAX_S,
            spare_files_max=SPARE_FILES_MAX,
            closed_segments_max=1,
        ),
    )
)
