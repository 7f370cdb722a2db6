"""The public names of ``weir``; errors, reprs and pickles show them as names of ``weir``, wherever they are defined."""

from weir.pipelines.application import Application, load_application
from weir.pipelines.dsl.builder import StreamsBuilder
from weir.pipelines.dsl.global_table import GlobalKTable
from weir.pipelines.dsl.graph import Materialized
from weir.pipelines.dsl.streams import (
    BranchedKStream,
    CogroupedKStream,
    KGroupedStream,
    KGroupedTable,
    KStream,
    KTable,
    SessionWindowedCogroupedKStream,
    SessionWindowedKStream,
    TimeWindowedCogroupedKStream,
    TimeWindowedKStream,
)
from weir.pipelines.dsl.suppressed import BufferConfig, EagerBufferConfig, StrictBufferConfig, Suppressed
from weir.pipelines.dsl.topology_builder import TopologyBuilder
from weir.pipelines.dsl.windowing import EmitStrategy
from weir.pipelines.errors import (
    ApplicationLoadError,
    BadInputError,
    BufferFullError,
    CoPartitioningError,
    InvalidTimestampError,
    OperatorError,
    PartitionerError,
    ProcessingError,
    QueryError,
    TopologyError,
    UserFunctionError,
)
from weir.pipelines.migrate.serdes import StoreSerdes
from weir.pipelines.on_error import Retry
from weir.pipelines.operators.aggregates import Count, Max, Mean, Min, Sum
from weir.pipelines.operators.chosen_values import First, Last, MaxBy, MinBy
from weir.pipelines.operators.collected import Collect, StringAgg
from weir.pipelines.operators.functions import Windowed
from weir.pipelines.operators.join_windows import JoinWindows
from weir.pipelines.operators.ranked import BottomK, TopK
from weir.pipelines.operators.session_windows import SessionWindows
from weir.pipelines.operators.sketches import ApproxDistinct, ApproxQuantiles
from weir.pipelines.operators.sliding_windows import SlidingWindows
from weir.pipelines.operators.value_counts import ValueCounts
from weir.pipelines.operators.variance import StdDev, Variance
from weir.pipelines.operators.windows import TimeWindows, UnlimitedWindows
from weir.pipelines.processors.list_store import ListStore, OpenListStore
from weir.pipelines.processors.processor import (
    BatchProcessor,
    Cancellable,
    FixedKeyProcessor,
    Processor,
    ProcessorContext,
    Punctuation,
)
from weir.pipelines.processors.records import FixedKeyRecord, Record, RecordMetadata
from weir.pipelines.processors.session_store import OpenSessionStore, SessionStore
from weir.pipelines.processors.stores import KeyValueStore, OpenKeyValueStore
from weir.pipelines.processors.versioned_store import (
    OpenVersionedKeyValueStore,
    VersionedKeyValueStore,
    VersionedRecord,
)
from weir.pipelines.processors.window_store import OpenWindowStore, WindowStore
from weir.pipelines.serdes import (
    Avro,
    Boolean,
    Bytes,
    Delimited,
    Float32,
    Float64,
    Int32,
    Int64,
    Json,
    Msgpack,
    Protobuf,
    SchemaRegistryError,
    SessionWindowed,
    String,
    TimeWindowed,
    Uuid,
)
from weir.pipelines.serdes.source import BadRecord
from weir.pipelines.serdes.timestamps import (
    FailOnInvalidTimestamp,
    LogAndSkipOnInvalidTimestamp,
    TimestampExtractor,
    UsePartitionTimeOnInvalidTimestamp,
    WallclockTimestampExtractor,
)
from weir.pipelines.sinks.own import Batch, RefusedError, Sink
from weir.pipelines.state_reader import Query, StateReader
from weir.state.commit.tables import read_table
from weir.state.own_stores import KeyValueBytesStore
from weir.state.stores.custom import FollowingStore

__all__ = [
    "Application",
    "ApplicationLoadError",
    "ApproxDistinct",
    "ApproxQuantiles",
    "Avro",
    "BadInputError",
    "BadRecord",
    "Batch",
    "BatchProcessor",
    "Boolean",
    "BottomK",
    "BranchedKStream",
    "BufferConfig",
    "BufferFullError",
    "Bytes",
    "Cancellable",
    "CoPartitioningError",
    "CogroupedKStream",
    "Collect",
    "Count",
    "Delimited",
    "EagerBufferConfig",
    "EmitStrategy",
    "FailOnInvalidTimestamp",
    "First",
    "FixedKeyProcessor",
    "FixedKeyRecord",
    "Float32",
    "Float64",
    "FollowingStore",
    "GlobalKTable",
    "Int32",
    "Int64",
    "InvalidTimestampError",
    "JoinWindows",
    "Json",
    "KGroupedStream",
    "KGroupedTable",
    "KStream",
    "KTable",
    "KeyValueBytesStore",
    "KeyValueStore",
    "Last",
    "ListStore",
    "LogAndSkipOnInvalidTimestamp",
    "Materialized",
    "Max",
    "MaxBy",
    "Mean",
    "Min",
    "MinBy",
    "Msgpack",
    "OpenKeyValueStore",
    "OpenListStore",
    "OpenSessionStore",
    "OpenVersionedKeyValueStore",
    "OpenWindowStore",
    "OperatorError",
    "PartitionerError",
    "ProcessingError",
    "Processor",
    "ProcessorContext",
    "Protobuf",
    "Punctuation",
    "Query",
    "QueryError",
    "Record",
    "RecordMetadata",
    "RefusedError",
    "Retry",
    "SchemaRegistryError",
    "SessionStore",
    "SessionWindowed",
    "SessionWindowedCogroupedKStream",
    "SessionWindowedKStream",
    "SessionWindows",
    "Sink",
    "SlidingWindows",
    "StateReader",
    "StdDev",
    "StoreSerdes",
    "StreamsBuilder",
    "StrictBufferConfig",
    "String",
    "StringAgg",
    "Sum",
    "Suppressed",
    "TimeWindowed",
    "TimeWindowedCogroupedKStream",
    "TimeWindowedKStream",
    "TimeWindows",
    "TimestampExtractor",
    "TopK",
    "TopologyBuilder",
    "TopologyError",
    "UnlimitedWindows",
    "UsePartitionTimeOnInvalidTimestamp",
    "UserFunctionError",
    "Uuid",
    "ValueCounts",
    "Variance",
    "VersionedKeyValueStore",
    "VersionedRecord",
    "WallclockTimestampExtractor",
    "WindowStore",
    "Windowed",
    "load_application",
    "read_table",
]

for _name in __all__:
    globals()[_name].__module__ = "weir"
