"""A backfill of everything, stores included: afterwards the application is what it would be if the new program had run
from the beginning, no matter what is killed and when."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from threading import Event

import polars as pl
import pytest
from polars import col
from polars.testing import assert_frame_equal

from tests.faults.dying import KilledError, dying_at
from tests.pipelines.backfill.inline import begun_whole, made, output, run_on, run_shadow
from tests.pipelines.backfill.killed import swap_killed_at
from tests.pipelines.backfill.program import DAYS, OUTPUTS, Reading, give, mended, sensors
from tests.pipelines.spark.inline import Place, Topics
from weir import Application, Count, Json, Max, StreamsBuilder, String, Sum
from weir.pipelines.backfill.errors import BeginningLostError, NoCutError, UnknownBackfillError
from weir.pipelines.backfill.everything import _require_same_place, _tasks, is_behind, swap_everything
from weir.pipelines.backfill.shadow import shadows
from weir.pipelines.backfill.swap import prepare, swap_at_rest
from weir.pipelines.tasks.epoch import task_rows
from weir.state.changelog.as_of import state_as_of
from weir.state.changelog.compaction import Compaction
from weir.state.changelog.following import Follower
from weir.state.changelog.verify import verify_task
from weir.state.commit.audit import newest_commits, offset_breaks, row_count
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import AppendTable, read_table
from weir.state.errors import FencedError, SwapRefusedError, TableSchemaError
from weir.state.types import StateId

pytestmark = pytest.mark.faults

TABLES = (*OUTPUTS, "totals")
SHARE = 0.6
DAY_MS = 24 * 3600 * 1000


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A folder with the live application, which has read some of the records, and a complete backfill of everything by
    the fixed program."""
    place = sensors(tmp_path_factory.mktemp("template"), share=SHARE)
    place.run()
    run_shadow(place, begun_whole(place, mended), mended)
    return place


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What the fixed program gives when it runs from the beginning, at the swap and at the end."""
    place = sensors(tmp_path_factory.mktemp("mended"), mended, share=SHARE)
    found = []
    for share in (SHARE, 1.0):
        give(place, share)
        place.run()
        found.append(contents(place))
    return found


def contents(place: Place, tables=TABLES) -> dict[str, pl.DataFrame]:
    """The current rows of outputs and changelogs, without epochs."""
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
        specs = topology.sub_topology(topology.task_of(name).sub_topology).stores
        verify_task(
            place.warehouse,
            place.application.id,
            place.folder / "state" / name,
            specs,
            lambda commit: task_rows(commit.positions, commit.clocks),
        )


def swap(place: Place, shadow, on_step=lambda step: None, program: Application = mended) -> int:
    return swap_everything(place.warehouse, program, shadow, on_step)


def test_the_application_continues_as_if_the_new_program_had_run_from_the_beginning(place, shadow, results):
    at_swap, at_end = results
    before = contents(place)
    assert not any(before[name].equals(at_swap[name]) for name in (*TABLES, "store ever"))
    epoch = newest_commit(place.warehouse, "sensors").epoch
    assert swap(place, shadow) == epoch + 2
    assert_same(contents(place), at_swap)
    history = {f"store {store.name}": state_as_of(place.warehouse / "sensors", store, epoch) for store in stores(place)}
    assert_same(
        {name: rows.drop("_epoch") for name, rows in history.items()},
        {name: rows for name, rows in before.items() if name in history},
    )
    place.application = mended
    place.run()
    assert len(place.restores.done) == len(newest_commit(place.warehouse, "sensors").tasks)
    assert_same(contents(place), at_swap)
    assert_stores_are_the_changelogs(place)
    give(place, 1.0)
    place.run()
    assert_same(contents(place), at_end)
    assert_stores_are_the_changelogs(place)
    assert list(shadows(place.warehouse, place.folder / "shadows", "sensors")) == []


def test_a_swap_that_dies_before_its_pivot_leaves_everything_as_it_was(place, shadow, results):
    before = contents(place)
    for step in ("claimed", "differences counted", "swap files written", "changelogs written"):
        with pytest.raises(KilledError):
            swap(place, shadow, dying_at(step))
        assert_same(contents(place), before)
    place.run()  # the old program may continue as if nothing had happened
    assert_same(contents(place), before)
    assert not place.restores.done
    swap(place, shadow)
    assert_same(contents(place), results[0])


@pytest.mark.parametrize("place_of_death", ["pivot appended", "settled", "totals", "_changelog/ever"])
def test_a_swap_that_dies_after_its_pivot_is_carried_out(place, shadow, results, place_of_death, monkeypatch):
    """At a step, or at one table when all others have their rows."""
    append, tables = AppendTable.append, ("totals", "kinds", "_changelog/ever", "_changelog/by_hour")

    def dying(table: AppendTable, *arguments) -> None:
        if table.name == place_of_death:
            raise KilledError(table.name)
        append(table, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(AppendTable, "append", dying)
        with pytest.raises(KilledError):
            swap(place, shadow, dying_at(place_of_death))
    versions = {name: AppendTable(place.warehouse / "sensors" / name, name, "sensors").version for name in tables}
    behind = [name for name, version in versions.items() if version < max(versions.values())]
    assert behind == ([place_of_death] if place_of_death in tables else [])
    place.application = mended
    place.run()
    assert_same(contents(place), results[0])
    assert_stores_are_the_changelogs(place)
    assert not shadow.folder.path.exists()
    epoch = newest_commit(place.warehouse, "sensors").epoch
    assert swap(place, shadow) < epoch, "swapping again changes nothing"
    assert_same(contents(place), results[0])


@pytest.mark.parametrize(
    ("undecided_at", "decided_at"),
    [
        (("claimed", "differences counted", "swap files written", "changelogs written"), "pivot appended"),
        ((), "table appended"),
        ((), "settled"),
    ],
)
def test_a_process_killed_while_it_swaps_leaves_all_of_the_old_or_all_of_the_new(
    place, shadow, results, undecided_at, decided_at
):
    before = contents(place)
    for step in undecided_at:
        swap_killed_at(place, shadow, step)
        assert_same(contents(place), before)
    swap_killed_at(place, shadow, decided_at)
    place.application = mended
    place.run()
    assert_same(contents(place), results[0])
    assert_stores_are_the_changelogs(place)


@pytest.mark.parametrize("step", ["append redone", "state written"])
def test_the_driver_that_comes_after_a_swap_may_die_too(place, shadow, results, step):
    with pytest.raises(KilledError):
        swap(place, shadow, dying_at("pivot appended"))
    place.application = mended
    with pytest.raises(KilledError):
        place.run(dying_at(step, 2))
    place.run()
    assert_same(contents(place), results[0])
    give(place, 1.0)
    place.run()
    assert_same(contents(place), results[1])
    assert_stores_are_the_changelogs(place)


def test_compaction_carries_out_a_swap_that_died_and_the_tasks_restore_from_what_it_leaves(place, shadow, results):
    with pytest.raises(KilledError):
        swap(place, shadow, dying_at("pivot appended"))
    compaction = Compaction(place.warehouse, "sensors", is_whole=True, tombstone_retention_ms=0)
    list(compaction.run(compaction.tables()))
    assert_same(contents(place), results[0])
    place.application = mended
    give(place, 1.0)
    place.run()
    assert_same(contents(place), results[1])
    assert_stores_are_the_changelogs(place)


def test_the_live_run_continues_beside_the_backfill_which_catches_up_before_the_swap(place, shadow, results):
    give(place, 1.0)
    place.run()
    live = newest_commit(place.warehouse, "sensors")
    assert is_behind(mended, live, newest_commit(shadow.warehouse, shadow.id))
    before = contents(place)
    with pytest.raises(SwapRefusedError, match=r"at offset \d+ of topic 'readings', partition \d.* swap it again"):
        swap(place, shadow)
    assert_same(contents(place), before)
    with pytest.raises(KilledError):
        run_on(place, shadow, mended, dying_at("state written", 6))
    assert is_behind(mended, live, newest_commit(shadow.warehouse, shadow.id))

    def at_the_last_pivot(step: str) -> None:
        if step == "pivot appended" and not is_behind(mended, live, newest_commit(shadow.warehouse, shadow.id)):
            raise KilledError(step)

    with pytest.raises(KilledError):
        run_on(place, shadow, mended, at_the_last_pivot)
    swap(place, shadow)  # first brings the shadow's tables up to its log
    assert_same(contents(place), results[1])
    assert not shadow.state_folder.exists()
    place.application = mended
    place.run()
    assert_same(contents(place), results[1])
    assert_stores_are_the_changelogs(place)


def test_a_backfill_of_another_topic_of_the_same_name_is_not_swapped_in(place, shadow):
    live, mine = newest_commit(place.warehouse, "sensors"), newest_commit(shadow.warehouse, shadow.id)
    known = replace(live, topic_ids={"readings": "first"})
    _require_same_place(mended, shadow, known, replace(mine, topic_ids={"readings": "first"}))
    _require_same_place(mended, shadow, known, mine)
    with pytest.raises(SwapRefusedError, match="topic 'readings' was deleted and recreated"):
        _require_same_place(mended, shadow, known, replace(mine, topic_ids={"readings": "second"}))


def test_the_swapped_positions_keep_the_leader_epochs_of_the_live_ones(place, shadow):
    live, mine = newest_commit(place.warehouse, "sensors"), newest_commit(shadow.warehouse, shadow.id)
    led = {
        name: replace(
            task, leader_epochs={topic: dict.fromkeys(offsets, 3) for topic, offsets in task.positions.items()}
        )
        for name, task in live.tasks.items()
    }
    swapped = _tasks(replace(live, tasks=led), mine, StateId(9, 9), ())
    found = [task.leader_epochs["readings"] for task in swapped.values() if task.positions]
    assert found == [dict.fromkeys(task.positions["readings"], 3) for task in mine.tasks.values() if task.positions]
    assert found


def test_a_driver_that_runs_anyway_is_fenced_and_one_that_takes_over_fences_the_swap(place, shadow, results):
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
    place.application = mended
    place.run()
    assert_same(contents(place), results[1])


def test_the_audit_finds_nothing_wrong_with_a_swap(place, shadow):
    swap(place, shadow)
    place.application = mended
    give(place, 1.0)
    place.run()
    window = newest_commits(place.warehouse, "sensors", 100)
    assert [each.sentence for each in offset_breaks(window)] == []
    for table in TABLES:
        count = row_count(place.warehouse, "sensors", table, window)
        assert count is None or count.is_right, (table, count)


def test_a_backfill_of_days_begun_before_is_refused_and_one_begun_after_is_not(place, shadow, results):
    of_days = made(place, DAYS, mended)
    prepare(of_days)
    swap(place, shadow)
    with pytest.raises(SwapRefusedError, match=r"replaced some of its days.*run it again"):
        swap_at_rest(place.warehouse, mended, of_days.id)
    place.application = mended
    place.run()
    again = made(place, DAYS)
    prepare(again)
    swap_at_rest(place.warehouse, mended, again.id)
    assert_same(contents(place), results[0])


class OwnStore:
    """Follows a store, in memory."""

    name = "own"

    def __init__(self, key) -> None:
        self.key, self.rows, self.offsets = list(key), {}, {}

    def put_rows(self, rows: pl.DataFrame) -> None:
        for row in rows.iter_rows(named=True):
            key = tuple(row[name] for name in self.key)
            self.rows.pop(key, None)
            if not row["_deleted"]:
                self.rows[key] = row

    def commit(self, offsets) -> None:
        self.offsets.update(offsets)

    def committed_offset(self, topic: str, partition: int) -> int | None:
        return self.offsets.get(topic, {}).get(partition)

    def manages_offsets(self) -> bool:
        return True

    def approximate_num_uncommitted_bytes(self) -> int:
        return 0


def test_stores_that_follow_are_told_of_changes_and_deletions(place, tmp_path):
    specs = [store for store in stores(place) if store.name in ("ever", "by_kind")]
    give_more(place, SHARE)
    followers = {spec.name: Follower(place.warehouse / "sensors", spec, OwnStore(spec.key), tmp_path) for spec in specs}
    for at_swap in (False, True):
        if at_swap:
            swap(place, run_shadow(place, begun_whole(place, GROWN), GROWN), program=GROWN)
        for spec in specs:
            followers[spec.name].follow()
            standing = read_table(place.warehouse / "sensors" / "_changelog" / spec.name)
            followed = followers[spec.name]._store.rows
            assert followed.keys() == set(standing.select(spec.key.names()).rows())
            assert {row["_ts"] for row in followed.values()} == set(standing["_ts"])
            assert bool(followed) == (spec.name == "ever" or not at_swap)


def build_grown() -> Application:
    """Another topology over the same topic and two more: a store beside an existing one, a versioned one, rows that
    expire under keys too long for a store, and nothing after a repartition."""
    builder = StreamsBuilder()
    names = builder.table(
        "names", key=String("sensor"), value=String("name"), store="names", history_retention=timedelta(days=2)
    )
    notes = builder.table("notes", key=String("note"), value=String("text"), store="notes", ttl=timedelta(days=1))
    readings = builder.stream("readings", key=String("sensor"), value=Json(Reading))
    readings.left_join(names).to_delta("named")
    readings.group_by_key().agg("ever", readings=Count(), high=Sum(col("value") >= 300)).to_delta("totals")
    readings.group_by_key().agg("peak", peak=Max("value")).to_delta("peaks")
    notes.to_delta("notes")
    return Application("sensors", builder, commit_interval=timedelta(milliseconds=1))


GROWN = build_grown()
GROWN_TABLES = ("named", "totals", "peaks", "notes")


def give_more(place: Place, share: float) -> None:
    """Names and notes, some of them deleted, over the same days."""
    give(place, share)
    days = round(6 * share)
    for partition in (0, 1):
        sensors_of = [b"sensor-%d" % number for number in range(4) if number % 2 == partition]
        place.topics.rows["names", partition] = [
            (sensor, None if day % 4 == 3 else b"name-%d" % day, DAYS.start_ms + (day - 2) * DAY_MS)
            for day in range(0, days, 2)
            for sensor in sensors_of[day // 4 :]
        ]
        place.topics.rows["notes", partition] = [
            (
                b"n%d" % (number % 5) * 300,
                None if number % 7 == 6 else b"text-%d" % number,
                DAYS.start_ms + (number // 4 - 2) * DAY_MS,
            )
            for number in range(partition, 4 * days, 2)
        ]


def test_another_topology_is_swapped_in_with_its_state_and_its_topics(place, shadow, tmp_path_factory):
    undisturbed = Place(GROWN, Topics(), tmp_path_factory.mktemp("grown"), max_records=30)
    give_more(place, SHARE)
    old = {table: output(place, table) for table in ("raised", "hours")}
    of_grown = run_shadow(place, begun_whole(place, GROWN), GROWN)
    give_more(place, 0.9)
    place.run()  # the live run does not read the new topics
    run_on(place, of_grown, GROWN)
    swap(place, of_grown, program=GROWN)
    place.application = GROWN
    for share in (0.9, 1.0):
        give_more(place, share)
        give_more(undisturbed, share)
        undisturbed.run()
        place.run()
        wanted = contents(undisturbed, GROWN_TABLES)
        assert all(rows.height for rows in wanted.values())
        assert_same(contents(place, GROWN_TABLES), wanted)
        assert_stores_are_the_changelogs(place)
    for table, rows in old.items():
        assert output(place, table).height >= rows.height, "outputs that the program no longer has stay"
    for store in ("by_kind", "by_hour"):
        assert read_table(place.warehouse / "sensors" / "_changelog" / store).is_empty()
    with pytest.raises(SwapRefusedError, match=r"topology is not the one that made it.*run the backfill again"):
        swap(place, shadow, program=GROWN)


def test_a_backfill_of_everything_without_the_beginning_is_refused(place, tmp_path):
    with pytest.raises(BeginningLostError, match=r"begins at offset 1: .* give the program another id"):
        begun_whole(place, oldest=1)
    with pytest.raises(NoCutError, match="there is no topic 'names'; create it first"):
        begun_whole(place, GROWN)
    builder = StreamsBuilder()
    builder.stream("readings", key=String("sensor"), value=Json(Reading)).group_by_key().agg(
        "ever", last=Max("value")
    ).to_delta("totals")
    with pytest.raises(TableSchemaError, match=r"'totals'.*readings.*another name"):
        begun_whole(place, Application("sensors", builder))
    with pytest.raises(NoCutError, match="not committed anything; run it first"):
        begun_whole(replace(place, folder=tmp_path / "empty"))


def test_only_an_existing_and_complete_backfill_is_swapped_in(place, shadow):
    before = contents(place)
    broken_off = begun_whole(place)
    with pytest.raises(KilledError):
        run_shadow(place, broken_off, on_step=dying_at("settled", 2))
    for unknown in (broken_off, replace(shadow, id="everything-000000")):
        with pytest.raises(UnknownBackfillError, match=r"is not complete.*weir backfill list"):
            swap(place, unknown, program=place.application)
        assert not (shadow.warehouse / "everything-000000").exists()
    assert_same(contents(place), before)
