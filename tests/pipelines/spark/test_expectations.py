"""Counts of expectations are part of commits: whatever dies, each commit counts the records up to its positions.

The model counts records one by one, in plain Python.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import timedelta

import polars as pl
import pytest
from deltalake import DeltaTable
from polars import col

from tests.examples import combined
from tests.faults.dying import KilledError, dying_at
from tests.pipelines.processors.runs import disturbed_run, written
from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.tasks.letters import read_dead_letters
from weir import Application, BufferConfig, Int64, StreamsBuilder, String, Suppressed, TimeWindows
from weir.pipelines.expectations import ExpectationCounts, expectation_counts
from weir.pipelines.operations.positions import committed_positions, committed_totals
from weir.pipelines.spark.errors import ExpectationViolatedError, TaskFailedError
from weir.state.commit.log import COMMITS, commits_above
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import file_actions


def program(*, mended: bool = False) -> Application:
    """Expectations of each kind that goes on after a violation, on streams, behind a repartition, and on a table."""
    builder = StreamsBuilder()
    records = builder.stream("numbers", key=String("user"), value=Int64("n"))
    records = records.expect("small", col("n") < 100, on_violation="count")
    records = records.expect("positive", col("n") > 0, on_violation="drop")
    records = records.expect("not_13", col("n") % 13 != 0, on_violation="count" if mended else "dead_letter")
    records.to_delta("out")
    by_n = records.select_key(by=col("n") % 5).repartition("moved")
    moved = by_n.expect("not_17", col("n") % 17 != 0, on_violation="count" if mended else "dead_letter")
    moved.group_by_key().count("counts").expect("few", col("count") <= 20).to_delta("counted")
    return Application("numbers", builder, commit_interval=timedelta(milliseconds=1))


def topic(seed: int, count: int) -> list[tuple[bytes, bytes, int]]:
    chance = random.Random(seed)
    return [
        (b"user-%d" % chance.randrange(9), chance.randrange(-10, 110).to_bytes(8, "big", signed=True), number * 100)
        for number in range(count)
    ]


def values(rows) -> list[int]:
    return [int.from_bytes(value, "big", signed=True) for _, value, _ in rows]


def of_topic(numbers: list[int]) -> dict[str, ExpectationCounts]:
    """What the expectations before the repartition count."""
    left = [n for n in numbers if not (n > 0 and n % 13 == 0)]  # a record that is put aside counts only there
    positive = [n for n in left if n > 0]
    small = sum(n < 100 for n in left)
    aside = len(numbers) - len(left)
    return {
        "small": counts(small, len(left) - small),
        "positive": counts(len(positive), len(left) - len(positive), len(left) - len(positive)),
        "not_13": counts(len(positive), aside, aside),
    }


def after_repartition(numbers: list[int]) -> dict[str, ExpectationCounts]:
    moved = [n for n in numbers if n > 0 and n % 13]
    left = [n for n in moved if n % 17]
    sizes = Counter(n % 5 for n in left)
    few = sum(min(size, 20) for size in sizes.values())
    return {
        "not_17": counts(len(left), len(moved) - len(left), len(moved) - len(left)),
        "few": counts(few, len(left) - few),
    }


def model(numbers: list[int]) -> dict[str, ExpectationCounts]:
    return without_zeros({**of_topic(numbers), **after_repartition(numbers)})


def without_zeros(found):
    return {name: each for name, each in found.items() if each != ExpectationCounts()}


def counts(passed: int, failed: int, dropped: int = 0) -> ExpectationCounts:
    return ExpectationCounts(passed=passed, failed=failed, dropped=dropped)


def counted(record) -> dict[str, ExpectationCounts]:
    return without_zeros(expectation_counts(committed_totals(record)))


def commits(place: Place):
    log = place.warehouse / "numbers" / COMMITS.name
    return list(commits_above(log, file_actions(DeltaTable(log)), 0))


def check_every_commit(place: Place) -> None:
    """Each commit counts what the model counts up to its position, and the last one everything."""
    numbers = values(place.topics.rows["numbers", 0])
    for record in commits(place):
        read = numbers[: committed_positions(record)["numbers"].get(0, 0)]
        found = counted(record)
        assert {name: found.get(name) for name in of_topic(read)} == {
            name: each if each != ExpectationCounts() else None for name, each in of_topic(read).items()
        }
    assert counted(newest_commit(place.warehouse, "numbers")) == model(numbers)


@pytest.mark.parametrize("seed", range(12))
def test_every_commit_of_a_disturbed_run_counts_what_it_has_read(seed, tmp_path):
    rows = topic(seed, 150)
    place = disturbed_run(program(), rows, tmp_path, seed)
    check_every_commit(place)
    assert [n for n, _ in written(place, "out", "n")] == [n for n in values(rows) if n > 0 and n % 13]


STEPS = [
    "files written",
    "blob written",
    "state written",
    "pivot appended",
    "table appended",
    "settled",
    "undo dropped",
]


@combined("step,occurrence", STEPS, [1, 4])
def test_killed_at_any_step_every_record_counts_once(step, occurrence, tmp_path):
    place = Place(program(), Topics({("numbers", 0): topic(1, 120)}), tmp_path, max_records=20)
    with pytest.raises(KilledError):
        place.run(dying_at(step, occurrence))
    place.run()
    check_every_commit(place)


def test_counts_of_a_lost_store_are_those_of_the_commit(tmp_path):
    place = Place(program(), Topics({("numbers", 0): topic(2, 120)}), tmp_path, max_records=20)
    place.run()
    before = counted(newest_commit(place.warehouse, "numbers"))
    place.state_folder.rename(tmp_path / "lost")
    place.topics.rows["numbers", 0] += topic(3, 30)
    place.run()
    check_every_commit(place)
    assert before == model(values(place.topics.rows["numbers", 0])[:120])


def test_records_put_aside_are_dead_letters_and_are_taken_once_mended(tmp_path):
    rows = topic(4, 120)
    place = Place(program(), Topics({("numbers", 0): rows}), tmp_path, max_records=30)
    place.run()
    letters = read_dead_letters(place.warehouse / "numbers")
    before = letters.filter(topic="numbers")
    aside = [offset for offset, n in enumerate(values(rows)) if n > 0 and n % 13 == 0]
    assert before["offset"].to_list() == aside
    assert set(before["reason"]) == {"the expectation 'not_13' is violated"}
    assert set(before["operator"]) == {"KSTREAM-EXPECT-not_13"}
    moved = letters.filter(topic="moved-repartition")
    assert set(moved["operator"]) == {"KSTREAM-EXPECT-not_17"}
    assert moved.height == after_repartition(values(rows))["not_17"].dropped

    request = place.desk.ask("replay", ids=json.dumps([]))
    place.run()  # not mended: they fail again, and count again
    assert not place.desk.answers[request][1]
    totals = counted(newest_commit(place.warehouse, "numbers"))
    assert totals["not_13"].failed == totals["not_13"].dropped == 2 * len(aside)

    place.application = program(mended=True)
    place.desk.ask("replay", ids=json.dumps([]))
    place.run()
    assert set(read_dead_letters(place.warehouse / "numbers").filter(operator="KSTREAM-EXPECT-not_13")["replayed"])
    found = sorted(n for n, _ in written(place, "out", "n"))
    assert found == sorted(n for n in values(rows) if n > 0)


def test_a_replayed_letter_that_would_stop_the_run_is_put_aside_again(tmp_path):
    rows = [(b"a", n.to_bytes(8, "big", signed=True), n) for n in range(55)]
    place = Place(stops("dead_letter"), Topics({("numbers", 0): rows}), tmp_path)
    place.run()
    place.application = stops("fail", below=52)
    request = place.desk.ask("replay", ids=json.dumps([]))
    place.run()
    assert not place.desk.answers[request][1]
    assert [n for n, _ in written(place, "out", "n")] == list(range(52))
    letters = read_dead_letters(place.warehouse / "numbers")
    assert letters.filter(pl.col("replayed").is_null())["offset"].to_list() == [52, 53, 54]
    assert counted(newest_commit(place.warehouse, "numbers")) == {"small": counts(52, 8, 8)}


def stops(on_violation: str, below: int = 50) -> Application:
    builder = StreamsBuilder()
    records = builder.stream("numbers", key=String("user"), value=Int64("n"))
    records.expect("small", col("n") < below, on_violation=on_violation).to_delta("out")
    return Application("numbers", builder, commit_interval=timedelta(hours=1))


@pytest.mark.parametrize("max_records", [7, 1_000])
def test_a_run_stops_before_a_violation_with_everything_before_it_committed(tmp_path, max_records):
    rows = [(b"a", n.to_bytes(8, "big", signed=True), n) for n in range(80)]
    place = Place(stops("fail"), Topics({("numbers", 0): rows}), tmp_path, max_records=max_records)
    for _ in range(2):  # a new start stops there again
        with pytest.raises(ExpectationViolatedError) as caught:
            place.run()
        assert str(caught.value) == (
            "application 'numbers' stopped at topic 'numbers', partition 0, offset 50: KSTREAM-EXPECT-small: the "
            "expectation 'small' is violated by user='a', n=50; all records before it in its partition are committed. "
            'Correct the expectation, or let it put such records aside with on_violation="dead_letter", and run it '
            "again; a corrected producer helps only records to come"
        )
        assert [n for n, _ in written(place, "out", "n")] == list(range(50))
        assert counted(newest_commit(place.warehouse, "numbers")) == {"small": counts(50, 0)}

    place.application = stops("dead_letter")
    place.run()
    assert [n for n, _ in written(place, "out", "n")] == list(range(50))
    assert read_dead_letters(place.warehouse / "numbers")["offset"].to_list() == list(range(50, 80))
    assert counted(newest_commit(place.warehouse, "numbers")) == {"small": counts(50, 30, 30)}


def test_what_is_put_aside_behind_the_stop_is_put_aside_once_when_its_turn_comes(tmp_path):
    def application(small: str) -> Application:
        builder = StreamsBuilder()
        records = builder.stream("numbers", key=String("user"), value=Int64("n"))
        even = records.expect("even", col("n") % 2 == 0, on_violation="dead_letter")
        even.expect("small", col("n") < 50, on_violation=small).to_delta("out")
        return Application("numbers", builder, commit_interval=timedelta(hours=1))

    rows = [(b"a", n.to_bytes(8, "big", signed=True), n) for n in range(80)]
    place = Place(application("fail"), Topics({("numbers", 0): rows}), tmp_path, max_records=1_000)
    for _ in range(3):
        with pytest.raises(ExpectationViolatedError):
            place.run()
        assert read_dead_letters(place.warehouse / "numbers")["offset"].to_list() == list(range(1, 50, 2))
        assert counted(newest_commit(place.warehouse, "numbers")) == {
            "even": counts(25, 25, 25),
            "small": counts(25, 0),
        }
    place.application = application("count")
    place.run()
    assert read_dead_letters(place.warehouse / "numbers")["offset"].to_list() == list(range(1, 80, 2))
    assert counted(newest_commit(place.warehouse, "numbers")) == {"even": counts(40, 40, 40), "small": counts(25, 15)}


def test_a_corrected_expectation_goes_on_where_it_stopped(tmp_path):
    rows = [(b"a", n.to_bytes(8, "big", signed=True), n) for n in range(80)]
    place = Place(stops("fail"), Topics({("numbers", 0): rows}), tmp_path)
    with pytest.raises(ExpectationViolatedError):
        place.run()
    place.application = stops("fail", below=80)
    assert place.run().records_in == 30
    assert [n for n, _ in written(place, "out", "n")] == list(range(80))


def test_behind_a_repartition_the_stop_names_the_row(tmp_path):
    builder = StreamsBuilder()
    records = builder.stream("numbers", key=String("user"), value=Int64("n"))
    records.repartition("moved").expect("small", col("n") < 3, on_violation="fail").to_delta("out")
    rows = [(b"a", n.to_bytes(8, "big", signed=True), n) for n in range(6)]
    place = Place(Application("numbers", builder), Topics({("numbers", 0): rows}), tmp_path)
    with pytest.raises(ExpectationViolatedError, match=r"stopped at a row that came over 'moved-repartition': .* n=3;"):
        place.run()
    assert [n for n, _ in written(place, "out", "n")] == [0, 1, 2]


def final(on_violation: str) -> Application:
    builder = StreamsBuilder()
    windows = builder.stream("numbers", key=String("user"), value=Int64("n")).group_by_key()
    windows = windows.windowed_by(TimeWindows.of_size_with_no_grace(timedelta(milliseconds=10)))
    counts = windows.count("counts").suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
    counts.expect("ten", col("count") == 10, on_violation=on_violation).to_delta("out")
    return Application("numbers", builder, commit_interval=timedelta(milliseconds=1))


def test_a_final_result_that_violates_stops_the_run_with_the_epochs_before_it_committed(tmp_path):
    """Windows of ten records, but for one of nine; an epoch has ten."""
    rows = [(b"a", n.to_bytes(8, "big", signed=True), n + (n >= 49)) for n in range(80)]
    place = Place(final("fail"), Topics({("numbers", 0): rows}), tmp_path, max_records=10)
    with pytest.raises(TaskFailedError, match=r"violates the expectation 'ten'; .*on_violation=.count"):
        place.run()
    assert [n for n, _ in written(place, "out", "count")] == [10] * 3
    assert counted(newest_commit(place.warehouse, "numbers")) == {"ten": counts(3, 0)}
    place.application = final("count")
    place.run()
    assert [n for n, _ in written(place, "out", "count")] == [10, 10, 10, 10, 9, 10, 10, 10]
    assert counted(newest_commit(place.warehouse, "numbers")) == {"ten": counts(7, 1)}


def evolving(*names: str, on_violation: str = "count") -> Application:
    """Stores without names, below expectations that come and go."""
    builder = StreamsBuilder()
    records = builder.stream("numbers", key=String("user"), value=Int64("n"))
    for name in names:
        records = records.expect(name, col("n") > 0, on_violation=on_violation)
    table = records.group_by_key().count("counts")
    for name in names:
        table = table.expect(f"{name}_table", col("count") > 0, on_violation="count")
    held = table.suppress(Suppressed.until_time_limit(timedelta(days=1), BufferConfig.unbounded()))
    held.to_delta("held")
    table.to_delta("out")
    return Application("numbers", builder, commit_interval=timedelta(milliseconds=1))


PROGRAMS = [
    evolving(),
    evolving("a"),
    evolving("b"),
    evolving("a", "b"),
    evolving("a", on_violation="dead_letter"),
    evolving("a", on_violation="fail"),
    evolving(),
]


def test_expectations_come_change_and_go_at_no_cost_to_state(tmp_path):
    place = Place(PROGRAMS[0], Topics({("numbers", 0): []}), tmp_path, max_records=20)
    stores = None
    for number, application in enumerate(PROGRAMS, start=1):
        place.application = application
        place.topics.rows["numbers", 0] += [(b"a", (1).to_bytes(8, "big"), number)] * 10
        place.run()
        newest = newest_commit(place.warehouse, "numbers")
        found = {name for names in newest.topology.stores.values() for name in names}
        assert stores in (None, found)
        stores = found
        assert not newest.topology.aside
        assert not place.restores.done
    assert written(place, "out", "user", "count")[-1][:2] == ("a", 10 * len(PROGRAMS))
    assert counted(newest_commit(place.warehouse, "numbers"))["a"] == counts(40, 0)  # those that are gone are kept
