"""A driver that dies at any step of the protocol loses nothing and duplicates nothing.

The driver and its tasks run in this process; dying is an exception that nothing catches, after which a new
generation starts on the same folders. Real processes are killed in ``test_kills.py``.
"""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from pathlib import Path
from threading import Event

import pytest

from tests.examples import combined
from tests.faults.applications import PARTITIONS, TOPIC, build, records
from tests.faults.dying import KilledError, dying_at
from tests.faults.hook import DRIVER_STEPS, WORKER_STEPS
from tests.faults.outcome import assert_same, outcome
from tests.pipelines.spark.inline import Place, Topics
from weir.state.errors import FencedError

pytestmark = pytest.mark.faults

STEPS = WORKER_STEPS + DRIVER_STEPS
ROWS = 400


def place(folder: Path) -> Place:
    topics = Topics({(TOPIC, partition): [] for partition in range(PARTITIONS)})
    for partition, key, value, timestamp_ms in records(ROWS):
        topics.rows[TOPIC, partition].append((key, value, timestamp_ms))
    return Place(build(timedelta(milliseconds=1)), topics, folder, max_records=20)


def left_by(there: Place) -> dict:
    return outcome(there.warehouse / there.application.id, there.folder / "state")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    there = place(tmp_path_factory.mktemp("undisturbed"))
    steps = Counter()
    there.run(lambda name: steps.update([name]))
    assert set(STEPS) <= set(steps), "an undisturbed run goes through every named step"
    return left_by(there)


@combined("step,occurrence", STEPS, [1, 4])
def test_a_crash_at_a_step_leaves_what_an_undisturbed_run_leaves(tmp_path, undisturbed, step, occurrence):
    there = place(tmp_path)
    with pytest.raises(KilledError):
        there.run(dying_at(step, occurrence))
    there.run()
    assert_same(left_by(there), undisturbed)


def test_crashes_one_after_another_leave_what_an_undisturbed_run_leaves(tmp_path, undisturbed):
    rng, there, crashes, steps = random.Random(7), place(tmp_path), 0, Counter()
    while True:
        left = rng.randrange(3, 60)

        def on_step(name: str) -> None:
            nonlocal left
            steps[name] += 1
            left -= 1
            if left == 0:
                raise KilledError(name)

        try:
            there.run(on_step)
            break
        except KilledError:
            crashes += 1
    assert crashes >= 5
    assert_same(left_by(there), undisturbed)


@pytest.mark.parametrize("step", ["files written", "state written", "pivot appended", "table appended", "settled"])
def test_of_two_drivers_the_older_is_fenced_at_whichever_step_it_is(tmp_path, undisturbed, step):
    there = place(tmp_path)
    newer = []
    seen = Counter()

    def on_step(name: str) -> None:
        seen[name] += 1
        if name == step and seen[name] == 5 and not newer:
            newer.append(there.driver())

    older = there.driver(on_step)
    with pytest.raises(FencedError, match="newer driver has taken over"):
        older.run(Event(), until_caught_up=True)
    newer[0].run(Event(), until_caught_up=True)
    assert_same(left_by(there), undisturbed)
