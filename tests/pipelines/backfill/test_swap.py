"""A swap is one commit: complete or absent no matter what is killed and when, made once, and safe beside compaction."""

from __future__ import annotations

import json
import os
import time
from datetime import date, timedelta
from threading import Event

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from tests.faults.dying import KilledError, dying_at
from tests.pipelines.backfill.inline import begun, copied, made, of_days, output, run_shadow
from tests.pipelines.backfill.killed import swap_killed_at
from tests.pipelines.backfill.program import DAYS, OUTPUTS, build, give, readings, sensors, sessions, visits
from tests.small_disk import small_disk
from weir.pipelines.backfill.shadow import Completion, Days, shadows
from weir.pipelines.backfill.swap import prepare, swap_at_rest
from weir.state.changelog.compaction import Compaction
from weir.state.commit.protocol import newest_commit
from weir.state.commit.swap import PREPARED_LIFE_S
from weir.state.commit.tables import AppendTable, read_rows
from weir.state.errors import DiskFullError, FencedError, SwapRefusedError
from weir.state.full_disk import telling
from weir.state.storage.local import Local

pytestmark = pytest.mark.faults

MENDED = 300
STEPS = ("differences counted", "swap files written", "swap prepared", "pivot appended", "table appended", "settled")


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A folder with the live application, caught up, and a complete backfill of the fixed program."""
    place = sensors(tmp_path_factory.mktemp("template"))
    place.run()
    made(place, DAYS, build(MENDED))
    return place


@pytest.fixture(scope="module")
def results(template, tmp_path_factory):
    """The outputs of the live program over everything, and the same with the days of the fixed one."""
    mended = sensors(tmp_path_factory.mktemp("mended"), build(MENDED))
    mended.run()
    before, after = {table: output(template, table) for table in OUTPUTS}, {}
    for table, rows in before.items():
        mixed = pl.concat([of_days(rows, DAYS, inside=False), of_days(output(mended, table), DAYS, inside=True)])
        after[table] = mixed.sort(mixed.columns)
        assert not after[table].equals(rows)
    return before, after


def assert_outputs(place, wanted: dict[str, pl.DataFrame]) -> None:
    for table, rows in wanted.items():
        assert_frame_equal(output(place, table), rows)


def swap_by_request(place, shadow, on_step=lambda step: None) -> tuple[str, bool]:
    """Prepare it and request it from the live driver; returns the answer."""
    prepare(shadow, on_step)
    return ask(place, shadow.id, on_step)


def ask(place, backfill: str, on_step=lambda step: None) -> tuple[str, bool]:
    asked = place.desk.ask("swap", backfill=backfill)
    place.run(on_step)
    return place.desk.answers[asked]


def swap_by_command(place, shadow, on_step=lambda step: None) -> int:
    """Prepare it and swap it in while no driver runs; returns the epoch."""
    prepare(shadow, on_step)
    return swap_at_rest(place.warehouse, place.application, shadow.id, on_step)


def test_a_fixed_program_changes_its_days_and_no_others(place, shadow, results):
    before, after = results
    assert_outputs(place, before)
    prepare(shadow)
    assert_outputs(place, before)
    answer, failed = ask(place, shadow.id)
    assert answer.startswith("swapped in by the commit of epoch")
    for table in OUTPUTS:
        old, new = (of_days(rows[table], DAYS, inside=True).height for rows in results)
        assert f"{table} {old:,} -> {new:,} rows (" in answer
    assert not failed
    assert_outputs(place, after)
    assert list(shadows(place.warehouse, place.folder / "shadows", "sensors")) == []
    place.run()
    assert_outputs(place, after)


def test_the_live_run_continues_between_the_cut_and_the_swap(tmp_path, results):
    """What it emits after the cut stays, for the days too: records that came late, windows that were open."""
    before, _ = results
    place = sensors(tmp_path, share=0.55)
    place.run()
    shadow = made(place, DAYS)
    give(place, 1.0)
    place.run()
    assert_outputs(place, before)
    swap_by_request(place, shadow)
    assert_outputs(place, before)
    late = of_days(read_rows(place.warehouse / "sensors" / "raised"), DAYS, inside=True)
    assert late.filter(pl.col("_epoch") > shadow_cut(place)).height > 0


def shadow_cut(place) -> int:
    return newest_commit(place.warehouse, "sensors").swapped[-1].cut_epoch


@pytest.mark.parametrize(
    ("undecided_at", "decided_at"),
    [
        (("differences counted", "swap files written", "swap prepared"), "pivot appended"),
        ((), "table appended"),
        ((), "settled"),
    ],
)
def test_a_process_killed_while_it_swaps_leaves_all_of_the_old_or_all_of_the_new(
    place, shadow, results, undecided_at, decided_at
):
    before, after = results
    for step in undecided_at:
        swap_killed_at(place, shadow, step)
        assert_outputs(place, before)
    swap_killed_at(place, shadow, decided_at)
    place.run()
    assert_outputs(place, after)
    assert list(shadows(place.warehouse, place.folder / "shadows", "sensors")) == []


@pytest.mark.parametrize(
    ("step", "is_running"), [*((step, True) for step in STEPS), ("pivot appended", False), ("settled", False)]
)
def test_after_a_crash_at_any_step_all_or_nothing_is_swapped_in(place, shadow, results, step, is_running):
    before, after = results
    swap = swap_by_request if is_running else swap_by_command
    with pytest.raises(KilledError):
        swap(place, shadow, dying_at(step))
    is_decided = step not in STEPS[:3]
    if not is_decided:
        assert_outputs(place, before)
    place.run()  # the next driver, which also answers a request that is still waiting
    if not is_decided:
        assert_outputs(place, before)
        swap_by_command(place, shadow)
    assert_outputs(place, after)
    assert not shadow.folder.path.exists()
    assert len(newest_commit(place.warehouse, "sensors").swapped) == 1
    assert all(answer.startswith("swapped in already") for answer, _ in place.desk.answers.values())


@pytest.mark.parametrize("step", ["files written", "settled"])
def test_a_backfill_that_dies_leaves_the_outputs_as_they_were_and_does_not_count(place, results, step):
    shadow = begun(place, DAYS, build(MENDED))
    with pytest.raises(KilledError):
        run_shadow(place, shadow, build(MENDED), dying_at(step, 4))
    assert_outputs(place, results[0])
    assert shadow.completion is None
    with pytest.raises(Exception, match="is not complete"):
        prepare(shadow)
    shadow.remove()
    assert not shadow.folder.path.exists()
    assert not shadow.state_folder.exists()
    assert_outputs(place, results[0])


def test_a_complete_backfill_leaves_no_local_stores(place, monkeypatch):
    shadow = begun(place, DAYS)

    def die(folder, name, content):
        assert name == "complete.json"
        assert not shadow.state_folder.exists()
        raise KilledError(name)

    monkeypatch.setattr(Local, "put", die)
    shadow.state_folder.mkdir(parents=True)
    with pytest.raises(KilledError):
        shadow.complete(Completion(records_in=0, seconds=0.0))
    assert shadow.completion is None


@pytest.mark.parametrize("step", ["pivot appended", "table appended"])
def test_compaction_carries_out_a_swap_that_a_dead_driver_left(place, shadow, results, step):
    with pytest.raises(KilledError):
        swap_by_command(place, shadow, dying_at(step))
    compact(place)
    assert_outputs(place, results[1])
    place.run()
    assert_outputs(place, results[1])


def test_compaction_may_have_merged_the_files_that_were_there_at_the_pivot(place, shadow, results):
    """It began before the pivot, so knows nothing of it, and ends before the tables have their rows."""
    prepare(shadow)

    def merge(step: str) -> None:
        if step == "pivot appended":
            compaction = Compaction(place.warehouse, "sensors", is_whole=True)
            for table in OUTPUTS:
                compaction._compact(table)

    swap_at_rest(place.warehouse, place.application, shadow.id, merge)
    assert_outputs(place, results[1])


def test_a_compaction_that_is_overtaken_by_a_swap_changes_nothing(place, shadow, results):
    prepare(shadow)
    is_done = False

    def swap(step: str) -> None:
        nonlocal is_done
        if step == "rows written" and not is_done:
            is_done = True
            swap_at_rest(place.warehouse, place.application, shadow.id)

    compaction = Compaction(place.warehouse, "sensors", is_whole=True, on_step=swap)
    list(compaction.run(compaction.tables()))
    assert is_done
    assert_outputs(place, results[1])


def test_a_swapped_table_is_compacted_like_any_other(place, shadow, results):
    swap_by_command(place, shadow)
    compact(place)
    assert_outputs(place, results[1])


def compact(place) -> None:
    compaction = Compaction(place.warehouse, "sensors", is_whole=True)
    list(compaction.run(compaction.tables()))


def test_compaction_and_vacuum_leave_a_shadow_alone(place, results):
    shadow = begun(place, DAYS, build(MENDED))
    compact(place)
    run_shadow(place, shadow, build(MENDED))
    prepare(shadow)
    before = {path: path.stat().st_mtime_ns for path in shadow.folder.path.rglob("*")}
    compact(place)
    assert {path: path.stat().st_mtime_ns for path in shadow.folder.path.rglob("*")} == before
    swap_at_rest(place.warehouse, place.application, shadow.id)
    assert_outputs(place, results[1])


def test_a_driver_that_was_overtaken_swaps_nothing_and_the_newer_one_does(place, shadow, results):
    before, after = results
    older, newer = place.driver(), place.driver()
    prepare(shadow)
    asked = place.desk.ask("swap", backfill=shadow.id)
    with pytest.raises(FencedError, match="newer driver has taken over"):
        older.run(Event(), until_caught_up=True)
    assert_outputs(place, before)
    newer.run(Event(), until_caught_up=True)
    assert place.desk.answers[asked][0].startswith("swapped in by the commit")
    assert_outputs(place, after)


def test_a_swap_without_a_driver_fences_one_that_runs_anyway(place, shadow, results):
    running = place.driver()
    swap_by_command(place, shadow)
    place.desk.ask("commit")
    place.topics.rows["readings", 0].append((b"sensor-0", b'{"value": 1, "kind": "kind-0"}', 1_714_521_600_000))
    with pytest.raises(FencedError):
        running.run(Event(), until_caught_up=True)
    assert_outputs(place, results[1])


def test_the_same_backfill_twice_is_swapped_in_once(place, shadow, results):
    epoch = swap_by_command(place, shadow)
    assert swap_at_rest(place.warehouse, place.application, shadow.id) == epoch
    assert ask(place, shadow.id) == (f"swapped in already, by the commit of epoch {epoch}", False)
    assert_outputs(place, results[1])


def test_days_can_be_backfilled_again_and_the_newer_backfill_counts(place, results):
    for least in (100, MENDED):
        swap_by_command(place, made(place, DAYS, build(least)))
    assert_outputs(place, results[1])


def test_a_backfill_that_another_has_overtaken_is_refused(place, shadow, results):
    older, newer = made(place, DAYS, build(100)), shadow
    elsewhere = made(place, Days(first=DAYS.end, end=DAYS.end + timedelta(days=1)))
    for shadow in (newer, older, elsewhere):
        prepare(shadow)
    swap_at_rest(place.warehouse, place.application, newer.id)
    answer, failed = ask(place, older.id)
    assert failed
    assert f"backfill {newer.id} has replaced some of its days since it began; run it again" in answer
    assert_outputs(place, results[1])
    swap_at_rest(place.warehouse, place.application, elsewhere.id)
    assert_outputs(place, results[1])


def test_a_swap_prepared_long_ago_or_gone_or_never_prepared_is_refused(place, shadow, results):
    prepared = prepare(shadow)
    path = shadow.folder.path / "swap.json"
    old = json.loads(path.read_text())
    path.write_text(json.dumps({**old, "at_s": time.time() - PREPARED_LIFE_S - 1}))
    with pytest.raises(SwapRefusedError, match="more than 12 hours ago; swap it again"):
        swap_at_rest(place.warehouse, place.application, shadow.id)
    path.write_text(json.dumps(old))
    os.unlink(place.warehouse / "sensors" / prepared.swaps[0].table / prepared.swaps[0].files[0].path)
    answer, failed = ask(place, shadow.id)
    assert "is gone; swap it again" in answer
    assert failed
    answer, failed = ask(place, "20240503-20240505-000000")
    assert "nothing is prepared for it" in answer
    assert failed
    assert_outputs(place, results[0])


def test_a_backfill_begun_before_deletions_that_compaction_has_dropped_is_refused(tmp_path):
    """A record after the cut joins two sessions, which deletes them: the backfill still has both."""
    place = sensors(tmp_path, sessions, rows=visits(0, 40))
    place.run()
    shadow = made(place, DAYS, sessions)
    give(place, 1.0, visits(0, 40, 20))
    place.run()
    joined = output(place, "visits")
    assert joined["readings"].to_list() == [3]
    compaction = Compaction(place.warehouse, "sensors", is_whole=True, tombstone_retention_ms=0)
    list(compaction.run(compaction.tables()))
    prepare(shadow)
    answer, failed = ask(place, shadow.id)
    assert_frame_equal(output(place, "visits"), joined)
    assert "compaction has dropped deletions" in answer
    assert failed
    with pytest.raises(SwapRefusedError, match="run it again"):
        swap_at_rest(place.warehouse, place.application, shadow.id)
    swap_by_command(place, made(place, DAYS, sessions))
    assert_frame_equal(output(place, "visits"), joined)


def test_days_without_records_are_empty_afterwards(place):
    """The days' rows are what the records give, which may be none."""
    days = Days(first=date(2024, 5, 2), end=date(2024, 5, 3))
    shadow = made(place, days, build(2_000))
    swap_by_command(place, shadow)
    assert of_days(output(place, "raised"), days, inside=True).is_empty()
    assert of_days(output(place, "raised"), days, inside=False).height > 50


