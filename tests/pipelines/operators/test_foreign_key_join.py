"""Foreign-key joins, record by record (KIP-213; Kafka Streams features, 5), and with messages in any order."""

import hashlib
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from random import Random

import msgspec
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars import col

from tests.examples import examples
from tests.pipelines.in_turn import in_turn
from tests.pipelines.memory_session import MemorySession
from weir import Application, CoPartitioningError, Count, Int32, Json, StreamsBuilder, String, TopologyError
from weir.pipelines.serdes.partitioner import murmur2
from weir.pipelines.tasks.processor import TaskProcessor
from weir.testing import TopologyTestDriver


@dataclass(frozen=True)
class Order:
    customer: str | None
    amount: int


@dataclass(frozen=True)
class Customer:
    tier: str


GOLD, IRON = Customer("gold"), Customer("iron")


def tables(builder):
    return (
        builder.table("orders", key=String("id"), value=Json(Order), store="orders"),
        builder.table("customers", key=String("id"), value=Json(Customer), store="customers"),
    )


@contextmanager
def driven(program):
    """A function that pipes ``(topic, key, value, ms)`` and returns the resulting updates: value columns, key, ms."""
    builder = StreamsBuilder()
    program(*tables(builder)).to_stream().to_delta("out")
    with TopologyTestDriver(Application("test", builder)) as driver:
        topics = {name: driver.create_input_topic(name) for name in ("orders", "customers")}
        out = driver.create_output_table("out")

        def pipe(topic, key, value, ms):
            topics[topic].pipe_input(key, value, timestamp_ms=ms)
            return [
                (
                    "gone" if r.is_deleted else tuple(r.row.values())[1:],
                    r.row["id"],
                    int(r.timestamp.timestamp() * 1000),
                )
                for r in out.read_records()
            ]

        pipe.driver = driver
        yield pipe


def inner(orders, customers):
    return orders.join(customers, foreign_key="customer")


def left(orders, customers):
    return orders.left_join(customers, foreign_key="customer")


def test_a_row_joins_the_row_that_it_names_whichever_comes_first():
    with driven(inner) as pipe:
        assert pipe("orders", "1", Order("ann", 5), 10) == []
        assert pipe("customers", "ann", GOLD, 7) == [(("ann", 5, "gold"), "1", 10)]
        assert pipe("customers", "bob", IRON, 20) == []
        assert pipe("orders", "2", Order("bob", 6), 11) == [(("bob", 6, "iron"), "2", 20)]


def test_an_update_of_the_right_row_reaches_all_that_name_it_and_no_others():
    with driven(inner) as pipe:
        for key, customer in (("1", "an"), ("2", "ann"), ("3", "anna"), ("4", "ann")):
            pipe("orders", key, Order(customer, 1), 1)
        assert pipe("customers", "ann", GOLD, 2) == [(("ann", 1, "gold"), key, 2) for key in ("2", "4")]
        assert pipe("customers", "ann", IRON, 3) == [(("ann", 1, "iron"), key, 3) for key in ("2", "4")]


def test_a_changed_foreign_key_leaves_the_old_row_and_joins_the_new_one():
    with driven(inner) as pipe:
        pipe("customers", "ann", GOLD, 1)
        pipe("customers", "bob", IRON, 2)
        pipe("orders", "1", Order("ann", 5), 3)
        assert pipe("orders", "1", Order("bob", 5), 4) == [(("bob", 5, "iron"), "1", 4)]
        assert pipe("customers", "ann", IRON, 5) == []
        assert pipe("orders", "1", Order("eve", 5), 6) == [("gone", "1", 6)]
        assert pipe("orders", "1", Order("joe", 5), 7) == []


def test_deleting_a_left_row_deletes_its_result():
    with driven(inner) as pipe:
        pipe("customers", "ann", GOLD, 9)
        pipe("orders", "1", Order("ann", 5), 3)
        assert pipe("orders", "1", None, 4) == [("gone", "1", 9)]
        assert pipe("orders", "1", None, 10) == []
        assert pipe("customers", "ann", IRON, 11) == []
        pipe("orders", "2", Order("bob", 5), 12)
        assert pipe("orders", "2", None, 13) == []


