"""How much each task may take in the next epoch, given the ones before."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.pipelines.spark import pace as pacing
from weir.pipelines.spark.pace import FEWEST_RECORDS, FIRST_RECORDS, RATE_S, Pace, Share, Took, divided
from weir.pipelines.tasks.batch_sizes import LESS, MOST_GROWTH, PATIENCE, UNKNOWN_ROWS
from weir.state.types import TaskId

A, B, C = TaskId(0, 0), TaskId(0, 1), TaskId(1, 0)
APART, TOGETHER = {A: 0, B: 1}, {A: 0, B: 0}
MANY = 10_000_000


def paced(slot_of: dict[TaskId, int], *, interval_s: float = 1.0, max_records: int = MANY) -> Pace:
    return Pace(interval_s, slot_of.__getitem__, max_records=max_records, max_bytes=8_000_000)


def after(*epochs: tuple[int, float]) -> Pace:
    """The pace for one task and a commit interval of one second after epochs of these records and seconds."""
    pace = paced({A: 0})
    for records, seconds in epochs:
        pace.shares({A: MANY}, {})
        pace.took(seconds, {A: Took(records, seconds)})
    return pace


def records(pace: Pace) -> int:
    return pace.shares({A: MANY}, {})[A].records


def test_tasks_of_which_nothing_is_known_share_what_an_epoch_takes():
    for tasks in (1, 4):
        pace = paced({TaskId(0, number): 0 for number in range(tasks)})
        shares = pace.shares({TaskId(0, number): MANY for number in range(tasks)}, {})
        assert {share.records for share in shares.values()} == {FIRST_RECORDS // tasks + 1}
        assert {share.batch_rows for share in shares.values()} == {None}
        assert sum(share.budget_ms for share in shares.values()) == 800


def test_the_first_epoch_is_cold_and_says_little_about_the_next():
    assert records(after((10, 1.9))) == (FIRST_RECORDS + 1) * 4
    assert records(after((FIRST_RECORDS, 2.0))) == FIRST_RECORDS * 0.5, "it took long, cold or not"


@pytest.mark.parametrize(("seconds", "scale"), [(0.4, 2), (0.8, 1), (1.0, 0.8), (0.01, 4), (60.0, 0.5)])
def test_after_a_full_epoch_the_next_approaches_a_share_of_the_commit_interval(seconds, scale):
    full = (FIRST_RECORDS + 1) * 4
    assert records(after((1, 1.0), (full, seconds))) == int(full * scale)


@pytest.mark.parametrize(("is_whole", "budget_ms"), [(True, 300), (False, 800)])
def test_waiting_for_a_task_that_is_left_is_not_what_the_rest_of_an_epoch_takes(is_whole, budget_ms):
    pace = paced(APART)
    pace.shares({A: MANY, B: MANY}, {})
    pace.took(0.5, {}, is_whole=is_whole)
    assert {share.budget_ms for share in pace.shares({A: MANY, B: MANY}, {}).values()} == {budget_ms}


def test_a_task_that_was_in_time_is_never_asked_for_few_records():
    full = (FIRST_RECORDS + 1) * 4
    assert records(after((1, 1.0), *[(full, 60.0)] * 9, *[(2, 60.0)] * 9)) == full * 0.5, "only full epochs count"
    slow = after((FIRST_RECORDS, 2.0))
    for _ in range(19):
        slow.took(60.0, {A: Took(slow.shares({A: MANY}, {})[A].records, 60.0)})
    assert records(slow) == FEWEST_RECORDS


def test_a_task_that_ran_out_of_time_gets_what_fits():
    pace = paced(APART)
    pace.shares({A: MANY, B: MANY}, {})
    pace.took(0.9, {A: Took(800, 0.8, 0.8, ran_out_of_time=True), B: Took(50_000, 0.05)})
    shares = pace.shares({A: MANY, B: MANY}, {})
    assert (shares[A].records, shares[A].budget_ms) == (800, 700), "0.1 s of the epoch went elsewhere"
    assert shares[A].batch_rows == 350
    assert shares[B].records == 4 * (FIRST_RECORDS // 2 + 1), "another slot's task is none the worse"


def test_of_what_other_tasks_send_one_that_runs_out_of_time_gets_what_fits():
    """Its topic, if it has one, is quiet."""
    pace = paced(APART)
    pace.shares({A: MANY, B: 0}, {})
    pace.took(0.9, {A: Took(50_000, 0.05), B: Took(0, 0.4, 0.38, ran_out_of_time=True, sent_rows=1_900)})
    share = pace.shares({A: MANY, B: 0}, {})[B]
    assert (share.budget_ms, share.batch_rows) == (400, 950), "half of those that fit"


def test_tasks_of_one_slot_divide_its_time_and_leave_each_other_what_they_do_not_need():
    pace = paced(TOGETHER)
    pace.shares({A: MANY, B: MANY}, {})
    pace.took(0.8, {A: Took(400, 0.4, 0.4, ran_out_of_time=True), B: Took(400, 0.4, 0.4, ran_out_of_time=True)})
    both = pace.shares({A: MANY, B: MANY}, {})
    assert (both[A].budget_ms, both[B].budget_ms) == (400, 400)
    light = pace.shares({A: MANY, B: 100}, {})
    assert light[A].budget_ms == 700
    preferred = pace.shares({A: MANY, B: MANY}, {A: 3})
    assert (preferred[A].budget_ms, preferred[B].budget_ms) == (600, 200)


def test_records_and_bytes_that_one_task_does_not_need_go_to_the_others():
    pace = paced(APART, max_records=600_000)
    for _ in range(9):
        shares = pace.shares({A: MANY, B: MANY}, {})
        assert sum(share.records for share in shares.values()) <= 600_000
        slow, fast = Took(800, 0.8, 0.8, ran_out_of_time=True), Took(shares[B].records, shares[B].records / 1_000_000)
        pace.took(0.8, {A: slow, B: fast})
    both = pace.shares({A: MANY, B: MANY}, {})
    assert (both[A].records, both[B].records) == (800, 599_200)
    assert (both[A].size_bytes, both[B].size_bytes) == (4_000_000, 4_000_000)
    alone = pace.shares({A: 0, B: MANY}, {})
    assert (alone[B].records, alone[B].size_bytes) == (600_000, 8_000_000)


@pytest.mark.parametrize("cost_us", [0.5, 1.3, 20.0])
@pytest.mark.parametrize(("tasks", "slots"), [(2, 1), (8, 2), (16, 4), (7, 2), (6, 2), (3, 3)])
@pytest.mark.parametrize("preferred", [1, 4])
def test_tasks_of_a_slot_take_records_by_priority_whether_time_limits_them_or_the_most_of_an_epoch(
    tasks, slots, cost_us, preferred
):
    """Every other task of a slot is preferred. A slot has what its number of tasks gives it, whatever they are."""
    slot_of = {TaskId(0, number): number % slots for number in range(tasks)}
    priorities = {task: preferred for task in slot_of if task.partition // slots % 2 == 0}
    pace = paced(slot_of, max_records=1_000_000)
    for _ in range(30):
        shares = pace.shares(dict.fromkeys(slot_of, 1_000 * MANY), priorities)
        took = {task: worked(share, 0.0, cost_us / 1e6) for task, share in shares.items()}
        seconds = [sum(each.seconds for task, each in took.items() if slot_of[task] == slot) for slot in range(slots)]
        pace.took(max(seconds), took)
    for slot in range(slots):
        together = [task for task in slot_of if slot_of[task] == slot]
        fits = min(1_000_000 * len(together) / tasks, 0.8e6 / cost_us)
        weight = sum(priorities.get(task, 1) for task in together)
        for task in together:
            assert took[task].records == pytest.approx(fits * priorities.get(task, 1) / weight, rel=0.15)
    assert sum(share.records for share in shares.values()) <= 1_000_000


LAGGING = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30_000), st.integers(1, 1_000)), min_size=1, max_size=8)
"""The slot, lag and priority of each task."""


@given(LAGGING, st.integers(100, 100_000))
def test_priority_moves_records_and_bytes_within_a_slot_alone_and_only_to_tasks_that_need_them(lagging, max_records):
    tasks = [TaskId(0, number) for number in range(len(lagging))]
    slot_of, lags, priorities = (dict(zip(tasks, each, strict=True)) for each in zip(*lagging, strict=True))
    pace = paced(slot_of, max_records=max_records)
    first = FIRST_RECORDS // max(1, sum(lag > 0 for lag in lags.values())) + 1
    needs = {task: min(lag, first) for task, lag in lags.items()}
    level = level_of(max_records, list(needs.values()))
    evenly = {task: min(need, level) for task, need in needs.items() if need}
    plain, found = pace.shares(lags, {}), pace.shares(lags, priorities)
    assert plain == pace.shares(lags, dict.fromkeys(slot_of, 7))
    for task, most in evenly.items():
        assert min(needs[task], plain[task].records) == max(1, int(most))
        assert plain[task].size_bytes == 8_000_000 // len(evenly)
    taken = {task: min(needs[task], found[task].records) for task in evenly}
    for slot in set(slot_of.values()):
        together = [task for task in evenly if slot_of[task] == slot]
        assert sum(taken[task] for task in together) == pytest.approx(
            sum(evenly[task] for task in together), abs=len(together)
        )
        wanting = [task for task in together if taken[task] < needs[task]]
        least = min(((taken[task] + 1) / priorities[task] for task in wanting), default=math.inf)
        assert all(taken[task] <= max(1, least * priorities[task]) for task in together)
    for task, most in evenly.items():
        size_bytes = plain[task].size_bytes * taken[task] / max(1, int(most))
        assert found[task].size_bytes == pytest.approx(max(1024, size_bytes), abs=1)
    assert sum(found[task].size_bytes for task in evenly) <= 8_000_000 * 1.05, "tasks have a KiB or a record at least"


def level_of(total: int, needs: list[int]) -> float:
    """How many each may take when none takes more than it needs, nor more than ``total`` allows all together."""
    for count, need in enumerate(sorted(needs)):
        if need * (len(needs) - count) > total:
            return total / (len(needs) - count)
        total -= need
    return math.inf


def test_an_epoch_is_no_longer_than_a_second_however_far_the_commits_are_apart():
    pace = paced(APART, interval_s=60.0)
    assert {share.budget_ms for share in pace.shares({A: MANY, B: MANY}, {}).values()} == {800}


@pytest.fixture
def is_hardly_behind(monkeypatch):
    """Epochs aim at their share of the commit interval, however many records a test says to wait."""
    monkeypatch.setattr(pacing, "CATCH_UP_SHARE", 0.0)


def caught_up(interval_s: float) -> tuple[float, list[float]]:
    """A task that takes 15 ms an epoch and 2 µs a record is a million records behind and gets 200,000 a second more:
    after how many seconds less than an interval's are left, and how long its epochs took."""
    pace, lag, took_s = paced({A: 0}, interval_s=interval_s), 1_000_000, list[float]()
    while lag > 200_000 * interval_s:
        records = min(lag, pace.shares({A: lag}, {})[A].records)
        took_s.append(0.015 + records * 2e-6)
        pace.took(took_s[-1], {A: Took(records, took_s[-1])})
        lag += int(200_000 * took_s[-1]) - records
    return sum(took_s), took_s


