"""Connects a publisher to the outside system of its sink, whichever kind it is."""

from __future__ import annotations

from collections.abc import Mapping

from weir.pipelines.publishing.connection import Connection
from weir.pipelines.publishing.kafka import KafkaConnection
from weir.pipelines.publishing.sql import SqlConnection
from weir.pipelines.sinks.kafka import KafkaTopic
from weir.pipelines.sinks.sink import Sink
from weir.pipelines.sinks.sql import SqlTable


def connect(application: str, sink: Sink, kafka: Mapping[str, str], sql_url: str) -> Connection:
    """A connection for a sink of an application; ``kafka`` are librdkafka's properties, and ``sql_url`` is the URL of
    the database for SQL sinks without one.

    Raises:
        SinkError: The outside system does not answer or refuses.
    """
    if isinstance(sink, SqlTable):
        return SqlConnection(application, sink, sql_url)
    assert isinstance(sink, KafkaTopic)
    return KafkaConnection(application, sink, kafka)
