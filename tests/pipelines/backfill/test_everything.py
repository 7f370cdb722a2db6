"""A backfill of everything, stores included: afterwards the application is what it would be had the new program run
from the beginning, whatever dies when."""

from __future__ import annotations

import subprocess
from collections import Counter
from dataclasses import replace
from threading import Event

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from pipelines import Application
from pipelines.backfill.everything import is_behind, swap_everything
from pipelines.backfill.shadow import shadows
from pipelines.backfill.swap import prepare, swap_at_rest
from pipelines.tasks.epoch import task_rows
from state.changelog.as_of import state_as_of
from state.changelog.compaction import Compaction
from state.changelog.verify import verify_task
from state.commit.audit import newest_commits, offset_breaks, row_count
from state.commit.protocol import newest_commit
from state.commit.tables import AppendTable
from state.errors import FencedError, SwapRefusedError
from tests.pipelines.backfill.inline import begun_whole, made, output, run_on, run_shadow
from tests.pipelines.backfill.program import DAYS, OUTPUTS, build, give, sensors
from tests.pipelines.spark.inline import Desk, Place, Topics

pytestmark = pytest.mark.faults

MENDED = build(300)
TABLES = (*OUTPUTS, "totals")
SHARE = 0.6
STEPS = ("claimed", "swap files written", "changelogs written", "pivot appended", "table appended", "settled")
DECIDED = STEPS[3:]
EPOCH_STEPS = ("append redone", "files written", "state written")


class KilledError(BaseException):
    """Stands for kill -9: derived from BaseException, so that no handler of errors takes it for one."""


def dying_at(step: str, occurrence: int = 1):
    seen = Counter()

    def on_step(name: str) -> None:
        seen[name] += 1
        if name == step and seen[name] == occurrence:
            raise KilledError(step)

    return on_step


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A folder with the live application, which has read some of the records, and a complete backfill of everything by
    the mended program."""
    place = sensors(tmp_path_factory.mktemp("template"), share=SHARE)
    place.run()
    run_shadow(place, begun_whole(place, MENDED), MENDED)
    return place


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What the mended program gives when it runs from the beginning, at the swap and at the end."""
    place = sensors(tmp_path_factory.mktemp("mended"), MENDED, share=SHARE)
    found = []
    for share in (SHARE, 1.0):
        give(place, share)
        place.run()
        found.append(contents(place))
    return found


@pytest.fixture
def place(template, tmp_path):
    """The live application."""
    subprocess.run(["cp", "-a", "--sparse=always", f"{template.folder}/.", tmp_path], check=True)  # stores are sparse
    topics = Topics({partition: list(rows) for partition, rows in template.topics.rows.items()})
    return replace(template, folder=tmp_path, desk=Desk(), topics=topics)


@pytest.fixture
def shadow(place):
    """The complete backfill."""
    [found] = shadows(place.warehouse, place.folder / "shadows", "sensors")
    return found


def contents(place: Place, tables=TABLES) -> dict[str, pl.DataFrame]:
    """All that stands in outputs and changelogs, without epochs."""
    found = {table: output(place, table) for table in tables}
    epoch = newest_commit(place.warehouse, place.application.id).epoch
    for store in stores(place):
        found[f"store {store.name}"] = state_as_of(place.warehouse / place.application.id, store, epoch).drop("_epoch")
    return found


def stores(place: Place) -> list:
    return [store for sub_topology in place.application.topology.sub_topologies for store in sub_topology.stores]


def assert_same(found: dict[str, pl.DataFrame], wanted: dict[str, pl.DataFrame]) -> None:
    assert found.keys() == wanted.keys()
    for name, rows in wanted.items():
        assert_frame_equal(found[name], rows)


def assert_stores_are_the_changelogs(place: Place) -> None:
    """Row by row, with positions and stream times."""
    topology = place.application.topology
    for name in newest_commit(place.warehouse, place.application.id).tasks:
        specs = topology.sub_topologies[topology.task_of(name).sub_topology].stores
        verify_task(place.warehouse, place.application.id, place.folder / "state" / name, specs,
                    lambda commit: task_rows(commit.positions, commit.clocks))


def swap(place: Place, shadow, on_step=lambda step: None, program: Application = MENDED) -> int:
    return swap_everything(place.warehouse, program, shadow, on_step)


def test_the_application_goes_on_as_if_the_new_program_had_run_from_the_beginning(place, shadow, results):
    at_swap, at_end = results
    before = contents(place)
    assert not any(before[name].equals(at_swap[name]) for name in (*TABLES, "store ever"))
    epoch = newest_commit(place.warehouse, "sensors").epoch
    assert swap(place, shadow) == epoch + 1
    assert_same(contents(place), at_swap)
    history = {f"store {store.name}": state_as_of(place.warehouse / "sensors", store, epoch) for store in stores(place)}
    assert_same({name: rows.drop("_epoch") for name, rows in history.items()},
                {name: rows for name, rows in before.items() if name in history})
    place.application = MENDED
    place.run()
    assert len(place.restores.done) == len(newest_commit(place.warehouse, "sensors").tasks)
    assert_same(contents(place), at_swap)
    assert_stores_are_the_changelogs(place)
    give(place, 1.0)
    place.run()
    assert_same(contents(place), at_end)
    assert_stores_are_the_changelogs(place)
    assert list(shadows(place.warehouse, place.folder / "shadows", "sensors")) == []