def test_who_is_far_behind_catches_up_with_longer_epochs_than_the_commit_interval_has(monkeypatch):
    soon_s, took_s = caught_up(0.1)
    assert 0.4 < max(took_s) < 0.9
    assert took_s[-1] < 0.2, "near the end they are short again"
    monkeypatch.setattr(pacing, "CATCH_UP_SHARE", 0.0)
    late_s, took_s = caught_up(0.1)
    assert max(took_s) < 0.25
    assert soon_s < 0.9 * late_s
    assert soon_s > 1_000_000 / (1 / 2e-6 - 200_000), "as if an epoch itself took nothing"


@pytest.mark.usefixtures("is_hardly_behind")
@pytest.mark.parametrize(
    ("fixed_ms", "record_ms", "records", "epoch_ms"),
    [
        (2, 1, 25, 40),
        (40, 0.1, 400, 90),
        (300, 0.1, 3_000, 700),
        (0, 300, 1, 300),
        (40, 300, 1, 350),
        (2_000, 1, 790, 3_000),
    ],
)
def test_a_task_goes_on_with_many_records_however_long_its_epochs_take_without_them(
    fixed_ms, record_ms, records, epoch_ms
):
    """Two tasks of a slot, commits 0.1 s apart. An epoch takes no longer than its records and what it takes without
    them want, and a part without records does not leave it to single records."""
    pace = paced(TOGETHER, interval_s=0.1)
    for _ in range(40):
        shares = pace.shares({A: MANY, B: MANY}, {})
        took = {task: worked(share, fixed_ms / 1000, record_ms / 1000) for task, share in shares.items()}
        pace.took(sum(each.seconds for each in took.values()), took)
    assert all(each.records >= records * 0.9 for each in took.values())
    assert all(each.seconds <= epoch_ms / 1000 for each in took.values())


