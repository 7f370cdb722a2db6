"""Testing topologies in memory, with clocks moved by hand."""

from pipelines.testing.driver import TopologyTestDriver
from pipelines.testing.stores import (
    ReadOnlyKeyValueStore,
    ReadOnlySessionStore,
    ReadOnlyVersionedStore,
    ReadOnlyWindowStore,
)
from pipelines.testing.streams import OutputRecord, TestInputTopic, TestOutputTable

__all__ = ["OutputRecord", "ReadOnlyKeyValueStore", "ReadOnlySessionStore", "ReadOnlyVersionedStore",
           "ReadOnlyWindowStore", "TestInputTopic", "TestOutputTable", "TopologyTestDriver"]
