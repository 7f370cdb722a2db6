"""Topics get more partitions: an application goes on as if they had had as many from the beginning.

The random test tries the same few examples every time; ``ORDER_EXAMPLES`` sets how many others to draw instead.
"""

from __future__ import annotations

import functools
import os
import pickle
import signal
import tempfile
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faults.dying import KilledError, dying_at, signalled_at
from tests.forked import ended
from tests.pipelines.repartitioning.growing import (
    MS,
    PROGRAMS,
    TIMELESS,
    WINDOWS,
    Given,
    Growing,
    close,
    dealt,
    end,
    give,
    grow,
    misplaced,
    outputs,
    place,
    plan,
    require_changelogs,
    rows_held,
    stores,
)
from tests.pipelines.spark.inline import Topics
from weir import Application, Count, Json, StreamsBuilder, String, Sum
from weir.pipelines.operators.suppress import HELD_BYTES
from weir.pipelines.repartitioning.errors import (
    MisplacedKeyError,
    OwnKeysError,
    RowsUnderWayError,
    StoresNotDealtError,
    UnreadRecordsError,
)
from weir.pipelines.spark.errors import PartitionCountError
from weir.state.changelog.compaction import Compaction
from weir.state.commit.protocol import Committer, newest_commit
from weir.state.errors import FencedError

EXAMPLES = int(os.environ.get("ORDER_EXAMPLES", "8"))
TRIED = settings(
    max_examples=EXAMPLES,
    derandomize="ORDER_EXAMPLES" not in os.environ,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@st.composite
def records(draw: st.DrawFn, first_ms: int, most: int = 60) -> list:
    """Records in the order of their times, of keys that come often."""
    drawn = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["left", "right"]),
                st.integers(0, 9).map(lambda number: f"k{number}"),
                st.integers(0, 9),
                st.sampled_from("abcd"),
            ),
            min_size=most // 2,
            max_size=most,
        )
    )
    return [(*each, first_ms + 2 * at) for at, each in enumerate(drawn)]


@st.composite
def growths(draw: st.DrawFn) -> tuple[str, int, int]:
    """A program, the partitions that its topics have, and how many they get."""
    name, before = draw(st.sampled_from(sorted(PROGRAMS))), draw(st.integers(1, 4))
    now = draw(st.integers(before + 1, 9)) if name in TIMELESS else before * draw(st.integers(2, 3))
    return name, before, now


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_kind_of_store_goes_on(tmp_path, name):
    before = [("left" if n % 2 else "right", f"k{n * 7 % 13}", n % 9, "abc"[n % 3], n * 2) for n in range(90)]
    after = [("left" if n % 3 else "right", f"k{n * 3 % 13}", n % 7, "abc"[n % 3], n * 2) for n in range(90, 170)]
    require_same(name, 2, 4, before, after, tmp_path)


@pytest.mark.slow
@TRIED
@given(growth=growths(), before=records(0), after=records(300))
def test_a_run_goes_on_as_if_there_had_been_as_many_partitions_from_the_beginning(growth, before, after):
    with tempfile.TemporaryDirectory() as folder:
        require_same(*growth, before, after, Path(folder))


def require_same(name: str, count: int, more: int, before: list, after: list, folder: Path) -> None:
    there, fresh = place(name, folder / "grown", count), place(name, folder / "fresh", more)
    give(there, before)
    there.run()
    held, read = rows_held(there), outputs(there)
    grow(there, more)
    dealt(there)
    close()
    assert there.run().records_in == 0
    assert rows_held(there) == held, "no row is lost, doubled or changed"
    assert outputs(there) == read
    assert misplaced(there) == []
    require_changelogs(there)
    for each, given_first in ((there, []), (fresh, before)):
        give(each, given_first)
        give(each, after)
        end(each)
        each.run()
        close()
    assert outputs(there) == outputs(fresh)
    assert misplaced(there) == []


