"""Moving in and out: positions and state from Kafka Streams, Spark and consumer groups, and positions back."""

from pipelines.migrate.errors import MigrationError, OffsetFileError
from pipelines.migrate.migration import Migration, StoreRows

__all__ = ["Migration", "MigrationError", "OffsetFileError", "StoreRows"]
