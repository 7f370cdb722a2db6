"""An application of which Dagster tests with a warehouse on an object store run the driver."""

from __future__ import annotations

from datetime import timedelta

from weir import Application, Count, StreamsBuilder, String

TOPIC = "visits-distant"


def _application() -> Application:
    builder = StreamsBuilder()
    visits = builder.stream(TOPIC, key=String("user"), value=String("page"))
    visits.group_by_key().agg("users", n=Count()).to_delta("by_user")
    return Application("visits", builder, commit_interval=timedelta(milliseconds=100))


app = _application()
