"""Processors that share stores in real epochs, commits and crashes, between DSL operators, and in changed programs."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta

import pytest
from polars import col

from tests.pipelines.processors.runs import disturbed_run, records, written
from tests.pipelines.spark.inline import Place, Topics
from weir import (
    Application,
    FixedKeyProcessor,
    Int64,
    KeyValueStore,
    Processor,
    StreamsBuilder,
    String,
    Sum,
)
from weir.state.changelog.as_of import state_as_of
from weir.state.commit.protocol import newest_commit

SEEN = KeyValueStore("seen", key=str, value=int)
HALF_MINUTE = timedelta(seconds=30)


def application(builder: StreamsBuilder) -> Application:
    return Application("shared", builder, commit_interval=timedelta(milliseconds=1))


def number(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)


class Gate(FixedKeyProcessor[str, int, int]):
    """Lets a record through twice, unless its user is blocked."""

    stores = ("blocked", "seen")

    def init(self, context):
        self.context = context
        self.blocked, self.seen = context.state_store("blocked"), context.state_store("seen")

    def process(self, record):
        if not self.blocked.get(record.key):
            self.context.forward(record)
            self.context.forward(record.with_value(self.seen.get(record.key) or 0))


class Block(FixedKeyProcessor[str, int, str]):
    """Blocks a user at each fifth record, for half a minute."""

    stores = ("blocked", "seen")

    def init(self, context):
        self.context = context
        self.blocked, self.seen = context.state_store("blocked"), context.state_store("seen")

    def process(self, record):
        seen = (self.seen.get(record.key) or 0) + 1
        self.seen.put(record.key, seen)
        if seen % 5 == 0:
            self.blocked.put(record.key, True)
            self.context.timer(record.key, record.timestamp + HALF_MINUTE)
        self.context.forward(record.with_value(f"{record.value} as {seen}"))

    def on_timer(self, record):
        self.blocked.delete(record.key)
        self.context.forward(record.with_value("free"))


def gated() -> Application:
    builder = StreamsBuilder().add_state_store(SEEN).add_state_store(KeyValueStore("blocked", key=str, value=bool))
    numbers = builder.stream("numbers", key=String("user"), value=Int64("number"))
    gate = numbers.process_values(Gate, name="gate")
    gate.filter(col("value") % 3 != 1).process_values(Block, name="block").to_delta("out")
    return application(builder)


def expected(rows: list[tuple[bytes, bytes, int]]) -> list[tuple[str, str, int]]:
    out, blocked, seen, timers, stream_ms = [], set(), Counter(), {}, 0

    def block(user: str, value: int, time_ms: int) -> None:
        nonlocal stream_ms
        if value % 3 != 1:
            stream_ms = max(stream_ms, time_ms)
            seen[user] += 1
            if seen[user] % 5 == 0:
                blocked.add(user)
                timers[user] = time_ms + 30_000
            out.append((user, f"{value} as {seen[user]}", time_ms))

    for key, value, time_ms in rows:
        user = key.decode()
        if user in blocked:
            continue
        reached = len(out)
        block(user, int.from_bytes(value, "big"), time_ms)
        block(user, seen[user], time_ms)
        if len(out) > reached:
            for due_ms, free in sorted((due, who) for who, due in timers.items() if due <= stream_ms):
                del timers[free]
                blocked.discard(free)
                out.append((free, "free", due_ms))
    return out


@pytest.mark.parametrize("seed", range(5))
def test_crashes_restarts_and_the_size_of_epochs_change_nothing(tmp_path, seed):
    rows = records(seed, 200)
    place = disturbed_run(gated(), rows, tmp_path, seed)
    found = written(place, "out", "user", "value")
    assert found == expected(rows)
    assert any(value == "free" for _, value, _ in found)


class Spend(FixedKeyProcessor[str, int, int]):
    """Forwards how much of an amount is still there."""

    stores = ("left",)

    def init(self, context):
        self.context, self.left = context, context.state_store("left")

    def process(self, record):
        self.context.forward(record.with_value(min(record.value, self.left.get(record.key) or 0)))


class Account(FixedKeyProcessor[str, int, int]):
    """Adds each amount, which may be negative, to what is there, and forwards the sum."""

    stores = ("left",)

    def init(self, context):
        self.context, self.left = context, context.state_store("left")

    def process(self, record):
        self.left.put(record.key, (self.left.get(record.key) or 0) + record.value)
        self.context.forward(record.with_value(self.left.get(record.key)))


@pytest.mark.parametrize("seed", range(4))
def test_joins_and_aggregations_between_processors_see_each_record_in_its_turn(tmp_path, seed):
    """What is spent depends on the account, times the price at that moment, less what all orders have cost."""
    builder = StreamsBuilder().add_state_store(KeyValueStore("left", key=str, value=int))
    prices = builder.table("prices", key=String("user"), value=Int64("price"), store="prices")
    orders = builder.stream("orders", key=String("user"), value=Int64("wanted"))
    spent = orders.process_values(Spend, name="spend")
    costs = spent.join(prices).map_values(value=-col("value") * col("price"))
    costs.group_by_key().agg("costs", value=Sum("value")).to_stream().to_delta("totals")
    costs.process_values(Account, name="pay").to_delta("paid")
    top = builder.stream("incomes", key=String("user"), value=Int64("amount"))
    top.process_values(Account, name="earn").to_delta("earned")

    chance = random.Random(seed)
    events = []
    for place_in_time in range(150):
        topic = chance.choice(["prices", "orders", "orders", "incomes"])
        value = {"prices": chance.randrange(1, 5), "orders": chance.randrange(10), "incomes": 20}[topic]
        events.append((topic, chance.choice(["ann", "bob"]), value, place_in_time * 10))
    topics = Topics({(topic, 0): [] for topic in ("prices", "orders", "incomes")})
    for topic, user, value, time_ms in events:
        topics.rows[topic, 0].append((user.encode(), number(value), time_ms))
    place = Place(application(builder), topics, tmp_path, max_records=chance.choice([7, 1000]))
    place.run()

    price_of, left, totals, paid, earned, sums = {}, Counter(), Counter(), [], [], []
    for topic, user, value, time_ms in events:
        if topic == "prices":
            price_of[user] = value
        elif topic == "incomes":
            left[user] += value
            earned.append((user, left[user], time_ms))
        elif user in price_of:
            cost_now = min(value, left[user]) * price_of[user]
            totals[user] += cost_now
            sums.append((user, -totals[user], time_ms))
            left[user] -= cost_now
            paid.append((user, left[user], time_ms))
    assert written(place, "paid", "user", "value") == paid
    assert written(place, "earned", "user", "value") == earned
    assert written(place, "totals", "user", "value") == sums


class Learn(Processor[str, int, None, None]):
    stores = ("seen",)

    def init(self, context):
        self.seen = context.state_store("seen")

    def process(self, record):
        self.seen.put(record.key, (self.seen.get(record.key) or 0) + record.value)


def test_a_store_may_be_shared_across_a_repartition(tmp_path):
    """The rows that come back through the repartition take their turn after the records that are there."""
    builder = StreamsBuilder().add_state_store(SEEN)
    numbers = builder.stream("numbers", key=String("user"), value=Int64("number"))
    numbers.process(Learn, name="learn")
    numbers.repartition("again").process(Learn, name="again")
    (sub_topology,) = builder.build().sub_topologies
    assert [edge.leads_back for edge in sub_topology.edges_out] == [True]
    place = Place(application(builder), Topics({("numbers", 0): [(b"ann", number(n), n) for n in range(50)]}), tmp_path)
    place.run()
    assert state(place) == {"ann": 2 * sum(range(50))}


def state(place: Place) -> dict[str, int]:
    committed = newest_commit(place.warehouse, "shared")
    (spec,) = (each for sub in place.application.topology.sub_topologies for each in sub.stores if each.name == "seen")
    return dict(state_as_of(place.warehouse / "shared", spec, committed.epoch).select("key", "value").rows())


class LearnAlone(Learn):
    stores = (SEEN,)


class LearnTwice(Learn):
    def process(self, record):
        super().process(record)
        super().process(record)


def alone(builder, clicks):
    clicks.process(LearnAlone, name="learn")
    return lambda clicks, orders: clicks


def shared(builder, clicks):
    builder.add_state_store(SEEN)
    clicks.process(Learn, name="one")
    return lambda clicks, orders: clicks


def elsewhere(builder, clicks):
    builder.add_state_store(SEEN)
    clicks.map_values(value=col("number")).process(LearnTwice, name="two")
    return lambda clicks, orders: 2 * clicks


def twice(builder, clicks):
    builder.add_state_store(SEEN)
    clicks.process(Learn, name="one")
    clicks.process(LearnTwice, name="two")
    return lambda clicks, orders: 3 * clicks


def with_another_topic(builder, clicks):
    builder.add_state_store(SEEN)
    orders = builder.stream("orders", key=String("user"), value=Int64("number"))
    builder.topology.add_processor("both", Learn, clicks, orders)
    return lambda clicks, orders: clicks + orders


def from_the_other_topic(builder, clicks):
    builder.add_state_store(SEEN)
    clicks.to_delta("clicks_out")
    builder.stream("orders", key=String("user"), value=Int64("number")).process(Learn, name="one")
    return lambda clicks, orders: orders


PROGRAMS = (alone, shared, elsewhere, twice, with_another_topic, from_the_other_topic)


@pytest.mark.parametrize("keeps_disk", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_a_store_keeps_its_rows_whichever_processors_it_is_connected_to(tmp_path, seed, keeps_disk):
    chance = random.Random(seed)
    topics, sums, read = Topics({("clicks", 0): [], ("orders", 0): []}), Counter(), {"orders": 0}
    place = None
    for program in [*chance.sample(PROGRAMS, len(PROGRAMS)), chance.choice(PROGRAMS)]:
        builder = StreamsBuilder()
        adds = program(builder, builder.stream("clicks", key=String("user"), value=Int64("number")))
        made = application(builder)
        new = {}
        for name in ("clicks", "orders"):
            new[name] = [(chance.choice(["ann", "bob"]), chance.randrange(100)) for _ in range(20)]
            begin = len(topics.rows[name, 0])
            topics.rows[name, 0] += [
                (user.encode(), number(value), (begin + place_in) * 100)
                for place_in, (user, value) in enumerate(new[name])
            ]
        clicks, orders = Counter(), Counter()
        for user, value in new["clicks"]:
            clicks[user] += value
        if "orders" in made.topology.topics():  # goes on where the topic was left
            for key, value, _ in topics.rows["orders", 0][read["orders"] :]:
                orders[key.decode()] += int.from_bytes(value, "big")
            read["orders"] = len(topics.rows["orders", 0])
        for user in ("ann", "bob"):
            sums[user] += adds(clicks[user], orders[user])
        if place is None:
            place = Place(made, topics, tmp_path)
        elif not keeps_disk:
            for local in place.state_folder.iterdir():
                local.rename(local.with_name(f"{local.name}.gone-{len(topics.rows['clicks', 0])}"))
        place.application = made
        place.run()
        assert state(place) == dict(sums), program.__name__