def test_deleting_a_right_row_deletes_its_results():
    with driven(inner) as pipe:
        pipe("customers", "ann", GOLD, 1)
        pipe("orders", "1", Order("ann", 5), 2)
        assert pipe("customers", "ann", None, 3) == [("gone", "1", 3)]
        assert pipe("customers", "ann", None, 4) == []
        assert pipe("customers", "ann", GOLD, 5) == [(("ann", 5, "gold"), "1", 5)]


def test_a_null_foreign_key_has_no_result_in_an_inner_join():
    with driven(inner) as pipe:
        assert pipe("orders", "1", Order(None, 5), 1) == []
        pipe("customers", "ann", GOLD, 2)
        pipe("orders", "1", Order("ann", 5), 3)
        assert pipe("orders", "1", Order(None, 6), 4) == [("gone", "1", 4)]
        assert pipe.driver.counts["null_keys"] == 2
        assert pipe("orders", "1", None, 5) == []
        assert pipe.driver.counts["null_keys"] == 2


def test_a_left_join_has_each_left_row_with_nulls_where_nothing_is_named_or_found():
    with driven(left) as pipe:
        assert pipe("orders", "1", Order(None, 5), 1) == [((None, 5, None), "1", 1)]
        assert pipe.driver.counts["null_keys"] == 0
        assert pipe("orders", "1", Order("ann", 6), 2) == [(("ann", 6, None), "1", 2)]
        assert pipe("customers", "ann", GOLD, 1) == [(("ann", 6, "gold"), "1", 2)]
        assert pipe("orders", "1", Order(None, 6), 3) == [((None, 6, None), "1", 3)]
        assert pipe("customers", "ann", IRON, 4) == []
        assert pipe("orders", "1", Order("ann", 7), 5) == [(("ann", 7, "iron"), "1", 5)]
        assert pipe("customers", "ann", None, 6) == [(("ann", 7, None), "1", 6)]
        assert pipe("orders", "1", None, 7) == [("gone", "1", 7)]
        assert pipe("orders", "1", None, 8) == []


def key_of(key: str, order: Order) -> str | None:
    return order.customer or key


def name_of(order: Order) -> str | None:
    return order.customer.lower() if order.customer else None


def told(key: str, order: Order, customer: Customer | None) -> str:
    return f"{key}: {order.amount} of {customer.tier if customer else 'nobody'}"


@pytest.mark.parametrize(
    ("foreign_key", "named"),
    [
        (col("customer").str.to_lowercase(), "ANN"),
        ({"who": col("customer").str.to_lowercase()}, "ANN"),
        (name_of, "ANN"),
        (key_of, "ann"),
    ],
)
def test_a_foreign_key_is_a_column_an_expression_or_a_function(foreign_key, named):
    with driven(lambda orders, customers: orders.left_join(customers, told, foreign_key=foreign_key)) as pipe:
        pipe("customers", "ann", GOLD, 1)
        assert pipe("orders", "1", Order(named, 5), 2) == [(("1: 5 of gold",), "1", 2)]
        assert pipe("orders", "1", Order("Eve", 5), 3) == [(("1: 5 of nobody",), "1", 3)]


def test_a_function_may_take_the_foreign_key_from_the_key():
    with driven(lambda orders, customers: orders.join(customers, foreign_key=key_of)) as pipe:
        pipe("customers", "1", GOLD, 1)
        assert pipe("orders", "1", Order(None, 5), 2) == [((None, 5, "gold"), "1", 2)]


def test_rows_that_a_filter_removes_do_not_exist_for_the_join():
    with driven(
        lambda orders, customers: orders.filter(col("amount") > 0).join(
            customers.filter(col("tier") != "iron"), foreign_key="customer"
        )
    ) as pipe:
        pipe("orders", "1", Order("ann", 5), 1)
        assert pipe("customers", "ann", IRON, 2) == []
        assert pipe("customers", "ann", GOLD, 3) == [(("ann", 5, "gold"), "1", 3)]
        assert pipe("orders", "1", Order("ann", -5), 4) == [("gone", "1", 4)]


