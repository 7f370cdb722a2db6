"""An application that reads the topic of ``tests.faults.applications`` and appends its records to a table of the
settings' database."""

from __future__ import annotations

from datetime import timedelta

from tests.faults.applications import TOPIC, Event
from weir import Application, Json, StreamsBuilder, String

builder = StreamsBuilder()
builder.stream(TOPIC, key=String("user"), value=Json(Event)).to_sql("sold")
app = Application("selling", builder, commit_interval=timedelta(milliseconds=100))