@pytest.mark.usefixtures("is_hardly_behind")
@pytest.mark.parametrize(("fixed_ms", "tasks"), [(3, 2), (15, 2), (60, 2), (200, 2), (30, 8)])
def test_commits_that_are_near_each_other_do_not_leave_a_task_that_is_behind_with_few_records(fixed_ms, tasks):
    """No functions. What an epoch takes without its records may be longer than the commit interval, as on a machine
    that has too much to do: with fewer records it would be hardly shorter, and a run that is behind would stay so."""
    pace = paced(dict.fromkeys(behind := [TaskId(0, number) for number in range(tasks)], 0), interval_s=0.1)
    rng = random.Random(fixed_ms)
    for _ in range(60):
        shares = pace.shares(dict.fromkeys(behind, MANY), {})
        took = {
            task: Took(share.records, rng.uniform(1, 1.5) * (fixed_ms / 1000 + share.records * 2e-6))
            for task, share in shares.items()
        }
        pace.took(sum(each.seconds for each in took.values()) + 0.01, took)
    read, seconds = sum(each.records for each in took.values()), sum(each.seconds for each in took.values())
    assert read / seconds > 0.25 / 2e-6, "a quarter of what a task reads that has no end"
    assert seconds < max(0.12, 4 * tasks * fixed_ms / 1000)


