"""Testing topologies in memory, with clocks moved by hand."""

from weir.pipelines.testing.driver import TopologyTestDriver
from weir.pipelines.testing.stores import (
    ReadOnlyKeyValueStore,
    ReadOnlyListStore,
    ReadOnlySessionStore,
    ReadOnlyVersionedStore,
    ReadOnlyWindowStore,
)
from weir.pipelines.testing.streams import OutputRecord, TestInputTopic, TestOutputTable
from weir.pipelines.testing.topics import TestOutputTopic, TestRecord

__all__ = [
    "OutputRecord",
    "ReadOnlyKeyValueStore",
    "ReadOnlyListStore",
    "ReadOnlySessionStore",
    "ReadOnlyVersionedStore",
    "ReadOnlyWindowStore",
    "TestInputTopic",
    "TestOutputTable",
    "TestOutputTopic",
    "TestRecord",
    "TopologyTestDriver",
]

for _name in __all__:
    globals()[_name].__module__ = "weir.testing"
