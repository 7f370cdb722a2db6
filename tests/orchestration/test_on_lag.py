"""The cause of lag by what was measured: tables of measures, with answers worked out by hand."""

from __future__ import annotations

import pytest

from tests.orchestration.readings import metric, running, task
from weir.orchestration.on_lag import Measured, OnLag, cause_of


def tasks(*lags: int, slots: int = 2, statuses: dict[int, str] | None = None):
    """Tasks of one sub-topology, each of which reads a partition, in slots by turns."""
    return [
        task(
            task=f"0_{number}",
            slot=number % slots,
            lag=lag,
            positions={"clicks": {number: 0}},
            status=(statuses or {}).get(number, "running"),
        )
        for number, lag in enumerate(lags)
    ]


def rates(*per_s: float) -> dict[str, float]:
    return {f"0_{number}": rate for number, rate in enumerate(per_s)}


SLOW = {"tasks": tasks(90_000, 20_000, 100, 0), "applied_per_s": rates(1_000, 9_000, 10_000, 11_000)}
"""Task 0_0 lags 4.5 times as far as the next, and the median of the others writes ten times as many records."""
COSTLY = {"commit_ms": 120.0, "commits_per_s": 4.0, "interval_s": 0.2}
"""Commits take 0.48 of the time."""
BUSY = {
    "tasks": tasks(500, 400, 300, 200),
    "slots": 2,
    "busy_ratio": rates(0.5, 0.4, 0.4, 0.5),
    "cores": 8,
    "free_cores": 1.4,
}
"""Slot 0 has tasks 0 and 2 and is busy for 0.9 of the time, as slot 1 is."""

RESTORE = ("restore", {"task": "0_0", "source": "snapshot", "slot": "freest"}, "0_0")
PACE = "pace"


@pytest.mark.parametrize(
    ("measured", "action"),
    [
        (SLOW, RESTORE),
        (SLOW | COSTLY | {"slots": 2, "free_cores": 8.0}, RESTORE),
        (SLOW | {"tasks": tasks(80_000, 20_000, 0, 0)}, RESTORE),
        (SLOW | {"tasks": tasks(79_999, 20_000, 0, 0)}, None),
        (SLOW | {"applied_per_s": rates(3_333, 9_000, 10_000, 11_000)}, RESTORE),
        (SLOW | {"applied_per_s": rates(3_334, 9_000, 10_000, 11_000)}, None),
        (SLOW | {"applied_per_s": {"0_0": 1_000, "1_0": 90_000}}, None),
        (SLOW | {"applied_per_s": {}}, None),
        (SLOW | {"tasks": tasks(90_000)}, None),
        (COSTLY | {"tasks": tasks(500, 500)}, (PACE, {"interval_ms": "480", "for_s": "600"}, "")),
        (COSTLY | {"tasks": tasks(5, 5), "interval_s": 0.3}, (PACE, {"interval_ms": "600", "for_s": "600"}, "")),
        (COSTLY | {"tasks": tasks(5, 5), "interval_s": 8.0}, (PACE, {"interval_ms": "10000", "for_s": "600"}, "")),
        (COSTLY | {"tasks": tasks(5, 5), "interval_s": 10.0}, None),
        (COSTLY | {"tasks": tasks(5, 5), "commits_per_s": 2.0}, None),
        (BUSY, ("slots", {"slots": "3"}, "")),
        (BUSY | {"free_cores": 9.0}, ("slots", {"slots": "4"}, "")),
        (BUSY | {"free_cores": 0.9}, None),
        (BUSY | {"cores": 2}, None),
        (BUSY | {"busy_ratio": rates(0.5, 0.4, 0.4, 0.3)}, None),
        (BUSY | {"tasks": tasks(500, 500), "busy_ratio": rates(1.0, 1.0)}, None),
        (SLOW | {"tasks": tasks(90_000, 0, 0, 0, statuses={0: "corrupted"})}, None),
        (SLOW | {"tasks": tasks(90_000, 0, 0, 0, statuses={1: "restoring"})}, None),
        ({"tasks": []}, None),
    ],
)
def test_what_helps_is_chosen_by_what_was_measured(measured, action):
    found = cause_of(Measured(**measured), OnLag(), "shop").action
    assert (found and (found.kind, found.arguments, found.task)) == action