BEFORE_THE_PIVOT = ("claimed", "changelogs written")
AFTER_THE_PIVOT = ("pivot appended", "table appended", "settled")
FIRST = [("left" if n % 2 else "right", f"k{n * 7 % 13}", n % 9, "abc"[n % 3], n * 2) for n in range(60)]
THEN = [("left" if n % 3 else "right", f"k{n * 3 % 13}", n % 7, "abc"[n % 3], n * 2) for n in range(60, 120)]


@pytest.fixture(params=["foreign", "windowed"])
def grown(request, tmp_path):
    """An application that has read everything, whose topics have 4 partitions in the place of 2."""
    there = place(request.param, tmp_path / "grown", 2)
    give(there, FIRST)
    there.run()
    grow(there, 4)
    return there


@pytest.fixture(scope="module")
def outputs_of(tmp_path_factory):
    """By program, the outputs of an application whose topics had 4 partitions from the beginning."""

    @functools.cache
    def found(name):
        fresh = place(name, tmp_path_factory.mktemp("fresh"), 4)
        for records in (FIRST, THEN):
            give(fresh, records)
        end(fresh)
        fresh.run()
        close()
        return outputs(fresh)

    return found


@pytest.fixture
def wanted(grown, outputs_of):
    return outputs_of(grown.name)


def goes_on(there, wanted, records=THEN) -> None:
    give(there, records)
    end(there)
    there.run()
    close()
    assert outputs(there) == wanted
    assert misplaced(there) == []


@pytest.mark.parametrize("step", BEFORE_THE_PIVOT)
def test_one_that_dies_before_its_pivot_changes_nothing_and_the_next_one_begins_anew(grown, wanted, step):
    before = newest_commit(grown.warehouse, "growing")
    killed_at(grown, step)
    assert newest_commit(grown.warehouse, "growing") == before
    with pytest.raises(PartitionCountError):
        grown.run()
    killed_at(grown, step)
    dealt(grown)
    goes_on(grown, wanted)


@pytest.mark.parametrize("step", AFTER_THE_PIVOT)
def test_one_that_dies_after_its_pivot_is_carried_out_by_the_next_start(grown, wanted, step):
    killed_at(grown, step)
    assert plan(grown).resized == (), "there is nothing left to be dealt out"
    goes_on(grown, wanted)


@pytest.mark.parametrize("step", ["append redone", "state written"])
def test_the_driver_that_comes_after_it_may_die_too(grown, wanted, step):
    with pytest.raises(KilledError):
        dealt(grown, dying_at("pivot appended"))
    give(grown, THEN)
    with pytest.raises(KilledError):
        grown.run(dying_at(step))
    close()
    goes_on(grown, wanted, ())


def test_a_driver_that_runs_anyway_is_fenced_and_one_that_takes_over_fences_it(tmp_path):
    there = place("totals", tmp_path, 2)
    give(there, FIRST)
    there.run()
    driver = there.driver()
    give(there, THEN)
    grow(there, 4)
    dealt(there)
    with pytest.raises(FencedError):
        driver.run(Event(), until_caught_up=True)

    def taken_over(step: str) -> None:
        if step == "changelogs written":
            Committer(there.warehouse, "growing", (), fingerprint="other").claim()

    grow(there, 8)
    before = newest_commit(there.warehouse, "growing")
    with pytest.raises(FencedError):
        dealt(there, taken_over)
    assert newest_commit(there.warehouse, "growing") == before


def test_a_compaction_keeps_what_was_dealt_out(grown, wanted):
    killed_at(grown, "pivot appended")
    compaction = Compaction(grown.warehouse, "growing", is_whole=True, tombstone_retention_ms=0)
    list(compaction.run(compaction.tables()))
    goes_on(grown, wanted)