@pytest.mark.parametrize("step", STEPS)
def test_a_swap_that_dies_at_any_step_leaves_all_of_the_old_or_all_of_the_new(place, shadow, results, step):
    before = contents(place)
    with pytest.raises(KilledError):
        swap(place, shadow, dying_at(step))
    if step not in DECIDED:
        assert_same(contents(place), before)
        old = replace(place, desk=Desk())
        old.run()  # the old program may go on as if nothing had been
        assert_same(contents(place), before)
        assert not old.restores.done
        swap(place, shadow)
    place.application = MENDED
    place.run()
    assert_same(contents(place), results[0])
    assert_stores_are_the_changelogs(place)
    give(place, 1.0)
    place.run()
    assert_same(contents(place), results[1])
    assert not shadow.folder.exists()
    assert swap(place, shadow) == newest_commit(place.warehouse, "sensors").swapped[-1].epoch, "twice is once"
    assert_same(contents(place), results[1])


@pytest.mark.parametrize("table", ["totals", "kinds", "_changelog/ever", "_changelog/by_hour"])
def test_a_swap_that_dies_between_the_tables_is_carried_out_in_each(place, shadow, results, table, monkeypatch):
    append = AppendTable.append

    def dying(appended: AppendTable, *arguments) -> None:
        if appended.name == table:
            raise KilledError(table)
        append(appended, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(AppendTable, "append", dying)
        with pytest.raises(KilledError):
            swap(place, shadow)
    versions = {name: AppendTable(place.warehouse / "sensors" / name, name, "sensors").version for name in (
        "totals", "kinds", "_changelog/ever", "_changelog/by_hour")}
    assert [name for name, version in versions.items() if version < max(versions.values())] == [table]
    place.application = MENDED
    place.run()
    assert_same(contents(place), results[0])
    assert_stores_are_the_changelogs(place)


@pytest.mark.parametrize("step", EPOCH_STEPS)
def test_the_driver_that_comes_after_a_swap_may_die_too(place, shadow, results, step):
    with pytest.raises(KilledError):
        swap(place, shadow, dying_at("pivot appended"))
    place.application = MENDED
    with pytest.raises(KilledError):
        place.run(dying_at(step, 2))
    place.run()
    assert_same(contents(place), results[0])
    give(place, 1.0)
    place.run()
    assert_same(contents(place), results[1])
    assert_stores_are_the_changelogs(place)


def test_compaction_carries_a_swap_out_that_died_and_the_tasks_restore_from_what_it_leaves(place, shadow, results):
    with pytest.raises(KilledError):
        swap(place, shadow, dying_at("pivot appended"))
    compaction = Compaction(place.warehouse, "sensors", is_whole=True, tombstone_retention_ms=0)
    list(compaction.run(compaction.tables()))
    assert_same(contents(place), results[0])
    place.application = MENDED
    give(place, 1.0)
    place.run()
    assert_same(contents(place), results[1])
    assert_stores_are_the_changelogs(place)


def test_the_live_run_goes_on_beside_the_backfill_which_reads_on_before_the_swap(place, shadow, results):
    give(place, 1.0)
    place.run()
    live = newest_commit(place.warehouse, "sensors")
    assert is_behind(MENDED, live, newest_commit(shadow.warehouse, shadow.id))
    before = contents(place)
    with pytest.raises(SwapRefusedError, match=r"stands at offset \d+ of topic 'readings', .* swap it again"):
        swap(place, shadow)
    assert_same(contents(place), before)
    with pytest.raises(KilledError):
        run_on(place, shadow, MENDED, dying_at("state written", 9))
    run_on(place, shadow, MENDED)
    assert not is_behind(MENDED, live, newest_commit(shadow.warehouse, shadow.id))
    assert not shadow.state_folder.exists()
    swap(place, shadow)
    assert_same(contents(place), results[1])
    place.application = MENDED
    place.run()
    assert_same(contents(place), results[1])
    assert_stores_are_the_changelogs(place)


def test_a_driver_that_runs_all_the_same_is_fenced_and_one_that_takes_over_fences_the_swap(place, shadow, results):
    before = contents(place)

    def take_over(step: str) -> None:
        if step == "changelogs written":
            place.driver()

    with pytest.raises(FencedError):
        swap(place, shadow, take_over)
    assert_same(contents(place), before)
    running = place.driver()
    swap(place, shadow)
    give(place, 1.0)
    with pytest.raises(FencedError):
        running.run(Event(), until_caught_up=True)
    place.application = MENDED
    place.run()
    assert_same(contents(place), results[1])


def test_the_audit_finds_nothing_wrong_with_a_swap(place, shadow):
    swap(place, shadow)
    place.application = MENDED
    give(place, 1.0)
    place.run()
    window = newest_commits(place.warehouse, "sensors", 100)
    assert [each.sentence for each in offset_breaks(window)] == []
    for table in TABLES:
        count = row_count(place.warehouse, "sensors", table, window)
        assert count is None or count.is_right, (table, count)


def test_a_backfill_of_days_from_before_is_refused_and_one_from_after_is_not(place, shadow, results):
    of_days = made(place, DAYS, MENDED)
    prepare(of_days)
    swap(place, shadow)
    with pytest.raises(SwapRefusedError, match="has replaced some of its days since it began; run it again"):
        swap_at_rest(place.warehouse, MENDED, of_days.id)
    place.application = MENDED
    place.run()
    again = made(place, DAYS)
    prepare(again)
    swap_at_rest(place.warehouse, MENDED, again.id)
    assert_same(contents(place), results[0])