def test_out_of_order_updates_of_versioned_tables_change_nothing():
    hour = timedelta(hours=1)
    with driven(
        lambda orders, customers: (
            orders.to_stream()
            .to_table("o", history_retention=hour)
            .left_join(customers.to_stream().to_table("c", history_retention=hour), foreign_key="customer")
        )
    ) as pipe:
        assert pipe("orders", "1", Order("ann", 5), 10) == [(("ann", 5, None), "1", 10)]
        assert pipe("customers", "ann", GOLD, 20) == [(("ann", 5, "gold"), "1", 20)]
        assert pipe("customers", "ann", IRON, 15) == pipe("orders", "1", Order("bob", 5), 9) == []
        assert pipe("orders", "1", Order("ann", 6), 11) == [(("ann", 6, "gold"), "1", 20)]


def test_a_table_may_join_itself():
    builder = StreamsBuilder()
    orders, _ = tables(builder)
    orders.join(orders, foreign_key="customer").to_stream().to_delta("out")
    assert builder.build().partition_counts({"orders": 3, "customers": 2}) == {0: 3, 1: 2}
    with TopologyTestDriver(Application("test", builder)) as driver:
        topic, out = driver.create_input_topic("orders"), driver.create_output_table("out")
        topic.pipe_records([("1", Order("2", 5), 1), ("2", Order("1", 6), 2)])
        assert {(r.row["id"], r.row["amount_right"]) for r in out.read_records()} == {("1", 6), ("2", 5)}
        topic.pipe_input("1", None, timestamp_ms=3)
        assert {(r.row["id"], r.is_deleted) for r in out.read_records()} == {("1", True), ("2", True)}


def test_a_materialized_join_can_be_joined_again():
    builder = StreamsBuilder()
    orders, customers = tables(builder)
    tiers = builder.table("tiers", key=String("grade"), value=Json(Customer), store="tiers")
    priced = orders.join(customers, foreign_key="customer").to_stream().to_table("priced")
    named = priced.join(tiers.map_values(word="tier"), foreign_key="tier").to_stream().to_table("named")
    named.group_by("word").agg("per_word", n=Count()).to_delta("out")
    with TopologyTestDriver(Application("test", builder)) as driver:
        topics = {name: driver.create_input_topic(name) for name in ("orders", "customers", "tiers")}
        topics["tiers"].pipe_input("gold", Customer("shiny"), timestamp_ms=1)
        topics["customers"].pipe_input("ann", GOLD, timestamp_ms=1)
        for key in "123":
            topics["orders"].pipe_input(key, Order("ann", 1), timestamp_ms=1)
        topics["tiers"].pipe_input("gold", Customer("bright"), timestamp_ms=1)
        found = driver.create_output_table("out").read_key_values_to_map()
    assert found == {"shiny": {"n": 0}, "bright": {"n": 3}}


def test_what_does_not_fit_is_refused_with_the_way_out():
    builder = StreamsBuilder()
    orders, customers = tables(builder)
    with pytest.raises(TopologyError, match=r"the foreign key is \(amount: Int64\), .* key is \(id: String\)"):
        orders.join(customers, foreign_key="amount")
    with pytest.raises(TopologyError, match="no return annotation"):
        orders.join(customers, foreign_key=lambda order: order.customer)
    with pytest.raises(TopologyError, match="pass foreign_key="):
        orders.join(customers, store="joined")
    with pytest.raises(TopologyError, match=r"to_table\(\"name\"\)"):
        orders.join(customers, foreign_key="customer").join(customers, foreign_key="customer")


def test_the_tables_need_not_have_equal_numbers_of_partitions():
    builder = StreamsBuilder()
    inner(*tables(builder)).to_delta("out")
    topology = builder.build()
    assert topology.partition_counts({"orders": 2, "customers": 5}) == {0: 2, 1: 5}
    assert [sub_topology.name for sub_topology in topology.sub_topologies] == ["orders", "customers"]