def test_stores_grow_again_and_again(tmp_path):
    there, fresh = place("suppressed", tmp_path / "grown", 1), place("suppressed", tmp_path / "fresh", 6)
    for count, records in ((1, FIRST), (2, THEN), (6, FIRST)):
        grow(there, count)
        if count > 1:
            dealt(there)
        give(there, records)
        there.run()
        close()
        give(fresh, records)
    for each in (there, fresh):
        end(each)
        each.run()
        close()
    assert outputs(there) == outputs(fresh)
    assert misplaced(there) == []


def test_a_key_that_is_not_where_the_partitioner_puts_it_is_named(tmp_path):
    there = place("totals", tmp_path, 2)
    for number in range(2):
        there.topics.rows["left", number].append((b"k1", b'{"num": 1, "word": "a"}', 5))
    there.run()
    grow(there, 4)
    with pytest.raises(MisplacedKeyError, match=r"key \('k1',\) of the store 'totals' is in the task of partition"):
        dealt(there)


def test_buffers_know_how_many_bytes_they_hold(tmp_path):
    there = place("suppressed", tmp_path, 2)
    give(there, FIRST)
    there.run()
    before = newest_commit(there.warehouse, "growing")
    grow(there, 4)
    dealt(there)
    after = newest_commit(there.warehouse, "growing")
    clock = HELD_BYTES + "held-store"
    held = [[task.clocks[clock] for name, task in commit.tasks.items() if "left" in name] for commit in (before, after)]
    assert list(map(len, held)) == [2, 4]
    assert sum(held[0]) == sum(held[1]) > 0


@pytest.mark.parametrize("now", [1, 3, 4, 5])
def test_a_repartition_that_asks_for_other_tasks_keeps_its_state(tmp_path, now):
    there, fresh = (
        replace(place("totals", tmp_path / name, 2), application=application_moving(count))
        for name, count in (("grown", 2), ("fresh", now))
    )
    give(there, FIRST)
    there.run()
    held = rows_held(there)
    there.application = application_moving(now)
    with pytest.raises(PartitionCountError):
        there.run()
    dealt(there)
    close()
    there.run()
    assert rows_held(there) == held
    give(there, THEN)
    there.run()
    for records in (FIRST, THEN):
        give(fresh, records)
    fresh.run()
    close()
    assert outputs(there) == outputs(fresh)
    assert misplaced(there) == []
    require_changelogs(there)
    commit = newest_commit(there.warehouse, "growing")
    taken = sum(task.totals.get("records_in", 0) for task in commit.tasks.values())
    assert taken == 2 * len(FIRST + THEN), "from the topics, and behind the repartition"


def application_moving(count: int) -> Application:
    builder = StreamsBuilder()
    left, right = (builder.stream(topic, key=String("key"), value=Json(Given)) for topic in ("left", "right"))
    moved = left.merge(right).map(key="word", value={"num": "num"}).repartition("words", partitions=count)
    moved.group_by_key().agg("words", n=Count(), total=Sum("num")).to_delta("out")
    return Application("growing", builder, commit_interval=MS)


def test_new_partitions_are_read_from_their_first_record_wherever_the_program_starts(tmp_path):
    there = place("totals", tmp_path, 2)
    give(there, FIRST)
    there.run()
    grow(there, 4)
    give(there, THEN)
    dealt(there)
    tasks = newest_commit(there.warehouse, "growing").tasks
    assert [tasks[f"left_{number}"].positions["left"][number] for number in (2, 3)] == [0, 0]
    assert tasks["left_0"].positions["left"][0] > 0


def test_windows_of_tasks_at_different_times_do_not_meet(tmp_path):
    there = place("final", tmp_path, 2)
    give(there, FIRST)
    there.run()
    grow(there, 3)
    with pytest.raises(StoresNotDealtError, match="3 is no multiple of 2, keys of tasks at different times would meet"):
        plan(there)


def killed_at(there, step: str) -> None:
    """Deal out in a process that is killed with SIGKILL at ``step``."""
    close()
    code = ended(_deal, there.name, there.folder, step)
    assert code == -signal.SIGKILL, f"it did not reach {step!r}"


def _deal(name: str, folder: Path, step: str) -> None:
    dealt(place(name, folder, 4), signalled_at(step))