@pytest.mark.usefixtures("is_hardly_behind")
def test_what_a_task_takes_without_records_is_learned_while_it_is_not_behind():
    """Then the first epoch that is, has many."""
    pace = paced({A: 0}, interval_s=0.1)
    for _ in range(20):
        pace.shares({A: 500}, {})
        pace.took(0.07, {A: Took(500, 0.06)})
    assert pace.shares({A: MANY}, {})[A].budget_ms == pytest.approx(120, abs=2)


@pytest.mark.usefixtures("is_hardly_behind")
@pytest.mark.parametrize("interval_s", [0.1, 1.0])
@pytest.mark.parametrize("beside_us", [1, 3, 9])
def test_what_grows_with_the_records_makes_no_epoch_longer(interval_s, beside_us):
    """Cheap functions: decoding, operators and files take longer than they do."""
    pace, target_s = paced({A: 0}, interval_s=interval_s), 0.8 * interval_s
    for _ in range(80):
        share = pace.shares({A: MANY}, {})[A]
        took = worked(share, 0.005, 1e-6, beside_us / 1e6)
        pace.took(took.seconds, {A: took})
    assert target_s / 2 < took.seconds < 1.5 * target_s
    assert took.rows * (1 + beside_us) / 1e6 > target_s / 2


def worked(share: Share, fixed_s: float, record_s: float, beside_s: float = 0.0) -> Took:
    """What a worker does with a share: batches of the sizes that it chooses, each of which has ``fixed_s``; of each
    record, ``record_s`` go to functions."""
    left, now_s, batch, on_records_s, budget_s = (
        share.records,
        0.0,
        share.batch_rows or UNKNOWN_ROWS,
        0.0,
        share.budget_ms / 1000,
    )
    while True:
        rows = min(batch, left)
        seconds = fixed_s + rows * (record_s + beside_s)
        if rows > 1 and seconds > PATIENCE * budget_s:
            now_s, batch = now_s + PATIENCE * budget_s, max(1, rows // LESS)
            continue
        now_s, left, on_records_s = now_s + seconds, left - rows, on_records_s + rows * record_s
        batch = min(int(rows * (budget_s - now_s) / seconds), rows * MOST_GROWTH)
        if not left or batch < 1 or budget_s - now_s < 0.1 * budget_s:
            return Took(share.records - left, now_s, on_records_s, ran_out_of_time=left > 0)


@given(
    st.floats(0.01, 10),
    st.lists(st.tuples(st.one_of(st.floats(0, 20), st.just(math.inf)), st.integers(1, 9)), min_size=1, max_size=8),
)
def test_time_is_divided_so_that_none_wants_while_another_has_more_by_weight(total_s, wishes):
    tasks = [TaskId(0, number) for number in range(len(wishes))]
    needs = dict(zip(tasks, (need for need, _ in wishes), strict=True))
    weights = dict(zip(tasks, (weight for _, weight in wishes), strict=True))
    found = divided(total_s, needs, weights)
    used = {task: min(needs[task], found[task]) for task in tasks}
    assert sum(used.values()) <= total_s * (1 + 1e-9)
    wanting = [task for task in tasks if used[task] < needs[task]]
    if wanting:
        assert sum(used.values()) == pytest.approx(total_s)
        least = min(used[task] / weights[task] for task in wanting)
        assert all(used[task] / weights[task] <= least * (1 + 1e-9) for task in tasks)


def test_the_rate_covers_the_epochs_that_had_input_and_is_zero_without_any():
    now_s = 0.0
    pace = Pace(1.0, {A: 0}.__getitem__, lambda: now_s, max_records=MANY, max_bytes=MANY)
    assert pace.records_per_s == 0
    for count, seconds in ((150, 0.5), (300, 1.5), (0, 0.1), (0, 0.2)):
        now_s += seconds
        pace.took(seconds, {A: Took(count, seconds)})
    assert (pace.records_in, pace.seconds, pace.records_per_s) == (450, 0.2, 225)
    now_s = 0.5 + RATE_S + 0.1
    assert pace.records_per_s == 200, "the first one no longer counts: 300 in 1.5 s"
    pace.took(0.25, {A: Took(50, 0.25)})
    assert pace.records_per_s == 200
    now_s += RATE_S + 0.1
    assert (pace.records_in, pace.records_per_s) == (500, 0)
