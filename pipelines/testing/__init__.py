"""Testing topologies in memory, with clocks moved by hand."""

from pipelines.testing.driver import TopologyTestDriver
from pipelines.testing.stores import ReadOnlyKeyValueStore, ReadOnlyWindowStore
from pipelines.testing.streams import OutputRecord, TestInputTopic, TestOutputTable

__all__ = ["OutputRecord", "ReadOnlyKeyValueStore", "ReadOnlyWindowStore", "TestInputTopic", "TestOutputTable",
           "TopologyTestDriver"]
