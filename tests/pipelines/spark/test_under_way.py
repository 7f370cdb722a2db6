"""Plans that slots have been given: what is waited for, and what is not (PROTOCOL 40)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace

import pytest

from weir.pipelines.spark.signs import Asks, Sign
from weir.pipelines.spark.under_way import Given, GivenUpError, PlansUnderWay
from weir.pipelines.tasks.plan import Receipt, ReceiptStatus, Renewal
from weir.state.types import StateId, TaskId

TASK = TaskId(0, 0)
RECEIPT = Receipt(task=TASK, plan_hash="h", status=ReceiptStatus.DONE, state=StateId(1, 1))
RENEWAL = Renewal(state=StateId(1, 5), committed=StateId(1, 4))


class Slots(PlansUnderWay):
    """One slot; the test is its worker."""

    count = 1
    gone: Collection[int] = ()

    def lost(self) -> Collection[int]:
        return self.gone

    def _begin(self, slot: int, given: Given) -> None:
        self.given = given


def test_a_commit_waits_for_a_task_that_writes_under_the_epoch_that_it_was_told():
    slots, answers = Slots({TASK: 0}), []
    slots.is_patient, slots.renewal = lambda: False, lambda task: RENEWAL
    slots.begin([SimpleNamespace(task=TASK, asks=False)])
    slots.given.heard(Sign(task=str(TASK), asks=True), answers.append)
    assert slots.run([]) == [], "nobody waits for a task that will ask"
    assert slots.finish_writing() == [], "nor does a commit"

    slots.given.heard(Asks(TASK), answers.append)
    assert slots.late() == []
    assert answers == [RENEWAL]
    receipt = replace(RECEIPT, state=RENEWAL.state)
    slots._news = SimpleNamespace(clear=lambda: None, wait=lambda seconds: slots.given.heard(receipt, answers.append))
    slots.given._news = SimpleNamespace(set=lambda: None)
    assert slots.finish_writing() == [receipt], "it waits until the receipt has come"


def test_nobody_waits_for_a_lost_executor_or_hears_what_it_has_written_since():
    """Its worker was told an epoch to write under; a commit may pass that, since no receipt of it counts."""
    slots, answers = Slots({TASK: 0}), []
    slots.renewal = lambda task: RENEWAL
    slots.begin([SimpleNamespace(task=TASK, asks=True)])
    slots.given.heard(Asks(TASK), answers.append)
    assert slots.late() == []
    assert answers == [RENEWAL]
    slots.gone = [0]
    assert slots.finish_writing() == []
    assert slots.run([]) == []
    assert slots.is_free(TASK)
    slots.given.heard(replace(RECEIPT, state=RENEWAL.state), answers.append)
    slots.given.ended(EOFError())
    assert slots.late() == []
    with pytest.raises(GivenUpError):
        slots.given.sent()


def test_what_a_lost_executor_has_answered_before_counts():
    slots, other = Slots({TASK: 0, TaskId(0, 1): 0}), TaskId(0, 1)
    slots.begin([SimpleNamespace(task=task, asks=True) for task in (TASK, other)])
    slots.given.heard(RECEIPT, lambda renewed: None)
    slots.gone = [0]
    assert slots.run([]) == [RECEIPT]
    slots.given.heard(replace(RECEIPT, task=other), lambda renewed: None)
    assert slots.late() == []
