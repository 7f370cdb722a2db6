"""The public names of Weir; the test driver is in ``pipelines.testing``."""

from pipelines.application import Application, load_application
from pipelines.dsl.builder import StreamsBuilder
from pipelines.dsl.grouped import KGroupedStream, TimeWindowedKStream
from pipelines.dsl.stream import KStream
from pipelines.dsl.suppressed import BufferConfig, Suppressed
from pipelines.dsl.table import KTable
from pipelines.errors import (
    ApplicationLoadError,
    BadInputError,
    CoPartitioningError,
    QueryError,
    TopologyError,
    UserFunctionError,
)
from pipelines.operators.aggregates import Count, First, Last, Max, Mean, Min, Sum
from pipelines.operators.functions import Windowed
from pipelines.operators.windows import TimeWindows
from pipelines.reading import read_table
from pipelines.serdes import Bytes, Delimited, Int64, Json, String
from pipelines.state_reader import Query, StateReader

__all__ = [
    "Application", "ApplicationLoadError", "BadInputError", "BufferConfig", "Bytes", "CoPartitioningError", "Count",
    "Delimited", "First", "Int64", "Json", "KGroupedStream", "KStream", "KTable", "Last", "Max", "Mean", "Min",
    "Query", "QueryError", "StateReader", "StreamsBuilder", "String", "Sum", "Suppressed", "TimeWindowedKStream",
    "TimeWindows", "TopologyError", "UserFunctionError", "Windowed", "load_application", "read_table",
]