@pytest.mark.parametrize(
    ("measured", "sentence", "advice"),
    [
        (
            SLOW,
            "task 0_0 alone is behind, by 90,000 records, because its store is slow: it writes 1,000 records per "
            "second, those of other tasks 10.0 times as many",
            "launch weir_restore with the partition shop:0_0",
        ),
        (
            SLOW | {"applied_per_s": {}},
            "task 0_0 alone is behind, by 90,000 records, and it is not known how quick its store is",
            "if that lasts, launch weir_restore with the partition shop:0_0",
        ),
        (
            SLOW | {"applied_per_s": rates(0, 9_000, 10_000, 11_000)},
            "task 0_0 alone is behind, by 90,000 records, and it is not known how quick its store is",
            "if that lasts, launch weir_restore with the partition shop:0_0",
        ),
        (
            SLOW | {"applied_per_s": rates(9_000, 9_000, 10_000, 11_000)},
            "task 0_0 alone is behind, by 90,000 records, and its store is as quick as those of other tasks: its "
            "partition gets more records",
            "launch weir_stop with the partition shop, spread the keys over more partitions",
        ),
        (
            COSTLY | {"tasks": tasks(5, 5)},
            "commits take 48% of the time, 120 ms each and 0.2 s apart",
            "launch weir_stop with the partition shop, and start again with a longer commit_interval",
        ),
        (
            BUSY,
            "all 2 slots are busy, and 1.4 cores are free",
            "launch weir_stop with the partition shop, and start again with more cores",
        ),
        (
            {"tasks": tasks(90_000, 0, statuses={0: "corrupted"})},
            "task 0_0 is corrupted",
            "the driver restores it by itself; weir_restore tries again at once",
        ),
        (
            {"tasks": tasks(9, 9)},
            "neither stores nor commits nor slots are the cost",
            "launch weir_stop with the partition shop",
        ),
    ],
)
def test_without_leave_to_act_the_cause_is_named_with_the_job_to_launch(measured, sentence, advice):
    found = cause_of(Measured(**measured), OnLag(actions=()), "shop")
    assert found.action is None
    assert found.sentence.startswith(sentence)
    assert advice in found.advice


def test_measures_are_those_that_the_driver_has_reported():
    def reading(name: str, value: float, task: str = "") -> dict[str, object]:
        group = "stream-task-metrics" if task else "stream-thread-metrics"
        return {"group": group, "name": name, "tags": {"task-id": task} if task else {}, "value": value}

    status = running(
        tasks=tuple(tasks(7, 8)),
        metric=metric(commit_ms_avg=50.0, commits_per_s=6.0),
        readings=(
            reading("slots", 2),
            reading("cores", 6),
            reading("free-cores", 3.5),
            reading("commit-interval-avg", 160.0),
            reading("busy-ratio", 0.9, task="0_0"),
            reading("applied-records-per-s", 1234.0, task="0_1"),
        ),
    )
    found = Measured.of(status, 0.1)
    assert found == Measured(
        tasks=status.tasks,
        commit_ms=50.0,
        commits_per_s=6.0,
        interval_s=0.16,
        applied_per_s={"0_1": 1234.0},
        busy_ratio={"0_0": 0.9},
        slots=2,
        cores=6,
        free_cores=3.5,
    )
    assert found.commit_share == pytest.approx(0.3)
    assert Measured.of(status, 2.0).interval_s == 2.0


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"actions": ["restart"]}, "nothing is called restart; there is: commits, restore, slots"),
        ({"repeat_s": 0}, "repeat_s is 0; it must be above 0"),
        ({"pause_s": -1}, "pause_s is -1; it must not be negative"),
        ({"commit_max_share": 5}, "commit_max_share is 5; it is a share of the time, at most 1"),
    ],
)
def test_settings_that_cannot_be_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        OnLag(**options)


def test_no_pause_and_commits_that_may_take_all_of_the_time_are_settings():
    assert OnLag(pause_s=0, commit_max_share=1).actions
