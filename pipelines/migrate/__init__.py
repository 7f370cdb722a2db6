"""Moving in and out: positions and state from Kafka Streams, Spark and consumer groups, and positions back out."""

from weir.pipelines.migrate.errors import MigrationError, OffsetFileError
from weir.pipelines.migrate.kafka_streams_app import KafkaStreamsApp
from weir.pipelines.migrate.migration import Migration, StoreRows
from weir.pipelines.migrate.serdes import StoreSerdes

__all__ = ["KafkaStreamsApp", "Migration", "MigrationError", "OffsetFileError", "StoreRows", "StoreSerdes"]
