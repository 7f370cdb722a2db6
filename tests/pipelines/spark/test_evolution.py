"""Programs change between runs and their stores go on: compared with a plain count over all records."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.pipelines.spark.evolving import (
    CHANGES,
    Changed,
    clicks,
    counted,
    pages,
    pages_counted,
    store,
    users,
)
from tests.pipelines.spark.inline import Place, Topics
from weir.pipelines.spark.errors import StorePlacementError, TopologyChangedError
from weir.pipelines.topology.changes import Fate, compare
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_rows, read_table
from weir.state.engine.instances import instances
from weir.state.errors import TableSchemaError

MINUTE = timedelta(minutes=1)


@pytest.fixture
def place(tmp_path):
    return Place(Changed().application(), Topics({("clicks", 0): clicks(0, 300)}), tmp_path, max_records=70)


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("loses_disk", [False, True])
def test_stores_go_on_under_a_changed_program(place, name, loses_disk):
    place.run()
    place.application = CHANGES[name].application()
    place.topics.rows["clicks", 0] += clicks(300, 250)
    if loses_disk:
        for data in place.state_folder.glob("*/*/data.mdb"):
            data.unlink()
    place.run()
    assert users(place) == counted(place)
    assert pages(place) == pages_counted(place)
    assert store(place, "newest").height == 20
    place.topics.rows["clicks", 0] += clicks(550, 50)
    place.run()
    assert len(list(instances(place.state_folder))) == len(newest_commit(place.warehouse, "clicks").tasks)
    assert users(place) == counted(place)
    assert pages(place) == pages_counted(place)


@pytest.mark.parametrize("name", [name for name in CHANGES if name not in ("the same", "all")])
def test_the_old_program_may_come_back(place, name):
    place.run()
    for number, program in enumerate((CHANGES[name], Changed(), CHANGES[name])):
        place.application = program.application()
        place.topics.rows["clicks", 0] += clicks(300 + number * 100, 100)
        place.run()
        assert users(place) == counted(place)
        assert pages(place) == pages_counted(place)


def test_a_store_of_an_earlier_program_is_kept_aside_and_comes_back_with_its_rows(place):
    place.application = Changed(more=True).application()
    place.run()
    held = store(place, "more")
    place.application = Changed().application()
    place.topics.rows["clicks", 0] += clicks(300, 100)
    place.run()
    committed = newest_commit(place.warehouse, "clicks")
    assert committed.topology.aside.keys() == {"more"}
    assert committed.topology.aside["more"].tasks == 1
    place.application = Changed(more=True).application()
    change = compare(committed, place.application.topology, dict.fromkeys(range(9), 1))
    assert change.of(Fate.COMES_BACK) == ("more",)
    place.run()
    assert store(place, "more").drop("_epoch", "task").equals(held.drop("_epoch", "task"))
    assert not newest_commit(place.warehouse, "clicks").topology.aside
    place.topics.rows["clicks", 0] += clicks(400, 3)
    place.run()
    last = dict(store(place, "more").select("user", "last").iter_rows())
    assert last == {
        **dict(held.select("user", "last").iter_rows()),
        "user-0": "page-1",
        "user-1": "page-2",
        "user-2": "page-0",
    }
    assert users(place) == counted(place)


def test_a_suppression_put_in_emits_each_window_that_closes_from_then_on_once(place):
    place.run()
    place.application = Changed(is_final=True).application()
    place.topics.rows["clicks", 0] += clicks(300, 300)
    before = read_rows(place.warehouse / "clicks" / "pages_out").height
    place.run()
    emitted = read_rows(place.warehouse / "clicks" / "pages_out").sort("_epoch", "_seq")[before:]
    found = {
        (page, start.timestamp() // 60): n for page, start, n in emitted.select("page", "window_start", "n").rows()
    }
    assert emitted.height == len(found), "each once"
    # Stream time was at 299 s: with a minute of grace, the windows up to minute 2 were closed. It is at 599 s now.
    wanted = {at: n for at, n in pages_counted(place).items() if 3 <= at[1] <= 7}
    assert found == wanted
    place.application = Changed().application()
    place.topics.rows["clicks", 0] += clicks(600, 60)
    place.run()
    assert {at: n for at, n in pages(place).items() if at[1] >= 10} == {
        at: n for at, n in pages_counted(place).items() if at[1] >= 10
    }


def test_an_output_gets_columns_that_are_null_in_its_rows_and_keeps_those_it_has(place):
    place.run()
    place.application = Changed(aggregates=("n", "total", "most")).application()
    place.topics.rows["clicks", 0] += clicks(300, 1)
    place.run()
    rows = read_table(place.warehouse / "clicks" / "users_out")
    assert dict(rows.select("user", "most").iter_rows()) == {
        f"user-{number}": 300 if number == 0 else None for number in range(20)
    }
    place.application = Changed().application()
    with pytest.raises(TableSchemaError, match="keep the old ones, or write to a table with another name"):
        place.run()
    place.application = Changed(output="another_name").application()  # both ways out
    place.run()
    place.application = Changed(aggregates=("n", "total", "most")).application()
    place.run()
    assert users(place) == counted(place)


def test_a_renamed_store_or_column_is_refused_with_a_way_out_that_works(place):
    place.run()
    renamed = Changed(aggregates=("n", "most"), output="other_out").application()
    place.application = renamed
    with pytest.raises(TopologyChangedError, match="if it is the same, call it 'total'"):
        place.run()
    place.application = Changed(aggregates=("n", "total")).application()
    assert place.run().records_in == 0
    assert users(place) == counted(place)


def test_a_repartition_takes_a_store_over_only_if_the_producers_used_the_default_partitioner(tmp_path):
    rows = {("clicks", partition): [] for partition in range(2)}
    for record in clicks(0, 40):
        rows["clicks", int(record[0].decode().removeprefix("user-")) % 2].append(record)
    place = Place(Changed().application(), Topics(rows), tmp_path)
    place.run()
    place.application = Changed(splits=True).application()
    with pytest.raises(StorePlacementError, match="do not use Kafka's default partitioner"):
        place.run()
    place.application = Changed().application()
    assert place.run().records_in == 0


STEPS = ["pivot appended", "table appended", "settled", "rolled back", "undo dropped", "files written", "state written"]


@pytest.mark.parametrize("name", ["a nullable field", "a split", "all"])
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_of_the_first_run_of_another_program_loses_nothing(place, name, step):
    place.run()
    place.application = CHANGES[name].application()
    place.topics.rows["clicks", 0] += clicks(300, 200)
    left = [2]

    def crash(found):
        left[0] -= found == step
        if found == step and left[0] == 0:
            raise KeyboardInterrupt(step)

    try:
        place.run(on_step=crash)
    except (KeyboardInterrupt, Exception):
        assert left[0] <= 0
    place.run()
    assert users(place) == counted(place)
    assert pages(place) == pages_counted(place)