@pytest.mark.parametrize(
    "error",
    [
        StoresNotDealtError("shop", "of a reason"),
        OwnKeysError("shop", ("a", "b")),
        MisplacedKeyError("shop", "a", "('k',)", 1, 2),
        UnreadRecordsError("shop", "orders", 1, 7, is_split=False),
        RowsUnderWayError("shop", 3),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_say_the_same_in_another_process(error):
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def beside_a_wider_topic(windows: bool = False) -> Application:
    """Sums of ``left``, whose records also go where those of ``right`` do."""
    builder = StreamsBuilder()
    left, right = (builder.stream(topic, key=String("key"), value=Json(Given)) for topic in ("left", "right"))
    left.merge(right).to_delta("all")
    keyed = left.group_by_key()
    (keyed.windowed_by(WINDOWS) if windows else keyed).agg("totals", n=Count(), total=Sum("num")).to_delta("out")
    return Application("growing", builder, commit_interval=MS)


def narrow_place(folder: Path, left: int, right: int, *, windows: bool = False) -> Growing:
    topics = Topics({(topic, n): [] for topic, count in (("left", left), ("right", right)) for n in range(count)})
    return Growing(beside_a_wider_topic(windows), topics, folder, max_records=7, name="totals")


def give_each(there: Growing, records: list) -> None:
    """Produce each topic's records for as many partitions as it has."""
    for topic in ("left", "right"):
        give(there, [each for each in records if each[0] == topic], among=there.topics.partition_counts()[topic])


@pytest.mark.parametrize("now", [3, 4, 5, 8])
def test_a_topic_that_is_narrower_than_another_one_of_its_tasks_grows(tmp_path, now):
    there, fresh = narrow_place(tmp_path / "grown", 2, 4), narrow_place(tmp_path / "fresh", now, max(now, 4))
    give_each(there, FIRST)
    there.run()
    there.topics.rows |= {("left", number): [] for number in range(2, now)}
    with pytest.raises(PartitionCountError, match=rf"its topics make {max(now, 4)} \(left: {now} partitions, right: 4"):
        there.run()
    dealt(there)
    assert plan(there).resized == ()
    for each, first in ((there, []), (fresh, FIRST)):
        give_each(each, first)
        give_each(each, THEN)
        each.run()
        close()
    assert outputs(there) == outputs(fresh)
    require_changelogs(there)
    held = {(partition, key): value for _, partition, key, value in stores(there)}
    assert held == {(partition, key): value for _, partition, key, value in stores(fresh)}
    assert max(partition for partition, _ in held) >= 2


def test_windows_of_a_topic_that_is_narrower_than_another_one_are_not_dealt_out(tmp_path):
    there = narrow_place(tmp_path, 2, 4, windows=True)
    give_each(there, FIRST)
    there.run()
    there.topics.rows |= {("left", number): [] for number in (2, 3)}
    with pytest.raises(StoresNotDealtError, match="its tasks also read topics with more partitions"):
        plan(there)
    before = outputs(there)
    there.run(accept_state_loss=True)
    close()
    give_each(there, THEN)
    there.run()
    close()
    assert outputs(there) > before, "windows began empty"


def test_a_wider_topic_grows_and_what_a_narrower_one_has_made_stays(tmp_path):
    there, fresh = narrow_place(tmp_path / "grown", 2, 4), narrow_place(tmp_path / "fresh", 2, 8)
    give_each(there, FIRST)
    there.run()
    held = rows_held(there)
    there.topics.rows |= {("right", number): [] for number in range(4, 8)}
    dealt(there)
    for each, first in ((there, []), (fresh, FIRST)):
        give_each(each, first)
        give_each(each, THEN)
        each.run()
        close()
    assert outputs(there) == outputs(fresh)
    assert {place for _, place, _, _ in stores(there)} == {0, 1}
    assert len(held) == len({key for topic, key, *_ in FIRST if topic == "left"})
