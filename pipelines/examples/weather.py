"""Weather at New York's airports in 2013: a summary of each day and airport, final once the day is over.

The topic ``weather`` is keyed by airport and holds one JSON object per hour; ``load_weather`` fills it. Run it with
``weir run weir.pipelines.examples.weather:app``.
"""

from dataclasses import dataclass
from datetime import timedelta

from weir import (
    Application,
    BufferConfig,
    Count,
    Json,
    Max,
    Mean,
    Min,
    StreamsBuilder,
    String,
    Sum,
    Suppressed,
    TimeWindows,
)


@dataclass(frozen=True)
class Observation:
    """A value: the other fields of the JSON object are never decoded."""

    temp: float | None
    """Degrees Fahrenheit."""
    wind_speed: float | None
    """Miles per hour."""
    precip: float | None
    """Inches in the hour before."""


builder = StreamsBuilder()
(
    builder.stream("weather", key=String("origin"), value=Json(Observation))
    .group_by_key()
    .windowed_by(TimeWindows.of_size_and_grace(timedelta(days=1), timedelta(hours=1)))
    .agg(
        "daily",
        observations=Count(),
        mean_temp=Mean("temp"),
        min_temp=Min("temp"),
        max_temp=Max("temp"),
        max_wind=Max("wind_speed"),
        rain=Sum("precip"),
    )
    .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
    .to_delta("daily_weather")
)

app = Application("weather", builder, commit_interval=timedelta(seconds=1))
