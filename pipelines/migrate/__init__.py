"""Moving in and out: positions and state from Kafka Streams, Spark and consumer groups, and positions back."""

from pipelines.migrate.errors import MigrationError, OffsetFileError
from pipelines.migrate.formats import StoreSerdes
from pipelines.migrate.kafka_streams_app import KafkaStreamsApp
from pipelines.migrate.migration import Migration, StoreRows

__all__ = ["KafkaStreamsApp", "Migration", "MigrationError", "OffsetFileError", "StoreRows", "StoreSerdes"]