def test_subscriptions_need_the_right_table_in_every_task_of_its_sub_topology():
    builder = StreamsBuilder()
    orders, customers = tables(builder)
    inner(orders, customers).to_delta("out")
    builder.stream("wide", key=String("id"), value=Json(Customer)).merge(customers.to_stream()).to_delta("merged")
    with pytest.raises(CoPartitioningError, match="customers has 5"):
        builder.build().partition_counts({"orders": 2, "customers": 5, "wide": 7})


def test_subscriptions_go_where_the_producers_of_the_right_topic_put_the_key():
    builder = StreamsBuilder()
    parts = builder.table("parts", key=Int32("part"), value=Json(Customer), store="parts")
    lines = builder.table("lines", key=String("id"), value=Json(Order), store="lines")
    lines.join(parts, foreign_key="amount").to_delta("out")
    edge = next(edge for edge in builder.build().edges if edge.target == 0)
    rows = pl.DataFrame({"part": [1, 2, 3, 70_000]}).with_columns(_partition=pl.lit(0, pl.Int32))
    assert edge.partition_of(rows, 7).to_list() == [
        int(murmur2([key.to_bytes(4)])[0] & 0x7FFFFFFF) % 7 for key in (1, 2, 3, 70_000)
    ]


def test_a_name_of_the_join_names_its_edges_and_its_store():
    """It uses up no running numbers, other than in Kafka Streams: names in stored data contain those that follow."""
    named = StreamsBuilder()
    orders, customers = tables(named)
    orders.left_join(customers, foreign_key="customer", store="priced").to_stream().to_delta("out")
    topology = named.build()
    assert [edge.name for edge in topology.edges] == [
        "priced-subscription-registration-topic",
        "priced-subscription-response-topic",
    ]
    assert [store.name for each in topology.sub_topologies for store in each.stores] == [
        "orders",
        "customers",
        "priced-subscription-store",
    ]
    assert "KTABLE-TOSTREAM-0000000004" in topology.describe()


LEFT_TASKS, RIGHT_TASKS = 2, 3


class Tasks:
    """All tasks of a join, which take their records and each other's messages in any order and in any batches."""

    def __init__(self, program, random):
        builder = StreamsBuilder()
        program(*tables(builder)).to_stream().to_delta("out")
        self.topology, self.random = builder.build(), random
        self.counts = self.topology.partition_counts({"orders": LEFT_TASKS, "customers": RIGHT_TASKS})
        self.processors = [TaskProcessor(each) for each in self.topology.sub_topologies]
        self.tasks = [(index, number) for index, count in self.counts.items() for number in range(count)]
        self.sessions, self.clocks = defaultdict(MemorySession), defaultdict(dict)
        self.records, self.messages = defaultdict(list), defaultdict(list)
        self.result, self.times, self.history = {}, {}, []

    def add(self, topic, key, value, ms):
        """Queue a record; returns the task that will take it."""
        (index,) = (each.index for each in self.topology.sub_topologies if topic in each.inputs)
        number = (
            int(murmur2([key.encode()])[0] & 0x7FFFFFFF) % self.counts[index]
            if topic == "customers"
            else ord(key) % self.counts[index]
        )  # orders: wherever their producers put them
        source = self.topology.source(topic)
        fields = list(source.value.columns)
        values = [None if value is None else getattr(value, name) for name in fields]
        self.records[index, number].append(
            pl.DataFrame(
                [[key, *values, ms, number, len(self.records[index, number]), value is None]],
                orient="row",
                schema={
                    **source.record.columns,
                    "_ts": pl.Int64,
                    "_partition": pl.Int32,
                    "_offset": pl.Int64,
                    "_deleted": pl.Boolean,
                },
            )
        )
        return index, number

    def step(self, task, records=None, messages=None):
        """Run one epoch of one task with the given numbers of its records and messages; None for a random number."""
        index, number = task
        sub_topology, random = self.topology.sub_topology(index), self.random
        inputs = {}
        if self.records[task]:
            (source,) = sub_topology.sources
            rows = random.randint(0, len(self.records[task])) if records is None else records
            inputs[source.topic] = pl.concat(self.records[task])[:rows]
            del self.records[task][:rows]
        if self.messages[task]:
            (edge,) = sub_topology.edges_in
            waiting = pl.concat(self.messages[task])
            rows = random.randint(1, waiting.height) if messages is None else messages
            inputs[edge.name], self.messages[task] = waiting[:rows], [waiting[rows:]] if rows < waiting.height else []
        output = self.processors[index].run(
            in_turn(inputs, sub_topology.inputs), self.sessions[task], self.clocks[task], 0, partition=number
        )
        self.clocks[task] = output.clocks
        for edge in sub_topology.edges_out:
            if edge.name in output.edges:
                rows = output.edges[edge.name]
                targets = edge.partition_of(rows, self.counts[edge.target])
                for target in targets.unique():
                    self.messages[edge.target, target].append(rows.filter(targets == target))
        for row in (row for rows in output.sinks.values() for row in rows.to_dicts()):
            self.result.pop(row["id"], None)
            self.history.append(None if row["_deleted"] else row["customer"])
            if not row["_deleted"]:
                self.result[row["id"]] = (row["customer"], row["amount"], row["tier"])
                self.times[row["id"]] = int(row["_ts"].timestamp() * 1000)

    def run(self):
        while waiting := [task for task in self.tasks if self.records[task] or self.messages[task]]:
            self.step(self.random.choice(waiting))


