"""Another program over committed state: what carries on, what is refused, and what accepting a loss means."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.sales import Sale, application, expected, program, sales, totals
from weir import Application, Count, Json, StreamsBuilder, String, Sum
from weir.pipelines.spark.errors import PartitionCountError, PendingRowsError, TopologyChangedError
from weir.pipelines.topology.changes import Fate, compare
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_table
from weir.state.errors import TableSchemaError
from weir.state.types import BlobRef, StateId


@pytest.fixture
def place(tmp_path):
    topics = Topics({("sales", partition): sales(100, partition) for partition in (0, 1)})
    return Place(application(), topics, tmp_path, max_records=30)


def more_sales(place: Place, *partitions: int) -> None:
    for partition in partitions or (0, 1):
        place.topics.rows["sales", partition] += [(b"shop-%d" % partition, b'{"amount": 1000}', 9_000)] * 10


def add_refunds(place: Place) -> None:
    for partition in (0, 1):
        place.topics.rows["refunds", partition] = [
            (b"shop-%d" % partition, json.dumps({"amount": 5}).encode(), 5_000)
        ] * 3


@pytest.mark.slow
def test_a_change_that_leaves_every_store_alone_keeps_the_state(place):
    place.run()
    more_sales(place)
    place.application = program(positive_only=True, refunds=True)
    add_refunds(place)
    summary = place.run()
    assert summary.records_in == 20 + 6
    assert totals(place) == expected_of_sales(place)
    assert read_table(place.warehouse / "sales" / "refunds")["total"].to_list() == [15, 15]


def expected_of_sales(place: Place) -> dict:
    of_sales = {at: rows for at, rows in place.topics.rows.items() if at[0] == "sales"}
    return expected(replace(place, topics=Topics(of_sales)))


def by_pair(place: Place) -> Application:
    """``application()`` with another key in its store."""
    builder = StreamsBuilder()
    stream = builder.stream("sales", key=String("shop"), value=Json(Sale))
    stream.group_by("shop", "amount").agg("sums", total=Sum("amount"), sales=Count()).to_delta("by_pair")
    return Application("sales", builder)


def test_a_change_that_would_lose_a_store_is_refused_and_nothing_is_claimed(place):
    place.run()
    place.application = program(store="other")
    with pytest.raises(TopologyChangedError, match=r"call it 'sums'.*weir reset sales.*--accept-state"):
        place.run()
    place.application = by_pair(place)
    with pytest.raises(TopologyChangedError, match=r"store 'sums' would begin empty.*its key was shop string"):
        place.run()
    place.application = application()
    more_sales(place)
    assert place.run().generation == 2
    assert totals(place) == expected(place)


@pytest.mark.parametrize("step", [None, "pivot appended", "settled"])
def test_an_accepted_loss_gives_a_changelog_other_keys(place, step):
    place.run()
    place.application = by_pair(place)

    def crash(name):
        if name == step:
            raise KeyboardInterrupt(step)

    if step:
        with pytest.raises(KeyboardInterrupt, match=step):
            place.run(on_step=crash, accept_state_loss=True)
    more_sales(place)
    place.run(accept_state_loss=step is None)
    for data in place.state_folder.glob("*/*/data.mdb"):
        data.unlink()
    more_sales(place, 0)
    place.run()
    changelog = read_table(place.warehouse / "sales" / "_changelog" / "sums")
    found = changelog.select("shop", "amount", "total", "sales").sort("shop").rows()
    assert found == [("shop-0", 1_000, 20_000, 20), ("shop-1", 1_000, 10_000, 10)]


@pytest.mark.parametrize("step", [None, "pivot appended", "table appended", "settled"])
def test_an_accepted_loss_begins_with_empty_stores_at_the_committed_positions(place, step):
    place.run()
    place.topics.rows["sales", 2] = sales(5, 10)  # keys now belong to other tasks
    with pytest.raises(PartitionCountError, match=r"sales: 3 partitions.*--accept-state-loss"):
        place.run()
    more_sales(place)

    def crash(name):
        if name == step:
            raise RuntimeError(step)

    if step:
        with pytest.raises(RuntimeError, match=step):
            place.run(on_step=crash, accept_state_loss=True)
        place.run(accept_state_loss=step == "pivot appended")
    else:
        place.run(accept_state_loss=True)
    tasks = newest_commit(place.warehouse, "sales").tasks
    assert [tasks[place.name_of(f"0_{number}")].positions["sales"][number] for number in range(3)] == [110, 110, 5]
    changelog = read_table(place.warehouse / "sales" / "_changelog" / "sums")
    wanted = {"shop-0": (10_000, 10), "shop-1": (10_000, 10)}
    wanted |= {f"shop-{10 + 2 * number}": (number, 1) for number in range(5)}
    found = {shop: (total, count) for shop, total, count in changelog.select("shop", "total", "sales").iter_rows()}
    assert found == wanted, "rows that were given up no longer count"
    assert place.run().records_in == 0, "the loss is accepted once; the next start has nothing to accept"


def test_rows_between_sub_topologies_are_not_left_behind(place):
    place.run()
    blob = BlobRef(source="a_0", target="b_0", edge="e", state=StateId(1, 1), path="p", rows=1, size_bytes=1)
    counts, known = {0: 2}, replace(blob, target=place.name_of("0_0"))
    for pending in (known, blob):  # neither edge is in the program
        committed = replace(newest_commit(place.warehouse, "sales"), pending_blobs=(pending,))
        assert compare(committed, program(positive_only=True).topology, counts).is_blocked
    assert "--until-caught-up" in str(PendingRowsError("sales", 1))


@pytest.mark.slow
def test_an_output_with_other_columns_is_refused_before_anything_is_claimed(place):
    place.run()
    place.application = program(total="sum")
    with pytest.raises(TableSchemaError, match="another name"):
        place.run(accept_state_loss=True)
    assert newest_commit(place.warehouse, "sales").generation == 1
    place.application = application()
    assert place.run().generation == 2


def test_a_commit_written_before_topologies_were_kept_is_compared_by_stored_names(place):
    place.run()
    committed = replace(newest_commit(place.warehouse, "sales"), topology=None)
    change = compare(committed, program(refunds=True).topology, {0: 2, 1: 2})
    assert change.of(Fate.GOES_ON) == ("sums",)
    assert change.of(Fate.BEGINS_EMPTY) == ("refunds",)
