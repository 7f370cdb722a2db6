"""The public names of Weir; the test driver is in ``pipelines.testing``."""

from pipelines.application import Application, load_application
from pipelines.dsl.branching import BranchedKStream
from pipelines.dsl.builder import StreamsBuilder
from pipelines.dsl.cogrouped import (
    CogroupedKStream,
    SessionWindowedCogroupedKStream,
    TimeWindowedCogroupedKStream,
)
from pipelines.dsl.global_table import GlobalKTable
from pipelines.dsl.grouped import KGroupedStream, SessionWindowedKStream, TimeWindowedKStream
from pipelines.dsl.stream import KStream
from pipelines.dsl.suppressed import BufferConfig, EagerBufferConfig, StrictBufferConfig, Suppressed
from pipelines.dsl.table import KTable
from pipelines.dsl.table_grouped import KGroupedTable
from pipelines.dsl.windowing import EmitStrategy
from pipelines.errors import (
    ApplicationLoadError,
    BadInputError,
    BufferFullError,
    CoPartitioningError,
    PartitionerError,
    QueryError,
    TopologyError,
    UserFunctionError,
)
from pipelines.operators.aggregates import Count, First, Last, Max, Mean, Min, Sum
from pipelines.operators.functions import Windowed
from pipelines.operators.join_windows import JoinWindows
from pipelines.operators.session_windows import SessionWindows
from pipelines.operators.sketches import ApproxDistinct, ApproxQuantiles, Collect
from pipelines.operators.sliding_windows import SlidingWindows
from pipelines.operators.windows import TimeWindows, UnlimitedWindows
from pipelines.reading import read_table
from pipelines.serdes import (
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
from pipelines.serdes.timestamps import (
    FailOnInvalidTimestamp,
    LogAndSkipOnInvalidTimestamp,
    TimestampExtractor,
    UsePartitionTimeOnInvalidTimestamp,
    WallclockTimestampExtractor,
)
from pipelines.state_reader import Query, StateReader
from state.stores.custom import FollowingStore

__all__ = [
    "Application", "ApplicationLoadError", "ApproxDistinct", "ApproxQuantiles", "Avro", "BadInputError", "Boolean",
    "BranchedKStream", "BufferConfig", "BufferFullError", "Bytes", "CoPartitioningError", "CogroupedKStream", "Collect",
    "Count", "Delimited", "EagerBufferConfig", "EmitStrategy", "FailOnInvalidTimestamp", "First", "Float32", "Float64",
    "FollowingStore", "GlobalKTable", "Int32", "Int64", "JoinWindows", "Json", "KGroupedStream", "KGroupedTable",
    "KStream", "KTable", "Last", "LogAndSkipOnInvalidTimestamp", "Max", "Mean", "Min", "Msgpack", "PartitionerError",
    "Protobuf", "Query", "QueryError", "SchemaRegistryError", "SessionWindowed", "SessionWindowedCogroupedKStream",
    "SessionWindowedKStream", "SessionWindows", "SlidingWindows", "StateReader", "StreamsBuilder", "StrictBufferConfig",
    "String", "Sum", "Suppressed", "TimeWindowed", "TimeWindowedCogroupedKStream", "TimeWindowedKStream", "TimeWindows",
    "TimestampExtractor", "TopologyError", "UnlimitedWindows", "UsePartitionTimeOnInvalidTimestamp",
    "UserFunctionError", "Uuid", "WallclockTimestampExtractor", "Windowed", "load_application", "read_table",
]