def test_an_answer_for_a_row_that_has_changed_since_is_dropped():
    tasks = Tasks(inner, Random(0))
    tasks.add("customers", "ann", GOLD, 1)
    tasks.add("customers", "bob", IRON, 1)
    tasks.run()
    for customer in ("ann", "bob"):
        task = tasks.add("orders", "1", Order(customer, 5), 2)
        tasks.step(task, records=1)
    tasks.run()
    assert tasks.history == ["bob"]


def test_a_row_inserted_again_unchanged_is_not_mistaken_for_the_one_that_was_answered():
    """Kafka Streams answers an insert only if there is a row; here the first answer would remain forever."""
    tasks = Tasks(inner, Random(0))
    right = tasks.add("customers", "ann", GOLD, 1)
    tasks.run()
    tasks.step(tasks.add("orders", "1", Order("ann", 5), 2), records=1)
    tasks.step(right, messages=1)
    tasks.step(tasks.add("orders", "1", None, 3), records=1, messages=0)
    tasks.step(tasks.add("orders", "1", Order("ann", 5), 4), records=1, messages=0)
    tasks.step(right, messages=1)
    tasks.step(tasks.add("customers", "ann", None, 5), records=1, messages=0)
    tasks.step(right, messages=1)
    tasks.run()
    assert tasks.result == {}


def test_a_result_is_deleted_with_its_row_even_if_the_row_returns_without_a_foreign_key():
    tasks = Tasks(inner, Random(0))
    tasks.add("customers", "ann", GOLD, 1)
    tasks.add("orders", "1", Order("ann", 5), 2)
    tasks.run()
    tasks.step(tasks.add("orders", "1", None, 3), records=1)
    tasks.step(tasks.add("orders", "1", Order(None, 5), 4), records=1, messages=0)
    tasks.run()
    assert tasks.history == ["ann", None]


def test_a_row_added_and_deleted_within_a_batch_takes_no_older_answer():
    tasks = Tasks(inner, Random(0))
    ann, bob = tasks.add("customers", "ann", GOLD, 1), tasks.add("customers", "bob", IRON, 1)
    tasks.run()
    assert ann != bob
    for order, ms, right in ((Order("ann", 5), 20, ann), (Order("bob", 5), 1, bob), (None, 2, bob)):
        left = tasks.add("orders", "1", order, ms)
        tasks.step(left, records=1, messages=0)
        tasks.step(right, messages=1)
    tasks.step(left, messages=2)  # bob's has overtaken ann's
    tasks.add("orders", "1", Order("ann", 5), 20)
    tasks.add("orders", "1", None, 21)
    tasks.step(left, records=2, messages=1)
    tasks.run()
    assert tasks.history == []


