"""Connects a publisher to the outside system of its sink, whichever kind it is."""

from __future__ import annotations

from collections.abc import Mapping

from weir.pipelines.publishing.connection import Connection
from weir.pipelines.publishing.kafka import KafkaConnection
from weir.pipelines.sinks.kafka import KafkaTopic
from weir.pipelines.sinks.sink import Sink


def connect(application: str, sink: Sink, kafka: Mapping[str, str]) -> Connection:
    """A connection for a sink of an application; ``kafka`` are librdkafka's properties.

    Raises:
        SinkError: The outside system does not answer or refuses.
    """
    assert isinstance(sink, KafkaTopic)
    return KafkaConnection(application, sink, kafka)