def test_what_a_dead_driver_owes_the_tables_is_counted_too(tmp_path):
    """The cut is a commit whose rows are not in the tables yet."""
    place = sensors(tmp_path)

    def die_when_all_is_read(step: str) -> None:
        newest = newest_commit(place.warehouse, "sensors")
        if step == "pivot appended" and not newest.pending_blobs:
            read = sum(sum(task.positions.get("readings", {}).values()) for task in newest.tasks.values())
            if read == len(readings()):
                raise KilledError(step)

    with pytest.raises(KilledError):
        place.run(die_when_all_is_read)
    promised = newest_commit(place.warehouse, "sensors").table_versions
    folder = place.warehouse / "sensors"
    assert any(AppendTable(folder / table, table, "sensors").version < promised[table] for table in OUTPUTS)
    shadow, found = made(place, Days(first=date(2024, 5, 1), end=date(2024, 5, 8))), []
    prepare(shadow, review=found.extend)
    assert [each.table for each in found] == list(OUTPUTS)
    assert [(each.removed, each.changed, each.added) for each in found] == [(0, 0, 0)] * len(OUTPUTS)
    assert all(each.unchanged for each in found[:3])


@pytest.mark.parametrize("step", ["differences counted", "swap prepared", "pivot appended"])
def test_a_swap_for_which_there_is_no_room_is_repeated_once_there_is(template, tmp_path, results, step):
    before, after = results
    with small_disk(tmp_path / "disk", 60) as disk:
        place = copied(template, disk.folder / "place")
        [shadow] = shadows(place.warehouse, place.folder / "shadows", "sensors")

        def on_step(name: str) -> None:
            if name == step:
                disk.fill()

        with pytest.raises(DiskFullError, match="free some space there"), telling("the swap", [place.warehouse]):
            swap_by_command(place, shadow, on_step)
        if step != "pivot appended":
            assert_outputs(place, before)
        disk.clear()
        if step == "pivot appended":
            swap_at_rest(place.warehouse, place.application, shadow.id)
        else:
            swap_by_command(place, shadow)
        assert_outputs(place, after)