def test_of_several_answers_in_a_batch_each_meets_the_result_that_the_one_before_has_left():
    tasks = Tasks(inner, Random(0))
    left, other = (tasks.add("orders", key, Order("ann", 5), 1) for key in "13")
    assert left == other
    tasks.step(left, records=2)
    (right,) = (task for task, messages in tasks.messages.items() if messages)
    tasks.step(right, messages=2)  # nobody there
    for customer, ms in ((GOLD, 2), (None, 3), (None, 4), (IRON, 5), (None, 6)):
        tasks.add("customers", "ann", customer, ms)
        tasks.step(right, records=1)
    tasks.step(left, messages=10)
    assert tasks.history == ["ann", "ann", None, None, "ann", "ann"]
    tasks.step(left, messages=2)
    assert (tasks.history[6:], tasks.result) == ([None, None], {})
    tasks.add("customers", "ann", None, 7)
    tasks.run()
    assert len(tasks.history) == 8


@pytest.mark.parametrize(("amount", "history"), [(5, ["ann"]), (6, [])])
def test_a_subscription_of_an_older_version_has_the_hash_of_a_row_and_is_answered_while_that_is_the_newest(
    amount, history
):
    tasks = Tasks(inner, Random(0))
    tasks.add("customers", "ann", GOLD, 1)
    tasks.run()
    tasks.step(tasks.add("orders", "1", Order("ann", 5), 2), records=1)
    row = msgspec.msgpack.encode([None, "ann", amount])
    of_row = int.from_bytes(hashlib.blake2b(row, digest_size=8).digest(), signed=True)
    for task, waiting in tasks.messages.items():
        tasks.messages[task] = [each.with_columns(_hash=pl.lit(of_row)) for each in waiting]
    tasks.run()
    assert tasks.history == history


ROWS = st.lists(
    st.one_of(
        st.tuples(
            st.just("orders"),
            st.sampled_from("12"),
            st.one_of(st.none(), st.builds(Order, st.sampled_from(["ann", "bob", None]), st.integers(1, 2))),
            st.integers(0, 20),
        ),
        st.tuples(
            st.just("customers"),
            st.sampled_from(["ann", "bob"]),
            st.one_of(st.none(), st.sampled_from([GOLD, IRON])),
            st.integers(0, 20),
        ),
    ),
    min_size=1,
    max_size=30,
)


@pytest.mark.slow
@pytest.mark.parametrize("program", [inner, left])
@settings(max_examples=examples(50))
@given(rows=ROWS, seed=st.integers(0, 1 << 16))
def test_in_the_end_the_result_is_the_join_of_the_two_tables_whatever_the_order_of_messages(program, rows, seed):
    random = Random(seed)
    tasks, newest = Tasks(program, random), {"orders": {}, "customers": {}}
    for topic, key, value, ms in rows:
        tasks.add(topic, key, value, ms)
        newest[topic][key] = (value, ms)
        if random.random() < 0.5:
            tasks.step(random.choice(tasks.tasks))
    tasks.run()
    expected = {}
    for key, (order, ms) in newest["orders"].items():
        customer, other_ms = newest["customers"].get(order.customer, (None, 0)) if order else (None, 0)
        if customer is not None or (order is not None and program is left):
            expected[key] = (order.customer, order.amount, customer.tier if customer else None)
            assert customer is None or tasks.times[key] == max(ms, other_ms)
    assert tasks.result == expected
    for task in tasks.tasks:
        kept = [len(store) for name, store in tasks.sessions[task].rows.items() if "OUTPUT" in name]
        assert kept in ([], [sum(ord(key) % LEFT_TASKS == task[1] for key in expected)])
