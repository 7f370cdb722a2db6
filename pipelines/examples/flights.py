"""Departures from New York in 2013: lateness by route and hour, and running totals by carrier.

The topic ``flights`` is keyed by carrier and origin, for example ``UA-EWR``, and holds one JSON
object per flight; ``load_flights`` fills it. Run it with ``weir run weir.pipelines.examples.flights:app``.
"""

from dataclasses import dataclass
from datetime import timedelta

from polars import col

from weir import (
    Application,
    BufferConfig,
    Count,
    Delimited,
    Json,
    Max,
    Mean,
    StreamsBuilder,
    Sum,
    Suppressed,
    TimeWindows,
)


@dataclass(frozen=True)
class Route:
    """A key: its fields are the key columns."""

    carrier: str
    origin: str


@dataclass(frozen=True)
class Flight:
    """A value: the other fields of the JSON object are never decoded."""

    dep_time: int | None
    """Clock time as ``hhmm``; None for a flight that was cancelled."""
    dep_delay: int | None
    """Minutes; negative when early."""


builder = StreamsBuilder()
flights = builder.stream("flights", key=Delimited(Route, sep="-"), value=Json(Flight))
late, cancelled = Sum(col("dep_delay") > 15), Sum(col("dep_time").is_null())

(
    flights.group_by_key()
    .windowed_by(TimeWindows.of_size_and_grace(timedelta(hours=1), timedelta(minutes=10)))
    .agg(
        "hourly",
        flights=Count(),
        late=late,
        mean_delay=Mean("dep_delay"),
        max_delay=Max("dep_delay"),
        cancelled=cancelled,
    )
    .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
    .to_delta("late_departures")
)
(
    flights.group_by("carrier")  # the key changes, so rows travel to a second sub-topology
    .agg("by_carrier", flights=Count(), late=late, cancelled=cancelled)
    .to_delta("carrier_totals")
)

app = Application("flights", builder, commit_interval=timedelta(seconds=1))
