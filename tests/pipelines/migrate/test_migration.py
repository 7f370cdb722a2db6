"""A migration is an application's first commit: complete or absent, made once, and it overwrites no commits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.sales import application, expected, sales, totals
from weir.infra.settings import Settings
from weir.pipelines.migrate.errors import MigrationError
from weir.pipelines.migrate.migration import Migration, StoreRows, source_positions
from weir.pipelines.operations.reset import reset
from weir.pipelines.topology.topology import table_spec
from weir.state.commit.protocol import newest_commit
from weir.state.errors import FencedError
from weir.state.types import TaskId

READ = 40
ROOT = Path(__file__).parents[3]
STEPS = ("files written", "pivot appended", "table appended", "settled")


def place_in(folder: Path) -> Place:
    topics = Topics({("sales", partition): sales(100, partition) for partition in (0, 1)})
    return Place(application(), topics, folder, max_records=30)


@pytest.fixture
def place(tmp_path):
    return place_in(tmp_path)


def migration(place: Place, read: int = READ) -> Migration:
    """The state of another system that has read ``read`` records of each partition."""
    (sub_topology,) = place.application.topology.sub_topologies
    (store,) = sub_topology.stores
    stores = []
    for partition in (0, 1):
        rows = pl.DataFrame(
            [
                (key.decode(), json.loads(value)["amount"], time)
                for key, value, time in place.topics.rows["sales", partition][:read]
            ],
            schema=["shop", "amount", "_ts"],
            orient="row",
        )
        summed = rows.group_by("shop").agg(
            total=pl.col("amount").sum(), sales=pl.len().cast(pl.Int64), _ts=pl.col("_ts").max()
        )
        stores.append(StoreRows(task=TaskId(0, partition), store=store, rows=summed))
    table = table_spec(sub_topology.sinks[0])
    outputs = [
        (
            table,
            pl.concat([each.rows for each in stores]).with_columns(
                pl.col("_ts").cast(pl.Datetime("ms", "UTC")), _seq=pl.int_range(pl.len()), _deleted=pl.lit(False)
            ),
        )
    ]
    return Migration(
        application=place.application,
        source="another system",
        counts={0: 2},
        stores=stores,
        positions={("sales", 0): read, ("sales", 1): read},
        outputs=outputs,
    )


def test_a_migrated_application_continues_as_if_it_had_read_everything_itself(place):
    assert migration(place).write(place.warehouse)
    assert newest_commit(place.warehouse, "sales").tasks[place.name_of("0_1")].positions == {"sales": {1: READ}}
    summary = place.run()
    assert summary.records_in == 200 - 2 * READ
    assert {restored.request.task for restored in place.restores.done} == {TaskId(0, 0), TaskId(0, 1)}
    assert totals(place) == expected(place)


def test_the_same_migration_changes_nothing_the_second_time_and_another_is_refused(place):
    migration(place).write(place.warehouse)
    first = newest_commit(place.warehouse, "sales")
    assert not migration(place).write(place.warehouse)
    with pytest.raises(MigrationError, match=r"has commits already.*overwrites nothing.*weir reset sales"):
        migration(place, READ + 1).write(place.warehouse)
    assert newest_commit(place.warehouse, "sales") == first
    place.run()
    with pytest.raises(MigrationError, match="has commits already"):
        migration(place).write(place.warehouse)
    settings = Settings(dir=place.folder)
    reset(settings, "sales")
    assert migration(place, READ + 1).write(place.warehouse)
    assert newest_commit(place.warehouse, "sales").tasks[place.name_of("0_1")].positions == {"sales": {1: READ + 1}}


def write_until(folder: Path, step: str) -> None:
    """Runs in a separate process, which is killed at ``step``."""

    def die(name: str) -> None:
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    place = place_in(folder)
    migration(place).write(place.warehouse, die)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_migration_killed_at_any_step_is_there_completely_or_not_at_all(place, step):
    program = f"from {__name__} import *; write_until(Path({str(place.folder)!r}), {step!r})"
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert (newest_commit(place.warehouse, "sales") is not None) == (step != "files written")
    assert migration(place).write(place.warehouse) == (step == "files written"), "what is durable is not written again"
    place.run()
    assert totals(place) == expected(place)


def test_an_application_that_is_started_meanwhile_fences_the_migration(place):
    def start(step):
        if step == "files written":
            place.driver()

    with pytest.raises(FencedError):
        migration(place).write(place.warehouse, start)
    assert newest_commit(place.warehouse, "sales") is None


def test_an_application_without_state_takes_positions_alone(place):
    only = Migration(application=place.application, source="a group", counts={0: 2}, positions={("sales", 1): 90})
    only.write(place.warehouse)
    assert place.run().records_in == 100 + 10
    assert not place.restores.done


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({("orders", 0): 5}, r"'sales' reads \(sales\).*orders"),
        ({}, r"'sales' reads \(sales\).*nothing"),
        ({("sales", 2): 5}, "offset 5 of topic 'sales', partition 2.* has 2"),
        ({("sales", 0): 101}, "offset 101 of topic 'sales', partition 0.*end at 100"),
        ({("sales", 0): 4}, "offset 4 of topic 'sales', partition 0.*begins at 5"),
    ],
)
def test_offsets_that_do_not_fit_the_topics_are_refused(place, found, reason):
    beginnings, ends = {("sales", 0): 5, ("sales", 1): 5}, {("sales", 0): 100, ("sales", 1): 100}
    with pytest.raises(MigrationError, match=reason):
        source_positions(place.application, {"sales": 2}, found, beginnings, ends, "a group")


def test_offsets_of_other_topics_are_left_out(place):
    ends = {("sales", 0): 100, ("sales", 1): 100}
    found = {("sales", 0): 100, ("orders", 0): 7}
    assert source_positions(place.application, {"sales": 2}, found, dict.fromkeys(ends, 0), ends, "a group") == {
        ("sales", 0): 100
    }
