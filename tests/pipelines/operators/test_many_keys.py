"""Epochs of more keys than are sorted one by one, in no order: their updates and the store beside a model."""

import random
from dataclasses import dataclass

import pytest

from weir import Application, Json, StreamsBuilder, String, Sum
from weir.state.stores.codec import SORTED_ONE_BY_ONE
from weir.testing import TopologyTestDriver

KEYS, RECORDS, EPOCHS = 2 * SORTED_ONE_BY_ONE, 3 * SORTED_ONE_BY_ONE, 3


@dataclass(frozen=True)
class Paid:
    amount: int


def summed(stream):
    return stream.group_by_key().agg("store", value=Sum("amount"))


def folded(stream):
    def add(key: str, paid: Paid, total: int) -> int | None:
        return total + paid.amount if paid.amount else None

    return stream.group_by_key().aggregate("store", lambda: 0, add)


@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize("every_update", [False, True])
def test_totals_are_those_of_a_dictionary(deletes, every_update):
    randomly, totals, expected = random.Random(1), {}, []
    builder = StreamsBuilder()
    table = (folded if deletes else summed)(builder.stream("in", key=String("user"), value=Json(Paid)))
    (table.to_stream() if every_update else table).to_delta("out")
    with TopologyTestDriver(Application("app", builder)) as driver:
        topic, out = driver.create_input_topic("in"), driver.create_output_table("out")
        for _ in range(EPOCHS):
            with driver.one_epoch():
                for number in range(RECORDS):
                    user, amount = f"{randomly.randrange(KEYS)}", randomly.randrange(4)
                    topic.pipe_input(user, Paid(amount), timestamp_ms=number)
                    if deletes and not amount:
                        totals.pop(user, None)
                    else:
                        totals[user] = totals.get(user, 0) + amount
                    expected.append((user, totals.get(user)))
            store = driver.get_key_value_store("store")
            assert {key: row if deletes else row["value"] for key, row in store.all()} == totals
            found = [(each.row["user"], None if each.is_deleted else each.row["value"]) for each in out.read_records()]
            if every_update:
                assert found == expected
            else:
                assert sorted(found) == sorted(dict(expected).items())
            expected.clear()
