"""Which clocks of a task belong to a store."""

from weir.pipelines.tasks.epoch import partition_clock
from weir.pipelines.tasks.order import merge_clock, past_clock
from weir.pipelines.topology.clocks import clocks_of


def test_clocks_of_a_topic_belong_to_no_store_of_its_name():
    of_store = {"orders": 1, "_held:orders": 2, "orders&payments": 3}
    of_topic = {clock("orders"): 4 for clock in (merge_clock, past_clock, partition_clock)}
    assert clocks_of(["orders"], {**of_store, **of_topic, "payments": 5}) == of_store
