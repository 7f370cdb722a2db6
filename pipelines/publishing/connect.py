"""Connects a publisher to the outside system of its sink, whichever kind it is."""

from __future__ import annotations

from collections.abc import Mapping

from weir.pipelines.publishing.batches import BatchConnection
from weir.pipelines.publishing.connection import Connection
from weir.pipelines.publishing.http import HttpSink
from weir.pipelines.publishing.kafka import KafkaConnection
from weir.pipelines.publishing.sql import SqlConnection
from weir.pipelines.sinks.batched import BatchedSink
from weir.pipelines.sinks.http import HttpEndpoint
from weir.pipelines.sinks.kafka import KafkaTopic
from weir.pipelines.sinks.own import Sink as OwnSink
from weir.pipelines.sinks.sink import Sink
from weir.pipelines.sinks.sql import SqlTable
from weir.state.commit.outbox import Outbox


def connect(application: str, sink: Sink, outbox: Outbox, kafka: Mapping[str, str], sql_url: str) -> Connection:
    """A connection for a sink of an application; ``kafka`` are librdkafka's properties, and ``sql_url`` is the URL of
    the database for SQL sinks without one.

    Raises:
        SinkError: The outside system does not answer or refuses.
    """
    match sink:
        case BatchedSink(target=HttpEndpoint() as endpoint):
            return BatchConnection(application, sink, outbox, HttpSink(endpoint, sink.fields))
        case BatchedSink(target=OwnSink() as own):
            return BatchConnection(application, sink, outbox, own)
        case SqlTable():
            return SqlConnection(application, sink, sql_url)
    assert isinstance(sink, KafkaTopic)
    return KafkaConnection(application, sink, kafka)
