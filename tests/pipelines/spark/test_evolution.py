"""Programs change between runs and their stores go on: compared with a plain count over all records."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from tests.examples import combined
from tests.faults.dying import KilledError, dying_at
from tests.pipelines.spark.evolving import (
    CHANGES,
    MINUTE,
    Changed,
    Click,
    clicks,
    counted,
    pages,
    pages_counted,
    store,
    users,
)
from tests.pipelines.spark.inline import Place, Topics
from weir import Application, BufferConfig, Count, Json, Max, StreamsBuilder, String, Suppressed, TimeWindows
from weir.pipelines.spark.errors import StorePlacementError, TaskFailedError, TopologyChangedError
from weir.pipelines.topology.changes import Fate, compare
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_rows, read_table
from weir.state.engine.instances import instances
from weir.state.errors import TableSchemaError


@pytest.fixture
def place(tmp_path):
    return Place(Changed().application(), Topics({("clicks", 0): clicks(0, 300)}), tmp_path, max_records=70)


@combined("name,loses_disk", CHANGES, [False, True])
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


def two_topics(*, has_visits: bool) -> Application:
    """Counts of clicks, and of visits beside them: by user, and by page and minute once that is closed."""
    builder = StreamsBuilder()
    builder.stream("clicks", key=String("user"), value=Json(Click)).group_by_key().agg("n", n=Count()).to_delta("n_out")
    if has_visits:
        visits = builder.stream("visits", key=String("user"), value=Json(Click))
        visits.group_by_key().agg("visits", n=Count()).to_delta("visits_out")
        visits.group_by("page").windowed_by(TimeWindows.of_size_and_grace(MINUTE, MINUTE)).agg(
            "pages", n=Count()
        ).suppress(Suppressed.until_window_closes(BufferConfig.unbounded())).to_delta("pages_out")
    return Application("clicks", builder, commit_interval=timedelta(milliseconds=1))


@pytest.mark.parametrize("loses_disk", [False, True])
def test_stores_come_back_with_their_topic_which_goes_on_where_it_was_left(tmp_path, loses_disk):
    place = Place(two_topics(has_visits=True), Topics({("clicks", 0): clicks(0, 50)}), tmp_path)
    place.topics.rows["visits", 0] = clicks(0, 300)
    place.run()
    place.application = two_topics(has_visits=False)
    place.topics.rows["visits", 0] += clicks(300, 200)
    for number in range(2):
        place.topics.rows["clicks", 0] += clicks(50 + number, 1)
        assert place.run().records_in == 1
    place.application = two_topics(has_visits=True)
    change = compare(newest_commit(place.warehouse, "clicks"), place.application.topology, dict.fromkeys(range(9), 1))
    assert (change.topics_kept, change.topics_added) == (("clicks", "visits"), ())
    place.topics.rows["visits", 0] += clicks(0, 1)  # late for a window that is closed
    if loses_disk:
        for data in place.state_folder.glob("*/*/data.mdb"):
            data.unlink()
    summary = place.run()
    assert (summary.records_in, summary.totals["late_records"]) == (201, 1)
    assert sorted(store(place, "visits").select("user", "n").iter_rows()) == sorted(
        (f"user-{number}", 25 + (number == 0)) for number in range(20)
    )
    emitted = read_rows(place.warehouse / "clicks" / "pages_out")
    assert emitted.height == len(pages(place))
    assert pages(place) == {
        (f"page-{page}", minute): 20
        for page in range(3)
        for minute in range(7)  # stream time is at 499 s
    }


@pytest.mark.parametrize("has_page", [False, True])
def test_the_clocks_of_a_store_stay_when_another_whose_name_is_a_part_of_its_name_begins(tmp_path, has_page):
    def application(**more: Max) -> Application:
        builder = StreamsBuilder()
        users = builder.stream("clicks", key=String("user"), value=Json(Click)).group_by_key()
        users.windowed_by(TimeWindows.of_size_and_grace(MINUTE, MINUTE)).agg("pages", n=Count(), **more).to_delta("out")
        if more and has_page:
            users.agg("page", n=Count()).to_delta("page_out")
        return Application("clicks", builder, commit_interval=timedelta(milliseconds=1))

    place = Place(application(), Topics({("clicks", 0): clicks(0, 300)}), tmp_path)
    place.run()
    place.application = application(most=Max("ms"))
    place.topics.rows["clicks", 0] += clicks(0, 1)
    assert place.run().totals["late_records"] == 1


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


@combined("name,step", ["a nullable field", "a split", "all"], STEPS)
def test_a_crash_at_any_step_of_the_first_run_of_another_program_loses_nothing(place, name, step):
    place.run()
    place.topics.rows["clicks", 0] += clicks(300, 200)
    with pytest.raises(KilledError):  # so the tasks that go on are ahead of the commit
        place.run(dying_at("state written", 2))
    place.application = CHANGES[name].application()
    with pytest.raises(KilledError):
        place.run(dying_at(step, 1 if step == "rolled back" else 2))
    place.run()
    assert users(place) == counted(place)
    assert pages(place) == pages_counted(place)


def windowed(grace: timedelta, limits: BufferConfig, retention: timedelta | None = None) -> Application:
    """Final counts of pages by minute."""
    builder = StreamsBuilder()
    stream = builder.stream("clicks", key=String("user"), value=Json(Click))
    stream.group_by("page").windowed_by(TimeWindows.of_size_and_grace(MINUTE, grace), retention=retention).agg(
        "pages", n=Count()
    ).suppress(Suppressed.until_window_closes(limits)).to_stream().to_delta("pages_out")
    return Application("clicks", builder, commit_interval=timedelta(milliseconds=1))


def kept_with(graces: list[tuple[int, timedelta]], rows: list) -> dict[tuple[str, int], int]:
    """Counts of final windows by a loop over the records: the grace changes before each of ``graces``' records, and a
    window that was closed stays so. Windows that never close are left out."""
    counts: dict[tuple[str, int], int] = {}
    closed_upto, newest, grace_ms = -1, 0, 0
    for number, (_, value, time_ms) in enumerate(rows):
        for at, grace in graces:
            if at == number:
                grace_ms = grace // timedelta(milliseconds=1)
        newest = max(newest, time_ms)
        closed_upto = max(closed_upto, (newest - grace_ms) // 60_000 - 1)  # the last minute that is closed
        minute = time_ms // 60_000
        if minute > closed_upto:
            at_page = json.loads(value)["page"], minute
            counts[at_page] = counts.get(at_page, 0) + 1
    return {at: n for at, n in counts.items() if at[1] <= closed_upto}


def shuffled(first: int, count: int) -> list:
    """Records of which every third is up to 150 s late."""
    rows = clicks(first, count)
    return [
        (key, value, max(0, time_ms - (number * 37 % 150) * 1_000 * (number % 3 == 0)))
        for number, (key, value, time_ms) in enumerate(rows)
    ]


@pytest.mark.parametrize("retention", [None, timedelta(minutes=30)])
@pytest.mark.parametrize("limits", [BufferConfig.unbounded(), BufferConfig.max_records(10_000).shut_down_when_full()])
@pytest.mark.parametrize(("before", "now"), [(2 * MINUTE, MINUTE / 2), (MINUTE / 2, 3 * MINUTE), (MINUTE, MINUTE)])
def test_a_window_closes_once_whatever_the_grace_before_and_after(tmp_path, before, now, limits, retention):
    place = Place(
        windowed(before, limits, retention), Topics({("clicks", 0): shuffled(0, 400)}), tmp_path, max_records=60
    )
    place.run()
    place.application = windowed(now, limits, retention)
    place.topics.rows["clicks", 0] += shuffled(400, 400)
    place.run()
    emitted = read_rows(place.warehouse / "clicks" / "pages_out")
    wanted = kept_with([(0, before), (400, now)], place.topics.rows["clicks", 0])
    assert pages(place) == wanted
    assert emitted.height == len(wanted), "each once"


@pytest.mark.parametrize(
    "advice",
    [
        windowed(10 * MINUTE, BufferConfig.max_records(1_000).shut_down_when_full()),
        windowed(MINUTE / 10, BufferConfig.max_records(10).shut_down_when_full()),
        windowed(10 * MINUTE, BufferConfig.max_records(10).spill_to_disk_when_full()),
    ],
    ids=["raise the limit", "shorten the grace", "spill to disk"],
)
def test_each_advice_of_a_full_buffer_goes_on_with_its_state(tmp_path, advice):
    rows = clicks(0, 500)
    full = windowed(10 * MINUTE, BufferConfig.max_records(10).shut_down_when_full())
    place = Place(full, Topics({("clicks", 0): rows[:150]}), tmp_path, max_records=30)
    place.run()
    place.topics.rows["clicks", 0] = rows
    with pytest.raises(TaskFailedError, match="raise the limit, shorten the windows' grace, or write"):
        place.run()
    place.application = advice
    place.topics.rows["clicks", 0] = rows + clicks(1_500, 1)
    place.run()
    wanted = {at: n for at, n in pages_counted(place).items() if at[1] < 20}
    assert pages(place) == wanted


def test_what_a_suppression_held_when_it_was_taken_out_is_in_no_output_until_its_key_is_updated(tmp_path):
    def program(is_suppressed: bool) -> Application:
        builder = StreamsBuilder()
        stream = builder.stream("clicks", key=String("user"), value=Json(Click))
        table = stream.group_by_key().agg("users", n=Count())
        if is_suppressed:
            limit = Suppressed.until_time_limit(timedelta(hours=1), BufferConfig.unbounded())
            table = table.suppress(limit.with_name("held"))
        table.to_delta("out", mode="upsert")
        return Application("clicks", builder)

    def found() -> dict[str, int]:
        rows = read_rows(place.warehouse / "clicks" / "_updates" / "out")
        return dict(rows.sort("_epoch", "_seq").select("user", "n").iter_rows())

    place = Place(program(True), Topics({("clicks", 0): clicks(0, 20)}), tmp_path)
    place.run()
    place.application = program(False)
    change = compare(newest_commit(place.warehouse, "clicks"), place.application.topology, {0: 1})
    (held,) = (each for each in change.stores if each.store == "held-store")
    assert (held.fate, "may reach no output" in held.notes[0]) == (Fate.IS_KEPT_ASIDE, True)
    place.topics.rows["clicks", 0] += clicks(20, 1)
    place.run()
    assert found() == {"user-0": 2}
